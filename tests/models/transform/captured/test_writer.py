"""Programs of captured modules: the numbers of torch, whole and in parts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.examples import slow
from tests.support.exported_models import MODELS
from tests.support.programs import random_plan
from weft.app.plans.checking import Array, error, run_dense
from weft.app.plans.programs import forget, operator
from weft.models.capture.capture import save_exported
from weft.models.transform.backward import with_backward
from weft.models.transform.captured import read_program
from weft.models.transform.plan import TransformPlan
from weft.models.transform.program import PlanError, PlanProgram

#: Those of which every operator is known.
KNOWN = ("mlp", "attention", "encoder without dropout", "tied", "tied by view", "attention of torch")


class Block(nn.Module):
    """A decoder block of projections of its own, with a norm before each half."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width, eps=1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=i != 1) for i in range(4))
        self.gate, self.up, self.down = (nn.Linear(*sizes) for sizes in ((width, 32), (width, 32), (32, width)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (one(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        found: torch.Tensor = x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return found


def captured(module: nn.Module, inputs: tuple[Any, ...], folder: Path) -> PlanProgram:
    path = folder / "model.pt2"
    save_exported(module, inputs, path)
    return read_program(path)


def as_double(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[nn.Module, tuple[Any, ...]]:
    return module.eval().double(), tuple(one.double() if one.is_floating_point() else one for one in inputs)


def given_to(program: PlanProgram, module: nn.Module, inputs: tuple[Any, ...]) -> dict[str, Array]:
    held = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    found = {name: tensor.detach().numpy() for name, tensor in held}
    names = [name for name, tensor in program.tensors.items() if tensor.source == "input"]
    found |= {name: one.numpy() for name, one in zip(names, inputs, strict=True)}
    draw = np.random.default_rng(0)
    return found | {f"d({name}) given": draw.standard_normal(program.tensors[name].shape) for name in program.outputs}


@pytest.mark.parametrize("name", KNOWN)
def test_a_captured_model_computes_what_torch_does(name: str, tmp_path: Path) -> None:
    make, example = MODELS[name]
    module, inputs = as_double(make(), example())
    program = captured(module, inputs, tmp_path)
    assert not program.notes
    given = given_to(program, module, inputs)
    values = run_dense(with_backward(program), given)
    made = module(*inputs)
    outputs = [made] if isinstance(made, torch.Tensor) else list(made.values() if isinstance(made, dict) else made)
    for output, expected in zip(program.outputs, outputs, strict=True):
        assert values[output] == pytest.approx(expected.detach().numpy(), abs=1e-10)
    torch.autograd.backward(outputs, [torch.tensor(given[f"d({output}) given"]) for output in program.outputs])
    for parameter, tensor in module.named_parameters():
        alike = [other for other, one in module.named_parameters(remove_duplicate=False) if one is tensor]
        found = sum(values[f"d({other})"] for other in alike if f"d({other})" in values)
        assert found == pytest.approx(np.zeros(1) if tensor.grad is None else tensor.grad.numpy(), abs=1e-10), parameter


def test_a_captured_block_is_tensor_parallel_with_sequence_parallelism(tmp_path: Path) -> None:
    module, inputs = as_double(Block(), (torch.randn(2, 8, 16),))
    program = captured(module, inputs, tmp_path)
    assert not program.notes
    names = {operation.name: str(operation.annotation) for operation in program.operations}
    assert names["linear_1"] == "d0 d1 k+, n k+ -> d0 d1 n"
    given = given_to(program, module, inputs)
    program = with_backward(program)
    plan = TransformPlan(program)
    plan.split("linear.product linear linear_1 linear_2.product linear_2", "n", 4)  # queries, keys, values
    plan.split("unflatten*", "d2", 4).split("transpose transpose_1 transpose_2", "d2", 4)
    plan.split("scaled_dot_product_attention", "h", 4).split("transpose_3", "d1", 4).split("flatten", "d2", 4)
    plan.split("linear_3.product", "k", 4).split("linear_4* linear_5*", "n", 4).split("silu mul", "d2", 4)
    plan.split("linear_6.product", "k", 4)
    plan.split("layer_norm rms_norm linear_3 linear_6 add add_1", "d1", 4)
    done = plan.assign("*", range(4)).preserve()
    assert done.kinds("layer_norm") == done.kinds("rms_norm") == ("all_gather",)
    assert done.kinds("linear_3.product") == done.kinds("linear_6.product") == ("reduce_scatter",)
    assert done.kinds("d(layer_norm)") == done.kinds("d(rms_norm)") == ("reduce_scatter",)
    assert not any("all_reduce" in entry.kinds for entry in done.communications)
    assert error(done, given) < 1e-10


class Case(nn.Module):
    """``how`` of a table, a weight and what is given."""

    def __init__(self, how: Callable[[nn.Embedding, torch.Tensor, torch.Tensor], torch.Tensor],
                 **of_table: Any) -> None:
        super().__init__()
        self.how, self.table = how, nn.Embedding(7, 4, **of_table)
        self.weight = nn.Parameter(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(self.table, self.weight, x)


def _partly(table: nn.Embedding, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        held = x * weight
    return held * weight


@pytest.mark.parametrize(("module", "x"), [
    (Case(lambda table, weight, x: table(x) @ weight, padding_idx=3), torch.tensor([[1, 3, 3], [3, 4, 6]])),
    (Case(lambda table, weight, x: torch.log_softmax(1000 * x * weight, -1)), torch.randn(2, 4, 6)),
    (Case(lambda table, weight, x: (table(x * 2) * x[..., None]) @ weight), torch.tensor([[1, 3, 3], [3, 0, 2]])),
    (Case(_partly), torch.randn(2, 4, 6)),
    (Case(lambda table, weight, x: torch.softmax((x * weight).masked_fill(x > 1, -math.inf), -1) * (1 - x)
          + torch.rsub(weight, x, alpha=2)), torch.randn(2, 4, 6)),
    (Case(lambda table, weight, x: x * weight + weight[3:1].sum()), torch.randn(2, 4, 6)),
    (Case(lambda table, weight, x: torch.ops.aten.upsample_nearest2d.default(weight[None, None] * x, [7, 4], 1.25,
                                                                             0.75)), torch.randn(1, 1, 4, 6)),
], ids=["a row of padding", "a log-softmax of large numbers", "integers", "without gradient", "infinite masks",
        "nothing taken", "scales one by one"])
def test_what_a_short_module_computes_and_its_gradients(module: nn.Module, x: torch.Tensor, tmp_path: Path) -> None:
    module, inputs = as_double(module, (x,))
    program = captured(module, inputs, tmp_path)
    given = given_to(program, module, inputs)
    values, output = run_dense(with_backward(program), given), module(*inputs)
    assert values[program.outputs[0]] == pytest.approx(output.detach().numpy(), abs=1e-10)
    output.backward(torch.tensor(given[f"d({program.outputs[0]}) given"]))
    for parameter, tensor in module.named_parameters():
        assert (tensor.grad is None) == (f"d({parameter})" not in values)
        if tensor.grad is not None:
            assert values[f"d({parameter})"] == pytest.approx(tensor.grad.numpy(), abs=1e-10), parameter


@pytest.mark.parametrize(("module", "x", "kind"), [
    (Case(lambda table, weight, x: torch.addmm(weight[0], x, weight, alpha=2)), torch.randn(3, 4), "addmm"),
    (Case(lambda table, weight, x: (x @ weight).mean(-1, dtype=torch.float32)), torch.randn(3, 4), "mean"),
    (Case(lambda table, weight, x: table(x) @ weight, scale_grad_by_freq=True), torch.tensor([1, 1, 2]), "embedding"),
    (Case(lambda table, weight, x: nn.functional.cross_entropy(table(x) @ weight, x, label_smoothing=0.1)),
     torch.tensor([1, 5, 2]), "cross_entropy_loss"),
    (Case(lambda table, weight, x: ((x > 0) + (x < 1)) * weight), torch.randn(4, 6), "add"),
    (Case(lambda table, weight, x: torch.view_as_complex(x * weight[:, :2]).var(0)), torch.randn(4, 2), "var"),
    (Case(lambda table, weight, x: x[:0].mean() + weight), torch.randn(4, 6), "mean"),
], ids=["addmm with alpha", "a mean that casts", "gradients by frequency", "smoothed targets", "truths added",
        "complex numbers", "a mean of nothing"])
def test_what_would_be_another_number_is_not_known(module: nn.Module, x: torch.Tensor, kind: str,
                                                   tmp_path: Path) -> None:
    program = captured(*as_double(module, (x,)), tmp_path)
    assert any(note.startswith(f"{kind} (") for note in program.notes)


def test_a_target_that_no_class_is_is_refused_when_it_comes(tmp_path: Path) -> None:
    module, inputs = as_double(Case(lambda table, weight, x: nn.functional.cross_entropy(weight, x)),
                               (torch.tensor([1, -100, 2, 0]),))
    program = captured(module, inputs, tmp_path)
    given = given_to(program, module, inputs) | {"x": np.array([1, -100, 2, 6])}
    with pytest.raises(PlanError, match="a target is not one of 0 to 5, nor -100, which is ignored"):
        run_dense(program, given)


@pytest.mark.parametrize("name", [slow("attention"), "attention of torch"])
def test_random_plans_of_captured_models(name: str, tmp_path: Path) -> None:
    make, example = MODELS[name]
    module, inputs = as_double(make(), example())
    program = captured(module, inputs, tmp_path)
    given = given_to(program, module, inputs)
    program, draw = with_backward(program), random.Random(3)
    for _ in range(3):
        assert error(random_plan(program, draw).preserve(), given) < 1e-10


def test_what_is_not_known_is_computed_whole_and_said(tmp_path: Path) -> None:
    module, inputs = as_double(Case(lambda table, weight, x: nn.functional.silu((x @ weight).cumprod(-1))),
                               (torch.randn(2, 4),))
    program = captured(module, inputs, tmp_path)
    assert program.notes == ("cumprod (cumprod) is not known: every device computes all of it",)
    with pytest.raises(PlanError, match="is frozen, it cannot be cut"):
        TransformPlan(program).split("cumprod", "d0", 2)
    done = TransformPlan(program).split("silu", "d0", 2).assign("*", range(2)).preserve()
    assert not done.communications
    given = given_to(program, module, inputs)
    done = TransformPlan(program := with_backward(program)).split("silu", "d0", 2).assign("*", range(2)).preserve()
    assert error(done, given) < 1e-12
    weight = module.get_parameter("weight")
    expected, = torch.autograd.grad(module(*inputs), weight, torch.tensor(given[f"d({program.outputs[0]}) given"]))
    assert run_dense(program, given)["d(weight)"] == pytest.approx(expected.numpy(), abs=1e-12)


def test_running_statistics_and_counters_are_of_the_next_step(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)).double().train()
    x = torch.randn(4, 2, 5, 5).double()
    program = captured(module, (x,), tmp_path)
    assert not program.notes
    assert set(program.carried.values()) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    values = run_dense(program, given_to(program, module, (x,)))
    output = module(x)
    assert values[program.outputs[0]] == pytest.approx(output.detach().numpy(), abs=1e-12)
    for made, held in program.carried.items():
        assert values[made] == pytest.approx(module.get_buffer(held).numpy(), abs=1e-12)
    plan = TransformPlan(program).split(
        "conv2d* batch_norm batch_norm.mean batch_norm.apart batch_norm.variance batch_norm.scaled", "n", 2)
    done = plan.assign("*", range(2)).preserve()
    assert done.kinds("batch_norm.mean") == ("all_reduce",)
    assert error(done, given_to(program, module, (x,))) < 1e-12


def test_dropout_of_parts_is_that_of_the_whole(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4)).double().train()
    x = torch.randn(16, 6).double()
    program = captured(module, (x,), tmp_path)
    assert any("dropout draws by the place of an element" in note for note in program.notes)
    program = with_backward(program)
    given = {"seed": np.array(3), **{name: tensor.detach().numpy() for name, tensor in module.named_parameters()},
             "input": x.numpy(), "d(dropout) given": np.ones((16, 8))}
    kept = run_dense(program, given)["dropout"] != 0
    assert 0.3 < 1 - kept.mean() < 0.5
    assert (run_dense(program, given | {"seed": np.array(4)})["dropout"] != 0).tolist() != kept.tolist()
    for along in ("d0", "d1"):
        assert error(TransformPlan(program).split("dropout", along, 2).assign("*", range(2)).preserve(), given) < 1e-12


def test_an_operator_of_a_library_splits_as_it_is_registered(tmp_path: Path) -> None:
    @torch.library.custom_op("planned::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    doubled.register_fake(torch.empty_like)

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = doubled(x)
            return made

    example = (torch.randn(4, 6).double(),)
    assert captured(Twice(), example, tmp_path).notes == (
        "planned.doubled (doubled) is not known: every device computes all of it",)

    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    twice.__name__ = "doubled"
    operator("n k -> n k")(twice)
    try:
        program = captured(Twice(), example, tmp_path)
        assert not program.notes
        done = TransformPlan(program).split("doubled", "k", 3).assign("doubled", range(3)).preserve()
        assert error(done, {"x": example[0].numpy()}) == 0.0
    finally:
        forget("doubled")


def test_gradients_through_complex_numbers_are_refused_not_left_out(tmp_path: Path) -> None:
    turned = Case(lambda table, weight, x: torch.view_as_real(torch.view_as_complex(x * weight[:, :2]) * 2))
    program = captured(*as_double(turned, (torch.randn(4, 2),)), tmp_path)
    with pytest.raises(PlanError, match="view_as_real"):
        with_backward(program)


@pytest.mark.parametrize("view", [lambda x: x.swapdims(0, 1), lambda x: x.broadcast_to(2, 4, 6), lambda x: x.ravel(),
                                  lambda x: x.tensor_split(2)[1]])
def test_writing_into_what_a_view_reads_is_refused(view: Callable[[torch.Tensor], torch.Tensor],
                                                   tmp_path: Path) -> None:
    def written(table: nn.Embedding, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        made = x * weight
        seen = view(made)
        made.add_(1)
        return seen * 1

    with pytest.raises(PlanError, match="shares its memory with views"):
        captured(*as_double(Case(written), (torch.randn(4, 6),)), tmp_path)


@pytest.mark.parametrize("name", ["written in place", "written by copy"])
def test_writing_into_views_is_refused(name: str, tmp_path: Path) -> None:
    make, example = MODELS[name]
    with pytest.raises(PlanError, match="which shares its memory with views; write it without writing in place"):
        captured(make(), example(), tmp_path)
