"""Placements on groups of GPUs with options for their collectives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from weft.models.candidates.stages import Backward
from weft.models.overlap.placement import OverlapPlacement
from weft.models.overlap.together import SLICES, WHOLE, overlap_of
from weft.models.overlap.ways import Ways
from weft.models.spec.spec import parse_spec
from weft.models.tensor_parallel.shapes import ShapeCandidate, together
from weft.models.tensor_parallel.space import Space
from weft.solver import BlockKind, solve, violations
from weft.solver.choices.solve import solve_run
from weft.solver.judge.choice_rules import violations_of_choice

SMALL = """
name: small
model: {family: gpt, layers: 1, hidden: 2048, heads: 16, sequence: 2048, vocabulary: 512}
costs: roofline
cluster: {gpus: 2, memory: 32 GiB, device: v100}
training: {micro_batches: 4, micro_batch_size: 2}
placement: {shapes: [tensor]}
"""
GROUPS = """
name: groups
model: {family: gpt, layers: 6, hidden: 2048, heads: 16, sequence: 2048, vocabulary: 50000}
costs: roofline
cluster: {gpus: 4, memory: 32 GiB, device: v100, gpus_per_machine: 2}
training: {micro_batches: 4, micro_batch_size: 2}
placement: {shapes: [groups]}
"""


CUT = "rs-c-ag, 2 chunks"


@cache
def listed(text: str) -> tuple[Space, Sequence[ShapeCandidate]]:
    found = together(parse_spec(text))
    assert found is not None
    return found[0], found[1]


def made(text: str, *, backward: Backward = "full", pairs: bool = False, degrees: tuple[int, ...] = ()
         ) -> tuple[ShapeCandidate, OverlapPlacement]:
    space, candidates = listed(text)
    candidate = next(one for one in candidates if one.backward == backward and (
        not degrees or tuple(part.degree for part in one.parts) == degrees))
    found = overlap_of(Ways(space, backward, pairs=pairs), candidate)
    assert found is not None
    return candidate, found


@pytest.mark.slow
def test_the_search_finds_what_looking_at_every_assignment_does() -> None:
    candidate, found = made(SMALL)
    choice, = found.problem.choices
    best = {options[choice]: solve_run(found.problem.under(options), 2, effort=0.3).makespan
            for options in found.problem.assignments}
    assert "none" in best and any("apart" in way for way in best) and any(way.startswith("rs-c-ag") for way in best)
    answer = solve_run(found.problem, 2, effort=2.0)
    assert not violations(answer) and not violations_of_choice(answer, found.problem)
    assert answer.makespan == pytest.approx(min(best.values()))
    assert answer.makespan_bound <= answer.makespan < best["none"]
    plain = solve(candidate.problem, 2, effort=0.3)
    assert best["none"] == pytest.approx(plain.makespan)


def test_apart_a_collective_runs_beside_another_micro_batch() -> None:
    _, found = made(SMALL, backward="split")
    choice, = found.problem.choices
    answer = solve_run(found.problem.under({choice: "apart"}), 4, effort=2.0)
    sent = [operation for operation in answer.operations
            if answer.problem.blocks[operation.block].kind == BlockKind.COLLECTIVE]
    computed = [operation for operation in answer.operations
                if answer.problem.blocks[operation.block].kind != BlockKind.COLLECTIVE]
    assert any(one.micro_batch != other.micro_batch and one.start < other.end and other.start < one.end
               for one in sent for other in computed)
    lane = answer.problem.devices[1]
    assert lane.lane_of == answer.problem.devices[0].name and lane.name.endswith("network")
    written = found.on_every_gpu(answer.problem)
    assert [device.name for device in written.devices] == ["gpu0", "gpu0 network", "gpu1", "gpu1 network"]
    assert all(len(block.devices) == 2 for block in written.blocks)


def test_slices_keep_less_and_are_sent_faster() -> None:
    space, _ = listed(GROUPS)
    candidate, found = made(GROUPS, degrees=(2, 2))
    first, second = candidate.parts
    cut = {f"overlap: stage {part.name}": CUT for part in candidate.parts}
    whole = found.problem.under(found.bare[0]).plain()
    sliced = found.problem.under({**found.bare[0], **cut}).plain()
    for name in ("F0", "F1"):
        assert sliced.blocks[sliced.index[name]].memory[0] < whole.blocks[whole.index[name]].memory[0]
        assert (sliced.blocks[sliced.index[name]].memory[0]
                == -sliced.blocks[sliced.index["B" + name[1]]].memory[0])
    size = 2 * 2048 * 2048 * 2
    lag = space.network.seconds(size // 2, first.gpus, second.gpus)
    gather = space.timer(2)("all_gather", size // 2)
    between = {options: found.problem.under({**found.bare[0], **dict(options)}).plain() for options in (
        tuple(cut.items()), tuple(list(cut.items())[:1]), tuple(list(cut.items())[1:]), (("send", SLICES),))}
    lags = [problem.blocks[problem.index["F1"]].after[0].lag for problem in between.values()]
    assert lags == pytest.approx([lag, lag + gather, lag, lag + gather])
    assert whole.blocks[whole.index["F1"]].after[0].lag == pytest.approx(
        space.network.seconds(size, first.gpus, second.gpus))
    assert found.problem.choices["send"] == (WHOLE, SLICES)


def test_in_pairs_two_micro_batches_are_one() -> None:
    candidate, one = made(SMALL)
    _, two = made(SMALL, pairs=True)
    assert (one.micro_batches, two.micro_batches) == (1, 2)
    bare = two.problem.under(two.bare[0]).plain()
    for block, own in zip(bare.blocks, candidate.problem.blocks, strict=True):
        assert block.duration == pytest.approx(2 * own.duration) and block.memory[0] == 2 * own.memory[0]
        assert block.workspace == own.workspace
    beside = two.problem.under({"overlap: stage 0": "side by side"}).plain()
    assert beside.blocks[0].workspace[0] == 2 * bare.blocks[0].workspace[0]
    assert beside.blocks[0].duration < bare.blocks[0].duration


def test_stages_that_are_many_share_one_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    _, apiece = made(GROUPS, degrees=(2, 2))
    monkeypatch.setattr("weft.models.overlap.together._MOST_CHOICES", 1)
    _, shared = made(GROUPS, degrees=(2, 2))
    assert set(apiece.problem.choices) == {"overlap: stage 0", "overlap: stage 1", "send"}
    assert set(shared.problem.choices) == {"overlap: 2 GPUs", "send"}
    one = shared.problem.under({"overlap: 2 GPUs": CUT, "send": WHOLE}).plain()
    two = apiece.problem.under({"overlap: stage 0": CUT, "overlap: stage 1": CUT, "send": WHOLE})
    assert [block.memory[:1] for block in one.blocks] == [block.memory[:1] for block in two.plain().blocks]
