"""Which grids there are, and their bounds."""

from __future__ import annotations

import pytest

from tests.models.grid.test_pipeline import spec_of
from weft.models.grid.degrees import Degrees, require_degrees
from weft.models.grid.grids import Grid
from weft.models.grid.pipeline import grid_space
from weft.models.spec.spec import SpecError


def grids(parallel: str, **more: int) -> list[Grid]:
    return [grid for wave in grid_space(spec_of(parallel, **more)).waves() for grid in wave]  # type: ignore[arg-type]


def test_all_go_together_and_keep_what_is_given() -> None:
    space = grid_space(spec_of())
    found = grids("auto")
    assert len({grid.degrees for grid in found}) == len(found) > 100
    for grid in found:
        require_degrees(grid.degrees, space.model, 32, 64, "spec")
        assert 0 < grid.bound <= grid.estimate * (1 + 1e-9)
    some = grids("{tensor: 4, zero: 1, micro_batch: 2, recompute: full}")
    assert {(g.degrees.tensor, g.degrees.zero, g.degrees.micro_batch, g.degrees.recompute) for g in some} == {
        (4, 1, 2, "full")}
    assert {g.degrees.pipeline for g in some} == {1, 2, 4, 8}
    assert {g.degrees.virtual for g in grids("{virtual: 2}")} == {2}


def test_one_grid_where_all_is_given() -> None:
    text = ("{tensor: 2, pipeline: 4, virtual: 1, data: auto, expert: 1, context: 1, zero: 1, recompute: none, "
            "micro_batch: 1}")
    assert grid_space(spec_of(text)).fixed() == Degrees(tensor=2, pipeline=4, data=4)
    (only,) = grids(text)
    assert only.degrees == Degrees(tensor=2, pipeline=4, data=4)
    assert grid_space(spec_of("{tensor: 2}")).fixed() is None


@pytest.mark.parametrize(("parallel", "said"), [
    ("{tensor: 3}", "parallel.tensor is 3, which does not divide cluster.gpus"),
    ("{pipeline: 5}", "its divisors are 1, 2, 4, 8, 16, 32"),
    ("{expert: 2}", "the model has no experts"),
    ("{pipeline: 8, virtual: 1, micro_batch: 16}", "the least batch is 128"),
    ("{precision: fp8}", "a100 multiplies in no 8 bits"),
    ("{tensor: 4, data: 16}", "data: 8 would be right"),
    ("{pipeline: 8, data: 8}", r"1 \(tensor\) x 8 \(pipeline\) x 1 \(context\) x 8 are 64 GPUs, .* data: 4"),
    ("{pipeline: 4, data: 8, micro_batch: 16}", "8 replicas .parallel.data. with micro-batches of 16 need a multiple"),
])
def test_numbers_that_go_with_no_others_are_refused(parallel: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        grids(parallel)


def test_what_does_not_fit_memory_is_no_grid() -> None:
    spec = spec_of("{zero: 1}")
    roomy = grid_space(spec)
    tight = grid_space(spec.model_copy(update={"cluster": spec.cluster.model_copy(
        update={"memory": (3 * 1024**3,)})}))
    assert sum(map(len, tight.waves())) < sum(map(len, roomy.waves()))
