"""Tensor-parallel splits of captured models, derived: the numbers of one device, and Megatron's communication."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.support.planned_models import CAPTURED, made
from weft.app.plans.checking import Array, error, run_dense
from weft.models.transform.plan import TransformPlan
from weft.models.transform.program import PlanError, PlanProgram
from weft.plans import program as program_of
from weft.plans import tensor_parallel, with_backward


def captured(name: str) -> tuple[PlanProgram, dict[str, Array], torch.nn.Module, torch.Tensor]:
    """With its backward, what it is given, the module, and its loss."""
    module, inputs = made(name)
    program = program_of(module, inputs)
    assert not program.notes
    held = [*module.named_parameters(), *module.named_buffers()]
    names = [one for one, tensor in program.tensors.items() if tensor.source == "input"]
    given = {one: tensor.detach().numpy().copy() for one, tensor in held}
    given |= {one: tensor.numpy() for one, tensor in zip(names, inputs, strict=True)}
    loss: torch.Tensor = module(*inputs)
    return with_backward(program), given | {f"d({program.outputs[0]}) given": np.ones(())}, module, loss


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_models_in_parts_have_the_gradients_of_torch(name: str) -> None:
    program, given, module, loss = captured(name)
    values = run_dense(program, given)
    torch.autograd.backward(loss)
    assert values[program.outputs[0]] == pytest.approx(loss.item(), abs=1e-12)
    for parameter, tensor in module.named_parameters():
        assert tensor.grad is not None
        assert values[f"d({parameter})"] == pytest.approx(tensor.grad.numpy(), abs=1e-10), parameter
    for devices in (2, 4):
        plan = tensor_parallel(TransformPlan(program), range(devices))
        assert error(plan.preserve(), given) < 1e-10
        products = [operation.name for operation in program.operations if operation.phase == "forward"
                    and len(operation.inputs) > 1 and len(program.tensors[operation.inputs[1]].shape) > 1
                    and program.tensors[operation.inputs[1]].source == "parameter"]
        assert products and all(plan.planned.cuts_of(one)[0].along for one in products)


def test_a_captured_gpt_is_cut_as_megatron_cuts_it() -> None:
    program, _, _, _ = captured("gpt")
    plan = TransformPlan(program).tensor_parallel(range(4))
    cut = {name: plan.planned.cuts_of(name)[0].along for name in program.by_name}
    for block in (0, 6):
        for column in (0, 1, 2, 4):
            assert cut[f"linear{f'_{block + column}' if block + column else ''}.product"] == "n"
        for row in (3, 5):
            assert cut[f"linear_{block + row}.product"] == "k"
    assert cut["scaled_dot_product_attention"] == "h"
    done = plan.preserve()
    inside = [entry for entry in done.communications if "all_reduce" in entry.kinds]
    assert len(inside) == 2 * 4 + 1  # two of each block forward, two backward, one of the head's input


def test_groups_of_other_sizes_follow_each_other_in_a_pipeline() -> None:
    program, given, _, _ = captured("vision")
    forwards = [operation.name for operation in program.operations if operation.phase == "forward"]
    middle = forwards.index("layer_norm_1")
    stages = [" ".join(forwards[:middle]), " ".join(forwards[middle:])]
    for groups in (([0, 1], [2]), ([0], [1, 2]), ([0, 1, 2, 3], [4, 5])):
        plan = TransformPlan(program)
        rows = plan.along("image")
        plan.pipeline(stages, [group[0] for group in groups], rows, 2)
        for stage, group in zip(stages, groups, strict=True):
            plan.tensor_parallel(group, stage)
        done = plan.preserve()
        assert error(done, given) < 1e-10
        assert any("send" in kind for entry in done.communications for kind in entry.kinds)


@pytest.mark.parametrize(("step", "said"), [
    (lambda plan: plan.tensor_parallel([0, 0]), r"the devices \[0, 0\] must be different"),
    (lambda plan: plan.split("silu", "d0", 2).tensor_parallel([0, 1]), "operator 'silu' is cut over devices already"),
    (lambda plan: plan.along("words"), "there is no dimension 0 of a tensor 'words'"),
    (lambda plan: plan.pipeline(["einsum silu", "silu einsum_1"], [0, 1], "b", 2),
     "operator 'silu' is in stage 0 and in stage 1; name it in one"),
    (lambda plan: plan.split("einsum", "e0", 3), "'e0' has 4 elements in each part, which 3 parts do not divide"),
    (lambda plan: plan.split("einsum", "w0", 2, role="spatial"),
     "'w0' is a reduction, whose parts give terms of a sum; it cannot be split as"),
    (lambda plan: plan.split("einsum", "heads", 2), "has no 'heads'; it has e0, b, w0, f"),
    (lambda plan: plan.split("einsun", "b", 2), "there is no operator 'einsun'"),
    (lambda plan: plan.split("einsum", "b", 2).assign("einsum", [1, 1]),
     r"the devices \[1, 1\] must be different; parts in turn are co_shard's"),
    (lambda plan: plan.co_shard("silu", {}, 2), "no operator has a name that is given")])
def test_what_cannot_be_is_refused_in_a_sentence(step: Callable[[TransformPlan], object], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        step(TransformPlan(captured("experts")[0]))
