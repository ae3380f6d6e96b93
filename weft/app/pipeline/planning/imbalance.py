"""Notes on ranks whose compute time or memory differs much, with the cause and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.planning.row import Row
from weft.runtime.captured.captured import Captured, where
from weft.runtime.captured.division import KnownModel
from weft.solver.problem import Problem

#: Ratio of the most to the least loaded rank above which the user is notified.
RATIO = 2.0


def imbalance_notes(problem: Problem, peaks: Sequence[int], captured: KnownModel, row: Row | None,
                    options: PipelineOptions) -> list[str]:
    """A sentence on compute times and one on memory, where the ranks' ratio exceeds :data:`RATIO`. ``peaks``: bytes of
    each rank's peak; ``row``: the operators, if they were measured."""
    loads = [sum(block.duration for block in problem.blocks if block.devices == (rank,)) for rank in range(len(peaks))]
    found = []
    if (most := _most(loads)) is not None:
        found.append(f"{_comparison(*most, 'computes')} ({loads[most[0]] * 1e3:.2f} against "
                     f"{loads[most[1]] * 1e3:.2f} ms a micro-batch): "
                     f"{_why(captured, row, None if row is None else row.seconds, options, 'time')}")
    if (most := _most(peaks)) is not None:
        found.append(f"{_comparison(*most, 'holds')} ({peaks[most[0]] / 2**20:.2f} against "
                     f"{peaks[most[1]] / 2**20:.2f} MiB): "
                     f"{_why(captured, row, None if row is None else row.weights, options, 'weights')}" + (
                         "; memory= limits each rank" if options.memory is None else ""))
    return found


def _most(amounts: Sequence[float]) -> tuple[int, int, float] | None:
    """The ranks with the largest and the smallest amount and their ratio, if it exceeds :data:`RATIO`."""
    most, least = (pick(range(len(amounts)), key=amounts.__getitem__) for pick in (max, min))
    ratio = amounts[most] / max(amounts[least], 1e-12)
    return (most, least, ratio) if ratio > RATIO else None


def _comparison(most: int, least: int, ratio: float, does: str) -> str:
    times = f"{ratio:.1f} times" if ratio < 1000 else "over 1000 times"
    return f"rank {most} {does} {times} as {'long' if does == 'computes' else 'much'} as rank {least}"


def _why(captured: KnownModel, row: Row | None, amounts: Sequence[float] | None, options: PipelineOptions,
         what: str) -> str:
    for name in ("plan", "cuts", "split"):
        if getattr(options, name) is not None:
            return f"{name} says where stages begin; " + ("name other submodules" if name == "split" else
                                                          "left out, cuts are searched for")
    if row is None or amounts is None or not isinstance(captured, Captured):
        return "the cut was chosen by the time of a step; cuts= says another"
    ends = [0, *(i for i, size in enumerate(row.sizes) if size is not None and i >= max(row.first, 1)), len(row.sizes)]
    a, b = max(pairwise(ends), key=lambda piece: sum(amounts[piece[0]:piece[1]]))
    share = sum(amounts[a:b]) / max(sum(amounts), 1e-12)
    if share < 1 / RATIO:
        return "the cut was chosen by the time of a step; cuts= says another"
    largest = captured.calls[max(range(a, b), key=amounts.__getitem__)]
    alone = f"the operator {largest.name}{where(largest)}" if amounts[captured.calls.index(largest)] > sum(
        amounts[a:b]) / RATIO else f"what lies around {largest.name}{where(largest)}, {b - a} operators,"
    return (f"{alone} has {share:.0%} of the {what}, and no cut can part it; make several modules of it, cut by "
            "split=, or start fewer ranks")
