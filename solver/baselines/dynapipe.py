"""DynaPipe: cycles in which every device runs one forward and one backward, with as many micro-batches in flight as
memory takes.

Jiang et al., "DynaPipe: Optimizing Multi-task Training through Dynamic Pipelines", EuroSys 2024, section 5 (adaptive
scheduling), and ``cyclic_schedule.py`` of its repository. What has arrived in a cycle can run in the next one. Each
device then runs the first that waits at each of its stages, backwards and forwards by turns, older micro-batches first.
A micro-batch that is new to a device starts there only if the device's memory takes what its forward needs, and only so
many may be in flight. More of them are begun than 1F1B has, so that a device whose input is late has another one: what
the paper calls safety stock. On p uniform stages of a chain each device is idle for (p - 1)(F + B), as in 1F1B; device
r holds up to 2 (p - r) - 1 micro-batches where memory has room.

Several limits of what is in flight are tried (the repository's ``max_otf_microbatches``), the program's none among
them; the shortest that fits the devices' memory is taken. The paper also cuts a batch into micro-batches of unlike
sequence lengths and orders these; here all micro-batches are alike.
"""

from __future__ import annotations

from functools import partial

from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import Row, require_backward, require_pipeline
from weft.solver.baselines.lib.choosing import best_of
from weft.solver.baselines.lib.extend import extended
from weft.solver.control.clock import checkpoint
from weft.solver.pipeline import Pipeline
from weft.solver.problem import Problem

__all__ = ["orders"]


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. Any training pipeline; a split backward runs its parts back to back.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else, or if memory leaves it stuck.
    """
    pipeline = require_pipeline(problem)
    require_backward(pipeline)
    amounts = Amounts.of(problem)
    p = len(problem.devices)
    limits = [limit for limit in (2 * p, p, -(-p // 2)) if limit < micro_batches]
    makers = [partial(_rows, pipeline, amounts, limit=limit) for limit in (micro_batches, *limits)]
    return best_of(problem, micro_batches, [
        partial(extended, problem, make=maker) for maker in makers])


def _rows(pipeline: Pipeline, amounts: Amounts, micro_batches: int, *, limit: int) -> list[Row] | None:
    """The orders with at most ``limit`` micro-batches in flight on a device, or None where memory leaves it stuck."""
    stages = pipeline.stages
    steps = [(stage.forward,) for stage in stages] + [stage.blocks[1:] for stage in reversed(stages)]
    on = [[*chunks, *(2 * len(stages) - 1 - s for s in chunks)] for chunks in pipeline.chunks]
    arrived = [0] * len(steps)  # micro-batches that each step can run, and has run
    done = [0] * len(steps)
    arrived[0] = micro_batches
    levels = [0] * len(on)
    rows: list[Row] = [[] for _ in on]
    while done[-1] < micro_batches:
        checkpoint()
        ran: list[int] = []
        for d, mine in enumerate(on):
            for step in _in_turns([(done[i], i) for i in mine if done[i] < arrived[i]], len(stages)):
                m = done[step]
                begun = max(done[i] for i in mine if i < len(stages))
                finished = max((done[i] for i in mine if i >= len(stages)), default=0)
                if step < len(stages) and m >= begun:  # new to the device
                    room = amounts.room[d]
                    need = levels[d] + amounts.take[d][steps[step][0]]
                    if (room is not None and need > room) or begun - finished >= limit:
                        continue
                for block in steps[step]:
                    rows[d].append((block, m))
                    levels[d] += amounts.change[d][block]
                done[step] += 1
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
