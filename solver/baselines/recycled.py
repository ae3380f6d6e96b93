"""3F1B: pipelines that run several times without gradients before they run with them, as AlphaFold 2 trains.

Lin et al., "nnScaler: Constraint-Guided Parallelization Plan Generation for Deep Learning Training", OSDI 2024 (and
SuperScaler before it): each device has the same layers in every pass, and once a micro-batch runs each of its forwards
and one backward, in the same turn: three forwards and one backward with two recycles. The micro-batch of each of them
follows from its arrival. Here for any number of passes and stages, wherever they are on the devices.

Method: every device repeats its forwards, first to last, then its backwards, without a pause in between; a device
begins when its first forward of the first micro-batch can arrive. Each block of the first micro-batch then runs at its
first turn after all its inputs, and micro-batches follow a period apart. That timetable gives the order; times are
those of the order. A split backward runs back to back, or its weight gradients in the turn after all backwards.

If every device has as many stages as any other, micro-batches can also pass in groups, as in interleaved 1F1B
(:mod:`weft.solver.baselines.interleaved`): a whole group through one stage after the other, backwards in the same
groups, and in the steady state as many forwards for each backward as there are in all; before its first backward a
device is ahead by about as many for every device behind it. Of all these the shortest that fits the devices' memory is
taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from weft.solver.baselines.lib.base import NotApplicable, Row
from weft.solver.baselines.lib.choosing import Maker, best_of
from weft.solver.problem import BlockKind, Problem
from weft.solver.ticks import heads_and_tails


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A chain of forwards, of which the last have gradients, in one chain back.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else, including pipelines whose stages
    all have gradients: those are 1F1B's.
    """
    chain = _chain(problem)
    makers: list[Maker] = [partial(_rows, problem, chain, weights_last=late) for late in (False, True)]
    p = len(problem.devices)
    if len({sum(_is_forward(problem, i) for i in row) for row in problem.blocks_on}) == 1:
        passes = sum(map(partial(_is_forward, problem), chain)) // sum(map(partial(_is_gradient, problem), chain))
        makers += [partial(_grouped, problem, chain, group=group, slope=slope)
                   for group in sorted({p, min(2 * p, micro_batches)}) for slope in (passes, passes + 1, passes - 1)]
    return best_of(problem, micro_batches, makers, [])


def _rows(problem: Problem, chain: Sequence[int], micro_batches: int, *, weights_last: bool) -> list[Row]:
    offsets, period = _timetable(problem, chain, weights_last)
    return [sorted(((i, m) for i in row for m in range(micro_batches)),
                   key=lambda entry: (offsets[entry[0]] + entry[1] * period, entry))
            for row in problem.blocks_on]


def _grouped(problem: Problem, chain: Sequence[int], micro_batches: int, *, group: int, slope: int) -> list[Row]:
    """Groups of micro-batches; a device is ahead of its first backward by ``slope`` forwards for each device behind."""
    place = {i: n for n, i in enumerate(chain)}
    last = next(n for n, i in enumerate(chain) if not _is_forward(problem, i)) - 1
    order = {row_device: n for n, row_device in enumerate(dict.fromkeys(problem.blocks[i].devices[0] for i in chain))}
    groups = [range(first, min(first + group, micro_batches)) for first in range(0, micro_batches, group)]
    rows: list[Row] = []
    for device, row in enumerate(problem.blocks_on):
        stages = sorted(row, key=place.__getitem__)
        ahead = [(i, m) for some in groups for i in stages if _is_forward(problem, i) for m in some]
        behind = [(i, m) for some in groups for i in stages if _is_gradient(problem, i) for m in some]
        weights: dict[int, list[int]] = {}
        for before, w in pairwise(stages):  # a weight gradient stands behind its input gradient
            if problem.blocks[w].kind == BlockKind.WEIGHT_GRAD and _is_gradient(problem, before):
                weights[before] = [w]
        rest = [w for w in stages if problem.blocks[w].kind == BlockKind.WEIGHT_GRAD
                and [w] not in weights.values()]
        first = 1 + max((n for n, (i, m) in enumerate(ahead) if place[i] <= last and m == 0), default=-1)
        start = first + slope * (len(order) - 1 - order[device])
        done = min(len(ahead), start)
        found = ahead[:done]
        for n, (i, m) in enumerate(behind):
            found += [(i, m), *((w, m) for w in weights.get(i, ()))]
            until = min(len(ahead), start + (n + 1) * len(ahead) // len(behind))
            found += ahead[done:until]
            done = until
        found += ahead[done:] + [(w, m) for w in rest for m in range(micro_batches)]
        rows.append(found)
    return rows


def _timetable(problem: Problem, chain: Sequence[int], weights_last: bool) -> tuple[dict[int, float], float]:
    """The start of each block of the first micro-batch, and the interval between micro-batches."""
    blocks = problem.blocks
    period = max(sum(blocks[i].duration for i in row) for row in problem.blocks_on)
    place = {i: n for n, i in enumerate(chain)}
    begins = heads_and_tails(problem)[0]
    phase: dict[int, float] = {}
    for row in problem.blocks_on:
        at = min((begins[i] for i in row), default=0.0)
        for i in sorted(row, key=lambda i: (weights_last and blocks[i].kind == BlockKind.WEIGHT_GRAD, place[i])):
            phase[i] = at % period
            at += blocks[i].duration
    starts: dict[int, float] = {}
    for i in chain:
        arrives = max((starts[problem.index[wait.block]] + blocks[problem.index[wait.block]].duration + wait.lag
                       for wait in blocks[i].after), default=0.0)
        turns = math.ceil((arrives - phase[i]) / period - 1e-9)
        starts[i] = phase[i] + max(0, turns) * period
    return starts, period


def _is_forward(problem: Problem, i: int) -> bool:
    return problem.blocks[i].kind == BlockKind.FORWARD


def _is_gradient(problem: Problem, i: int) -> bool:
    return problem.blocks[i].kind in (BlockKind.BACKWARD, BlockKind.INPUT_GRAD)


def _chain(problem: Problem) -> list[int]:
    """All blocks in the order of one micro-batch, each stage's weight gradient after its input gradient."""
    blocks = problem.blocks
    if any(len(block.devices) > 1 for block in blocks):
        raise NotApplicable("it needs a pipeline, but there are blocks on several devices")
    if any(wait.distance for block in blocks for wait in block.after):
        raise NotApplicable("it needs a pipeline, but blocks wait for earlier micro-batches")
    order = problem.topological_order
    forwards = [i for i in order if _is_forward(problem, i)]
    gradients = [i for i in order if _is_gradient(problem, i)]
    weights = [i for i in order if blocks[i].kind == BlockKind.WEIGHT_GRAD]
    if len(forwards) + len(gradients) + len(weights) < len(blocks):
        raise NotApplicable("it needs a pipeline of forwards, backwards and weight gradients only")
    # A stage 0 may have its weight gradient alone; then its gradients are one fewer.
    if not gradients or len(forwards) - len(gradients) < 2:
        raise NotApplicable("it needs stages whose forwards have no gradients, before those that have them")
    for before, i in pairwise([*forwards, *gradients]):
        if not any(problem.index[wait.block] == before for wait in blocks[i].after):
            raise NotApplicable(f"it needs a pipeline, but {blocks[i].name!r} does not wait for "
                                f"{blocks[before].name!r}")
    behind: dict[int, list[int]] = {}
    for w in weights:
        waited = [problem.index[wait.block] for wait in blocks[w].after]
        behind.setdefault(next((i for i in waited if _is_gradient(problem, i)), gradients[-1]), []).append(w)
    return [*forwards, *(one for i in gradients for one in (i, *behind.get(i, ())))]
