"""DynaPipe: cycles in which every device runs one forward and one backward, with as many micro-batches in flight as
memory allows.

Jiang et al., "DynaPipe: Optimizing Multi-task Training through Dynamic Pipelines", EuroSys 2024, section 5 (adaptive
scheduling), and ``cyclic_schedule.py`` of its repository. Inputs that arrive in a cycle can be used in the next one.
Each device then runs the first micro-batch that waits at each of its stages, backwards and forwards by turns, older
micro-batches first. A micro-batch that is new to a device starts there only if the device's memory has room for its
forward, and only a limited number may be in flight. More of them are begun than 1F1B has, so that a device whose input
is late has another one: the paper's safety stock. On p uniform stages of a chain each device is idle for (p - 1)(F +
B), as in 1F1B; device r stores up to 2 (p - r) - 1 micro-batches if memory has room.

Several limits on micro-batches in flight are tried (the repository's ``max_otf_microbatches``), including the program's
default of none; the shortest that fits the devices' memory is taken.

The paper's micro-batches are of unequal lengths. Cycles have no times, so they are the same; the number in flight is
limited by the memory of these very micro-batches (:func:`orders_of_run`). The order of their injection is chosen before
(section 5): they are clustered by their time, and of all permutations of the three or four clusters the one whose
schedule is shortest is kept (:func:`injections`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations
from typing import TypeAlias

from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import Row, require_training
from weft.solver.baselines.lib.choosing import best_of
from weft.solver.baselines.lib.extend import extended
from weft.solver.control.clock import checkpoint
from weft.solver.pipeline import Pipeline
from weft.solver.problem import Problem

#: The amount that a block of a micro-batch takes on a device when it starts, and its change of the level once it has
#: ended: (device, block, micro-batch) in whole numbers.
OfEach: TypeAlias = Callable[[int, int, int], tuple[int, int]]
#: The number of clusters of micro-batches by time.
_CLUSTERS = 4


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. Any training pipeline; a split backward runs its parts back to back.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else, or if memory leaves it stuck.
    """
    pipeline = require_training(problem)
    amounts = Amounts.of(problem)

    def of_all(device: int, block: int, micro_batch: int) -> tuple[int, int]:
        return amounts.take[device][block], amounts.change[device][block]

    makers = [partial(_rows, pipeline, amounts.room, of_all, limit=limit)
              for limit in limits_in_flight(len(problem.devices), micro_batches)]
    return best_of(problem, micro_batches, [
        partial(extended, problem, make=maker) for maker in makers])


def limits_in_flight(devices: int, micro_batches: int) -> list[int]:
    """The limits on micro-batches in flight that are tried; the first is none."""
    return [micro_batches, *(limit for limit in (2 * devices, devices, -(-devices // 2)) if limit < micro_batches)]


def orders_of_run(problem: Problem, room: Sequence[int | None], amounts: OfEach, micro_batches: int,
                  limit: int) -> list[Row] | None:
    """Per-device orders of micro-batches that differ: ``problem`` is any one's, ``amounts`` are those of each, and
    ``room`` is each device's, in the same whole numbers.

    At most ``limit`` are in flight on a device. ``None`` if memory leaves it stuck; raises
    :class:`~weft.solver.baselines.lib.base.NotApplicable` like :func:`orders`.
    """
    return _rows(require_training(problem), room, amounts, micro_batches, limit=limit)


def injections(times: Sequence[float]) -> Iterator[list[int]]:
    """Orders in which to inject micro-batches with these ``times``, as indices into ``times``.

    Micro-batches are sorted, and cut into clusters at the largest differences; all permutations of the clusters.
    """
    ranked = sorted(range(len(times)), key=lambda m: times[m])
    steps = sorted(range(1, len(ranked)), key=lambda place: times[ranked[place - 1]] - times[ranked[place]])
    borders = sorted(place for place in steps[:_CLUSTERS - 1] if times[ranked[place]] > times[ranked[place - 1]])
    found = [ranked[first:last] for first, last in zip([0, *borders], [*borders, len(ranked)], strict=True)]
    for arranged in permutations(found):
        yield [m for cluster in arranged for m in cluster]


def _rows(pipeline: Pipeline, room_of: Sequence[int | None], amounts: OfEach, micro_batches: int, *,
          limit: int) -> list[Row] | None:
    """The orders with at most ``limit`` micro-batches in flight on a device, or None if memory leaves it stuck."""
    stages = pipeline.stages
    steps = [(stage.forward,) for stage in stages] + [stage.blocks[1:] for stage in reversed(stages)]
    on = [[*chunks, *(2 * len(stages) - 1 - s for s in chunks)] for chunks in pipeline.chunks]
    arrived = [0] * len(steps)  # micro-batches that each step can run, and has run
    done = [0] * len(steps)
    arrived[0] = micro_batches
    levels = [0] * len(on)
    begun, finished = [0] * len(on), [0] * len(on)  # the most of any forward and of any backward on a device
    rows: list[Row] = [[] for _ in on]
    while done[-1] < micro_batches:
        checkpoint()
        ran: list[int] = []
        for d, mine in enumerate(on):
            waiting = [(done[i], i) for i in mine if done[i] < arrived[i]]
            for step in _in_turns(waiting, len(stages)) if len(waiting) > 1 else [i for _, i in waiting]:
                m = done[step]
                if step < len(stages) and m >= begun[d]:  # new to the device
                    room = room_of[d]
                    need = levels[d] + amounts(d, steps[step][0], m)[0]
                    if (room is not None and need > room) or begun[d] - finished[d] >= limit:
                        continue
                for block in steps[step]:
                    rows[d].append((block, m))
                    levels[d] += amounts(d, block, m)[1]
                done[step] += 1
                most = begun if step < len(stages) else finished
                most[d] = max(most[d], m + 1)
                ran.append(step)
        for step in ran:
            if step + 1 < len(steps):
                arrived[step + 1] += 1
        if not ran:
            return None
    return rows


def _in_turns(waiting: list[tuple[int, int]], stages: int) -> list[int]:
    """The steps of ``waiting`` (micro-batch, step), backwards and forwards by turns, a backward first."""
    forwards = sorted(entry for entry in waiting if entry[1] < stages)
    backwards = sorted(entry for entry in waiting if entry[1] >= stages)
    turns = [entry for pair in zip(backwards, forwards, strict=False) for entry in pair]
    both = min(len(backwards), len(forwards))
    return [step for _, step in [*turns, *backwards[both:], *forwards[both:]]]
