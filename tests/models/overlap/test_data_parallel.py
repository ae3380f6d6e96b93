"""The whole model on every GPU: ways to sum gradients, and what each holds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from weft.models.communication.builder import data_parallel as adam
from weft.models.communication.search.schedules import schedules
from weft.models.overlap.data_parallel import BUCKETS, GRADIENTS, WAYS, data_parallel, why_not_data_parallel
from weft.models.overlap.placement import OverlapPlacement
from weft.models.spec.spec import Spec, parse_spec
from weft.solver.choices.relaxed.bounds import bound_of
from weft.solver.choices.solve import solve_run
from weft.solver.judge.validate import violations
from weft.solver.problem.rounds import Run

SPEC = """
name: tiny
model:
  layers:
    - {{name: block, repeat: 8, forward: 1 ms, backward: 2 ms, activation_memory: 100 MiB, parameters: 10000000,
       output: 1 MiB, workspace: 10 MiB}}
cluster: {{gpus: {gpus}, memory: {memory}, reserve: 0 GiB{device}}}
training: {{micro_batches: {count}}}
"""
WHOLE, SCATTERED, FUSED = WAYS


def spec_of(*, gpus: int = 2, count: int = 2, memory: str = "8 GiB", device: str = ", device: v100") -> Spec:
    return parse_spec(SPEC.format(gpus=gpus, count=count, memory=memory, device=device))


def under(found: OverlapPlacement, way: str, buckets: int) -> Mapping[str, float]:
    """By block, how long it takes."""
    plain = found.problem.under({GRADIENTS: way, BUCKETS: str(buckets)}).plain()
    return {block.name: float(block.duration) for block in plain.blocks}


@pytest.mark.slow
def test_the_search_finds_what_looking_at_every_assignment_does() -> None:
    found = data_parallel(spec_of())
    best = {tuple(options.values()): solve_run(found.problem.under(options), 1, effort=0.2).makespan
            for options in found.problem.assignments}
    assert len(best) == found.problem.assignment_count == 12
    answer = solve_run(found.problem, 1, effort=4.0)
    assert answer.makespan == pytest.approx(min(best.values())) == answer.makespan_bound
    assert best[answer.choices[GRADIENTS], answer.choices[BUCKETS]] == pytest.approx(answer.makespan)
    told = {(row["choice"], row["option"]): row["bound"] for row in answer.solver["options"]}
    for (way, buckets), makespan in best.items():
        assert max(told[GRADIENTS, way], told[BUCKETS, buckets]) <= makespan * (1 + 1e-9)


def test_a_slice_is_updated_and_gathered() -> None:
    found = data_parallel(spec_of(gpus=4, count=4))
    whole, scattered, fused = (under(found, way, 2) for way in WAYS)
    launch = 36e-6
    assert scattered["U0"] - launch == pytest.approx((whole["U0"] - launch) / 4, rel=1e-3)
    assert whole["U0"] == pytest.approx(launch + 40e6 * (2 + 24 + 2) / (900e9 * 0.7983), rel=1e-6)
    assert "G0" not in whole and "U0" not in fused
    assert fused["S0"] == pytest.approx(max(scattered["S0"] + scattered["G0"], scattered["U0"]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [2, 6])
def test_memory_is_that_of_the_whole_model_with_its_part_of_the_state(way: str, count: int) -> None:
    found = data_parallel(spec_of(count=count))
    parameters, mib = 80_000_000, 2**20
    assert found.problem.devices[0].static == parameters * (2 + 2 + 6)
    answer = solve_run(found.problem.under({GRADIENTS: way, BUCKETS: "4"}), 1, effort=1.0)
    state = parameters * 6 if way == WHOLE else 0
    assert answer.peak_memory[0] == 800 * mib + 10 * mib + state
    written = found.on_every_gpu(answer.problem)
    assert [device.name for device in written.devices] == ["gpu0", "gpu0 network", "gpu1", "gpu1 network"]
    assert written.devices[2].memory == 8 * 2**30 - parameters * 10


def test_where_the_whole_state_does_not_fit_slices_do() -> None:
    assert 80_000_000 * 16 + 810 * 2**20 > 1.9 * 2**30 > 80_000_000 * 10 + 810 * 2**20
    found = data_parallel(spec_of(memory="1.9 GiB"))
    answer = solve_run(found.problem, 1, effort=2.0)
    assert answer.choices[GRADIENTS] != WHOLE
    row = next(row for row in answer.solver["options"] if row["option"] == WHOLE)
    assert row["bound"] is None or row["makespan"] is None


@pytest.mark.slow
def test_gathers_run_beside_the_next_step() -> None:
    found = data_parallel(spec_of())
    taken = {GRADIENTS: SCATTERED, BUCKETS: "8"}
    steady = solve_run(found.problem.under(taken), 6, objective="rate", effort=1.0)
    times = under(found, SCATTERED, 8)
    computed = sum(seconds for name, seconds in times.items() if name[0] in "FBU")
    assert not violations(steady)
    assert steady.value < solve_run(found.problem.under(taken), 1, effort=1.0).makespan
    assert computed <= steady.value * (1 + 1e-9)


@pytest.mark.slow
def test_the_bound_on_all_is_below_every_assignment() -> None:
    found = data_parallel(spec_of(device=", bandwidth: 4 GB/s, latency: 20 us"))
    bound = bound_of(found.problem, Run.of(found.problem, 1), "makespan")
    for options in found.problem.assignments:
        assert bound <= solve_run(found.problem.under(options), 1, effort=0.1).makespan * (1 + 1e-9)
    assert any("takes no time" in note for note in found.notes)


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("training: {micro_batches: 2}", "inference: {micro_batches: 2}", "inference has no gradients to sum"),
    ("micro_batches: 2", "micro_batches: 3", "3 micro-batches cannot be divided over 2 GPUs"),
    ("micro_batches: 2}", "micro_batches: 2, optimizer: adama}", "optimizer is adama"),
    ("gpus: 2", "gpus: 1", "cluster.gpus is 1"),
    ("memory: 8 GiB", "memory: 1 GiB", "needs .* more than there is"),
])
def test_why_a_spec_is_not_trained_so(old: str, new: str, reason: str) -> None:
    spec = parse_spec(SPEC.format(gpus=2, count=2, memory="8 GiB", device=", device: v100").replace(old, new))
    assert why_not_data_parallel(spec)
    with pytest.raises(ValueError, match=reason):
        data_parallel(spec)


def test_the_ways_are_among_the_programs_that_passes_reach() -> None:
    """That they leave the values as they are is what the passes are tested for."""
    reached = [found.program for found in schedules(adam("adam", 2, (4,))).schedules]
    rows = {tuple(stage.kind for stage in program.stages): program for program in reached}
    assert any("all_reduce" in kinds for kinds in rows)
    scattered = next(program for kinds, program in rows.items()
                     if kinds[0] == "reduce_scatter" and kinds[-1] == "all_gather" and kinds.count("all_gather") == 1)
    assert all(scattered.tensors[name].layout == "sliced" for name in ("weight.mean", "weight.square"))
    fused = [{leaf.kind for leaf in program.stages[0].leaves()} for program in reached
             if [stage.kind for stage in program.stages] == ["fused"]]
    assert any({"reduce_scatter", "update", "all_gather"} <= leaves for leaves in fused)
