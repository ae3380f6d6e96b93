"""Which grids there are, and their bounds."""

from __future__ import annotations

import pytest

from tests.models.grid.test_pipeline import spec_of
from weft.models.candidates.build import ModelCandidate, candidate_of
from weft.models.candidates.gpu_costs import gpu_costs
from weft.models.candidates.stage_split import split_at
from weft.models.candidates.stages import MemoryRule
from weft.models.grid.degrees import Degrees, require_degrees
from weft.models.grid.grids import Grid
from weft.models.grid.pipeline import even_cut, grid_space, pipeline_spec
from weft.models.grid.step_end import step_end
from weft.models.layers.cluster import model_cluster
from weft.models.spec.spec import SpecError
from weft.solver.baselines import baseline


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


def in_a_v(degrees: Degrees) -> ModelCandidate:
    spec = spec_of()
    pipeline = pipeline_spec(spec, grid_space(spec), degrees)
    costs, cluster = gpu_costs(pipeline), model_cluster(pipeline.cluster)
    split = split_at("v", costs.layers, even_cut(10, 8), cluster.memory, rule=MemoryRule("full", 1, cluster.reserve))
    return candidate_of(pipeline, split, "full", "least", costs.layers[0], cluster)


def test_in_a_v_the_gpu_that_ends_last_updates_the_first_and_the_last_stage() -> None:
    degrees, space = Degrees(tensor=2, pipeline=4, virtual=2, data=4), grid_space(spec_of())
    made = in_a_v(degrees)
    schedule = baseline("hanayo", made.problem, 8).with_solver(layers_of_stage=made.layers_of_stage)
    layers = {layer.cost.name: layer for layer in space.ranks.of(degrees)}
    own = [layers[name] for stage in (0, 7) for name in made.layers_of_stage[stage]]
    assert {"embedding", "head"} <= {layer.cost.name for layer in own}
    found = space.end(degrees, schedule)
    assert found.rank == 0
    assert found == step_end([own], [0.0], degrees, space.links, space.size)
