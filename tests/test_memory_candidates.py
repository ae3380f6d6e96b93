"""A spec that lets memory be decided: the placement it adds, as search and judge see it."""

from __future__ import annotations

import pytest

import weft
from models.memory_candidates import decided_candidate, spec_candidates
from models.spec import SpecError, parse_spec

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


def test_the_decided_chain_is_one_more_placement_and_the_faster_one() -> None:
    spec = parse_spec(_SPEC)
    found = spec_candidates(spec)
    assert [candidate.decided for candidate in found] == [False] * (len(found) - 1) + [True]
    decided = found[-1]
    whole = sum(block.duration for block in decided.problem.blocks)
    assert whole > 0.042 and any("recomputed" in note for note in decided.notes)  # 42 ms without second forwards
    schedule = weft.solve(spec, effort=20.0)
    assert not weft.check(schedule)
    plain = weft.solve(parse_spec(_SPEC.replace(", memory: decide", "")), effort=20.0)
    assert schedule.makespan < plain.makespan
    assert schedule.solver["placement"].endswith("memory decided")


def test_blocks_hold_what_the_plan_says() -> None:
    """Forward takes, backward gives back; buffers and workspaces are there for as long as a block runs."""
    problem = decided_candidate(parse_spec(_SPEC)).problem
    for stage in range(2):
        forward, backward = (problem.blocks[problem.index[f"{letter}{stage}"]] for letter in "FB")
        assert forward.memory[0] == -backward.memory[0] > 0
        assert backward.workspace[0] >= forward.workspace[0] == 3 * 2**20
    capacity = problem.devices[0].memory
    first = problem.blocks[problem.index["F0"]], problem.blocks[problem.index["B0"]]
    assert capacity is not None and 2 * first[0].memory[0] + first[1].workspace[0] <= capacity


def test_where_only_decided_memory_fits_it_is_the_answer() -> None:
    tight = _SPEC.replace("180 MiB", "80 MiB")
    assert [candidate.decided for candidate in spec_candidates(parse_spec(tight))] == [True]


@pytest.mark.parametrize(("old", "new", "message"), [
    ("micro_batch_size: 1", "micro_batch_size: 1, recompute: true", "leave one of them out"),
    ("memory: 180 MiB", "memory: [180 MiB, 90 MiB]", "GPUs of equal memory"),
    ("training: {micro_batches: 8, micro_batch_size: 1}", "inference: {micro_batches: 8, micro_batch_size: 1}",
     "inference keeps nothing"),
])
def test_what_cannot_be_decided_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_candidates(parse_spec(_SPEC.replace(old, new)))
