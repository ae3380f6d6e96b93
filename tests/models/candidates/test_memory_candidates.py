"""A spec that lets memory be decided: the placement it adds, as search and judge see it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import strategies as st

import weft
from tests.support.examples import for_all
from weft.app.lib.case import case_of
from weft.models.candidates.memory_candidates import decided_candidates, decided_least_period, spec_candidates
from weft.models.spec.spec import SpecError, parse_spec
from weft.models.tensor_parallel.shapes import together
from weft.solver.placement.memory.plan_memory import NoMemoryPlan
from weft.solver.step.search import solve

_SPEC = """
name: memory
model:
  layers:
    - {name: in, forward: 1 ms, backward: 2 ms, parameters: 1000, activation_memory: 2 MiB, output: 1 MiB}
    - {name: block, repeat: 6, forward: 2 ms, backward: 4 ms, parameters: 2000, activation_memory: 40 MiB,
       output: 1 MiB, workspace: 3 MiB}
    - {name: out, forward: 1 ms, backward: 2 ms, parameters: 1000, activation_memory: 2 MiB, output: 0}
cluster: {gpus: 2, memory: 180 MiB, reserve: 4 MiB, bandwidth: 40 GB/s}
training: {micro_batches: 8, micro_batch_size: 1}
placement: {shapes: [chain], backward: [full], memory: decide}
"""


def test_decided_chains_are_further_placements_and_the_faster_ones() -> None:
    spec = parse_spec(_SPEC)
    found = spec_candidates(spec)
    decided, ahead = found[-2:]
    assert [candidate.decided is not None for candidate in found[:-2]] == [False] * (len(found) - 2)
    plans = [decided.decided, ahead.decided]
    assert [plan.problem.ahead for plan in plans if plan is not None] == [0, 1]
    whole = sum(block.duration for block in decided.problem.blocks)
    assert whole > 0.042 and any("recomputed" in note for note in decided.notes)  # 42 ms without second forwards
    schedule = weft.solve(spec, effort=20.0)
    assert not weft.check(schedule)
    plain = weft.solve(parse_spec(_SPEC.replace(", memory: decide", "")), effort=20.0)
    assert schedule.makespan < plain.makespan
    assert "memory decided" in schedule.solver["placement"]


def test_blocks_hold_what_the_plan_says() -> None:
    """Forward takes, backward gives back; buffers and workspaces are there for as long as a block runs."""
    problem = decided_candidates(parse_spec(_SPEC))[0].problem
    for stage in range(2):
        forward, backward = (problem.blocks[problem.index[f"{letter}{stage}"]] for letter in "FB")
        assert forward.memory[0] == -backward.memory[0] > 0
        assert backward.workspace[0] >= forward.workspace[0] == 3 * 2**20
    capacity = problem.devices[0].memory
    first = problem.blocks[problem.index["F0"]], problem.blocks[problem.index["B0"]]
    assert capacity is not None and 2 * first[0].memory[0] + first[1].workspace[0] <= capacity


def test_where_only_decided_memory_fits_it_is_the_answer() -> None:
    tight = _SPEC.replace("180 MiB", "80 MiB")
    assert all(candidate.decided is not None for candidate in spec_candidates(parse_spec(tight)))


# -- offload ---------------------------------------------------------------------------------------------------------

_HOST = _SPEC.replace("repeat: 6", "repeat: 12").replace(
    "{gpus: 2, memory: 180 MiB, reserve: 4 MiB, bandwidth: 40 GB/s}",
    "{gpus: 4, memory: 300 MiB, reserve: 4 MiB, bandwidth: 40 GB/s, host_bandwidth: 25 GB/s}").replace(
    "micro_batches: 8", "micro_batches: 16")


@pytest.mark.slow
def test_offloading_makes_a_cap_cheaper_than_recomputing_or_fewer_micro_batches_in_flight() -> None:
    """12 blocks of 39 MiB on 4 GPUs of 300 MiB: the first two GPUs hold 4 and 3 micro-batches at once."""
    schedule = weft.solve(parse_spec(_HOST), effort=30.0)
    assert not weft.check(schedule) and schedule.gap == 0
    assert schedule.solver["placement"].endswith("memory decided with offload, room for 2 copies")
    stages = schedule.solver["memory_plan"]["stages"]
    assert [len(stage["offloaded"]["operators"]) for stage in stages] == [3, 2, 0, 0]
    assert [len(stage["recomputed"]["operators"]) for stage in stages] == [0, 0, 0, 0]
    assert [stage["operators"] for stage in stages] == [8, 6, 6, 7]
    without = weft.solve(parse_spec(_HOST.replace(", host_bandwidth: 25 GB/s", "")), effort=30.0)
    assert "memory decided" in without.solver["placement"]  # recomputing is what is left
    assert schedule.makespan < 0.92 * without.solver["bound_over_placements"]
    # Nothing is slower than with memory for all: 16 micro-batches of the longest stage, and the way through the others.
    roomy = weft.solve(parse_spec(_HOST.replace("300 MiB", "3000 MiB")), effort=5.0)
    assert schedule.makespan == pytest.approx(roomy.makespan, rel=1e-6)


def test_offloaded_bytes_leave_and_come_back_in_the_time_of_the_host_s_bandwidth() -> None:
    decided, recomputing = decided_candidates(parse_spec(_HOST), every=False)
    assert decided.decided is not None and recomputing.decided is not None
    assert "offload" not in recomputing.decided.modes and not recomputing.problem.links
    problem = decided.problem
    assert [(link.name, link.source, link.target) for link in problem.links] == [
        (name, gpu, gpu) for gpu in (0, 1) for name in (f"gpu{gpu} to host", f"host to gpu{gpu}")]
    for s, count in ((0, 3), (1, 2)):
        out, back, backward, forward = (problem.blocks[problem.index[name]]
                                        for name in (f"F{s} out", f"F{s} in", f"B{s}", f"F{s}"))
        size = count * 39 * 2**20
        assert out.memory == (-size,) and back.memory == (size,) and forward.memory[0] > size
        assert sum(block.memory[0] for block in (out, back, backward, forward)) == 0
        assert out.after[0].lag == backward.after[-1].lag == pytest.approx(size / 25e9, abs=2e-9)
        assert out.duration == back.duration == 1e-9


def test_plans_with_more_room_are_offered_too() -> None:
    """Stages whose copies take longer than a forward, or that wait for messages, are faster with room for that."""
    every = [candidate.decided for candidate in decided_candidates(parse_spec(_HOST.replace("300 MiB", "200 MiB")))]
    rooms = {(plan.problem.ahead, plan.problem.copy_buffers, "offload" in plan.modes): plan.time for plan in every
             if plan is not None}
    assert len(rooms) == len(every) and {(0, 2, True), (1, 3, True), (0, 2, False), (1, 2, False)} <= set(rooms)
    assert rooms[0, 2, True] == min(rooms.values()) and rooms[0, 2, False] <= rooms[1, 2, False]


@pytest.mark.slow
def test_reports_say_what_is_offloaded(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(_HOST)
    found = weft.estimate(path)
    assert "3 (117.0 MiB)" in str(found) and "offload buffers" in str(found)
    memory = found.to_json()["memory_decided"][0]["stages"][0]["memory"]
    assert memory["offload buffers"] == 2 * 117 * 2**20 and memory["activations"] == 4 * 6 * 2**20
    schedule = weft.solve(path, effort=5.0)
    assert re.search(r"3 offloaded \(117\.0 MiB, 4\.9 ms each way\); at its peak (30|36)\.0 MiB kept, 234\.0 MiB to be "
                     "offloaded or back", weft.explain(schedule).text)  # there are several optima
    assert "3 + 2 + 0 + 0 offloaded" in str(weft.compare(path, effort=5.0))


# -- a bound over all placements -------------------------------------------------------------------------------------

_FAMILY = """
name: a model that is split in every way
model: {family: gpt, layers: 4, hidden: 256, heads: 4, vocabulary: 4096, sequence: 128}
costs: roofline
cluster: {gpus: 2, memory: 2 GiB, bandwidth: 100 GB/s, device: v100, host_bandwidth: 12 GB/s}
training: {micro_batches: 4, micro_batch_size: 2}
placement: {shapes: [chain, tensor], backward: [full], memory: decide}
"""


def test_the_bound_over_all_placements_is_the_least_of_both_families() -> None:
    spec = parse_spec(_FAMILY)
    found = together(spec)
    assert found is not None
    least = decided_least_period(spec)
    case = case_of(spec)
    assert case.least_period is not None and 0 < case.least_period <= min(found[0].least_makespan(4) / 4, least)
    schedule = weft.solve(spec, effort=3.0)
    bound = schedule.solver["bound_over_any_placement"]
    assert 0 < bound <= schedule.makespan and bound == pytest.approx(4 * case.least_period)
    for candidate in decided_candidates(spec):
        busiest = max(sum(candidate.problem.blocks[i].duration for i in row) for row in candidate.problem.blocks_on)
        assert least <= busiest * (1 + 1e-9)


@for_all(st.data(), tries=12)
def test_no_schedule_of_a_decided_chain_is_below_the_family_s_bound(data: st.DataObject) -> None:
    """Whatever room a plan leaves, and however few micro-batches run."""
    def layer(name: str) -> str:
        forward, backward, kept, output = (data.draw(st.integers(1, most)) for most in (5, 9, 60, 4))
        return (f"    - {{name: {name}, forward: {forward} ms, backward: {backward} ms, parameters: 1000, "
                f"activation_memory: {kept} MiB, output: {output} MiB}}")

    count = data.draw(st.integers(3, 6))
    head, tail = _HOST.split("  layers:\n")[0], _HOST[_HOST.index("cluster:"):]
    text = "\n".join([head + "  layers:", *(layer(f"l{k}") for k in range(count)), tail])
    micro_batches, gpus = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 3))
    spec = parse_spec(text.replace("300 MiB", f"{data.draw(st.integers(60, 240))} MiB").replace(
        "gpus: 4", f"gpus: {gpus}").replace("micro_batches: 16", f"micro_batches: {micro_batches}"))
    least = decided_least_period(spec)
    try:
        found = decided_candidates(spec)
    except NoMemoryPlan:
        return
    for candidate in found:
        plan = candidate.decided
        assert plan is not None and plan.fits
        loads = [sum(candidate.problem.blocks[i].duration for i in row if candidate.problem.blocks[i].kind != "other")
                 for row in candidate.problem.blocks_on]
        # A stage may be no more than what one layer gives to the next: no time, but a block takes a nanosecond.
        assert loads == pytest.approx([max(2, stage.device) * 1e-9 for stage in plan.stages])
        schedule = solve(candidate.problem, micro_batches, effort=0.3)
        assert schedule.makespan >= micro_batches * least * (1 - 1e-9)
        assert schedule.makespan_bound <= schedule.makespan


def test_a_stage_of_no_time_has_blocks_of_a_nanosecond() -> None:
    """Three layers on three GPUs, of which the last takes longer than the others together: the GPU in the middle holds
    what the second gives to it, and does nothing."""
    layers = "".join(f"    - {{name: l{k}, forward: {time} ms, backward: {time} ms, parameters: 1000, "
                     "activation_memory: 2 MiB, output: 1 MiB}\n" for k, time in enumerate((1, 1, 7)))
    head, tail = _HOST.split("  layers:\n")[0], _HOST[_HOST.index("cluster:"):].replace("gpus: 4", "gpus: 3")
    for candidate in decided_candidates(parse_spec(f"{head}  layers:\n{layers}{tail}")):
        assert candidate.decided is not None
        assert [stage.device for stage in candidate.decided.stages] == [4_000_000, 0, 14_000_000]
        middle = [block.duration for block in candidate.problem.blocks if block.devices == (1,)]
        assert middle == [1e-9, 1e-9]
        schedule = solve(candidate.problem, 4, effort=1.0)
        assert schedule.gap == 0 and schedule.makespan == pytest.approx(0.06 + 4 * 2**20 / 40e9)  # four messages


def test_a_family_that_cannot_fit_says_nothing_about_the_bound() -> None:
    assert decided_least_period(parse_spec(_SPEC.replace("180 MiB", "30 MiB"))) == float("inf")


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new", "message"), [
    ("micro_batch_size: 1", "micro_batch_size: 1, recompute: true", "leave one of them out"),
    ("memory: 180 MiB", "memory: [180 MiB, 90 MiB]", "GPUs of equal memory"),
    ("training: {micro_batches: 8, micro_batch_size: 1}", "inference: {micro_batches: 8, micro_batch_size: 1}",
     "inference keeps nothing"),
])
def test_what_cannot_be_decided_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_candidates(parse_spec(_SPEC.replace(old, new)))
