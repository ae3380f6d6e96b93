"""Seq1F1B on p devices, k chunks of the sequence, f and b the times of a chunk on a stage; and what it recognises."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.builders import chain, in_chunks, loop, pipeline
from weft.solver import BlockKind, Dependency, NotApplicable, Problem, baseline, validate
from weft.solver.baselines.seq1f1b import SequencePipeline


def names(problem: Problem) -> list[list[list[str]]]:
    found = SequencePipeline.of(problem)
    return [[[problem.blocks[block].name for block in piece.blocks] for piece in row] for row in found.pieces]


@pytest.mark.parametrize(("f", "b"), [(1, 2), (3, 4)])
@pytest.mark.parametrize(("p", "k", "m"), [(2, 2, 4), (4, 2, 3), (4, 4, 8), (8, 3, 5), (3, 5, 1)])
def test_one_stage_a_device(p: int, k: int, m: int, f: int, b: int) -> None:
    """Idle (p - 1)(f + b), a k-th of 1F1B's; the first device holds p + k - 1 chunks of 1F1B's p k."""
    schedule = baseline("seq1f1b", in_chunks(chain(p), k, forward=f, backward=b), m)
    assert schedule.makespan == k * m * (f + b) + (p - 1) * (f + b)
    assert schedule.peak_memory[0] == min(p + k - 1, k * m)
    whole = baseline("1f1b", pipeline(chain(p), forward=k * f, backward=k * b), m)
    assert schedule.makespan - k * m * (f + b) == (whole.makespan - k * m * (f + b)) / k


@pytest.mark.parametrize(("p", "k"), [(2, 2), (4, 2), (4, 3), (8, 4)])
@pytest.mark.parametrize("chunks", [2, 3])
def test_several_stages_a_device(p: int, k: int, chunks: int) -> None:
    schedule = baseline("seq1f1b", in_chunks(loop(p, chunks), k), 8)
    assert schedule.makespan == 3 * chunks * k * 8 + 3 * (p - 1)


@pytest.mark.parametrize("stages", [chain(4), loop(4)])
def test_weight_gradients_put_off(stages: list[int]) -> None:
    """Idle (p - 1)(f + i - w), as ZB-H1 with chunks for micro-batches."""
    schedule = baseline("seq1f1b", in_chunks(stages, 2, forward=3, split=(2, 2)), 6)
    assert schedule.makespan == len(stages) // 4 * 2 * 6 * 7 + 3 * (3 + 2 - 2)


def test_memory_decides_among_groups() -> None:
    for cap in (26, 14, 8):
        validate(baseline("seq1f1b", in_chunks(loop(4), 2, memory=cap), 8))


def test_recognised_in_any_order_of_file_and_with_more_waits() -> None:
    problem = in_chunks(loop(3), 3, split=(1, 1))
    expected = names(problem)
    assert expected[1][2] == ["F1.2", "B1.2", "W1.2"]
    blocks = list(problem.blocks)
    random.Random(0).shuffle(blocks)
    assert names(replace(problem, blocks=tuple(blocks))) == expected
    more = {"F2.2": ("F1.0", "F2.0"), "B1.0": ("B1.2", "F3.1"), "W2.0": ("B3.1",)}  # all of them follow
    richer = tuple(replace(block, after=block.after + tuple(map(Dependency, more.get(block.name, ()))))
                   for block in problem.blocks)
    assert names(replace(problem, blocks=richer)) == expected


def test_stage_0_may_owe_no_input_gradient() -> None:
    problem = in_chunks(chain(3), 2, split=(1, 1))
    kept = tuple(replace(block, after=tuple(Dependency("B1." + block.name[-1]) for _ in block.after))
                 if block.name.startswith("W0") else block
                 for block in problem.blocks if not block.name.startswith("B0"))
    problem = replace(problem, blocks=kept)
    assert names(problem)[0] == [["F0.0", "W0.0"], ["F0.1", "W0.1"]]
    for m in (1, 5):
        validate(baseline("seq1f1b", problem, m))


def without(problem: Problem, block: str, waits: str) -> Problem:
    return replace(problem, blocks=tuple(
        replace(item, after=tuple(wait for wait in item.after if (item.name, wait.block) != (block, waits)))
        for item in problem.blocks))


@pytest.mark.parametrize(("problem", "message"), [
    (without(in_chunks(chain(3), 2), "F1.1", "F1.0"), "chunks of their sequence"),
    (without(in_chunks(chain(3), 2), "B1.0", "B1.1"), "a backward for each forward"),
    (without(in_chunks(chain(3), 2), "B2.1", "F2.1"), "block 'B2.1' does not wait for the last forward"),
    (replace(in_chunks(chain(3), 2), blocks=tuple(
        block for block in in_chunks(chain(3), 2).blocks if block.kind == BlockKind.FORWARD)), "it needs backwards"),
])
def test_it_says_what_it_needs(problem: Problem, message: str) -> None:
    with pytest.raises(NotApplicable) as caught:
        baseline("seq1f1b", problem, 4)
    assert message in str(caught.value)
