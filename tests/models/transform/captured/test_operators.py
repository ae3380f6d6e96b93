"""Every operator that has an annotation: as torch computes it, and in parts along every name that may be cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.every_operator import CASES, Every, differences, inputs, wrong_types
from tests.support.examples import examples
from weft.app.plans.checking import Array, run_dense
from weft.models.capture.capture import save_exported
from weft.models.transform.backward import with_backward
from weft.models.transform.captured import read_program
from weft.models.transform.program import PlanProgram


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operators")


def numbers(program: PlanProgram, module: Every, whole: dict[str, torch.Tensor]) -> dict[str, Array]:
    draw = np.random.default_rng(0)
    found: dict[str, Array] = {name: one.detach().numpy() for name, one in module.named_parameters()}
    for name, tensor in program.tensors.items():
        if tensor.source == "input":
            key = name.removeprefix("given_")
            found[name] = whole[key].numpy() if key in whole else draw.standard_normal(tensor.shape)
    return found


@pytest.mark.slow
@settings(max_examples=examples(2), derandomize=True, database=None)
@example((2, 4, 6, 4), sorted(CASES))
@given(st.tuples(st.integers(2, 3), st.integers(3, 5), st.integers(2, 6), st.integers(4, 6)),
       st.lists(st.sampled_from(sorted(CASES)), min_size=15, max_size=15, unique=True))
def test_every_operator_in_parts_is_the_whole(folder: Path, sizes: tuple[int, int, int, int],
                                              cases: list[str]) -> None:
    given_ = inputs(*sizes)
    module = Every(given_, tuple(cases))
    whole = {name: one for name, one in given_.items() if not one.is_floating_point()}
    save_exported(module, (whole,), folder / "every.pt2")
    program = read_program(folder / "every.pt2")
    assert not program.notes
    names = program.outputs
    program = with_backward(program)
    values = run_dense(program, given := numbers(program, module, whole))
    outputs = module(whole)
    for case, name, output in zip(cases, names, outputs, strict=True):
        assert values[name] == pytest.approx(output.detach().numpy(), rel=1e-12, abs=1e-12), case
    learnt = [(output, torch.tensor(given[f"d({name}) given"])) for name, output in zip(names, outputs, strict=True)
              if output.requires_grad]
    torch.autograd.backward([output for output, _ in learnt], [seed for _, seed in learnt])
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            assert values[f"d({name})"] == pytest.approx(parameter.grad.numpy(), rel=1e-10, abs=1e-10), name
    assert not [what for what, difference in differences(program, values) if not difference < 1e-12]
    assert not wrong_types(program, given)
