"""Published schedules, and greedy ones for any block graph, as per-device orders with times from
:mod:`weft.solver.timing`.

``BASELINES`` lists them by name; :func:`baseline` makes the schedule of one. A published schedule is not adapted, and
whether it fits is for the judge. Only the searches among them (``zb-auto``, ``zb-v-auto``, ``v-block``, ``stream``,
``greedy``, in their own room ``rivals``) consider the devices' capacities, and some whose authors leave sizes open (of
groups, of micro-batches in flight) choose those that fit, if any does.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.solver.baselines.lib.base import Baseline, NotApplicable
from weft.solver.judge.validate import validate
from weft.solver.problem import Problem
from weft.solver.schedule import Operation, Schedule
from weft.solver.timing import time_orders

__all__ = ["BASELINES", "Baseline", "NotApplicable", "baseline", "steady_period"]

_SPLIT_V = "a pipeline with split backwards, two stages a device in a V"
_LOOP = "stages in a loop over the devices"
_BOTH_WAYS = "two training pipelines, one down the devices and one up"

BASELINES: dict[str, Baseline] = {entry.name: entry for entry in (
    Baseline("gpipe", "GPipe", "Huang et al., NeurIPS 2019", "a pipeline", "gpipe"),
    Baseline("1f1b", "1F1B", "Narayanan et al., SOSP 2019; Fan et al., PPoPP 2021",
             "a training pipeline, one stage a device", "one_f_one_b"),
    Baseline("interleaved", "Interleaved 1F1B", "Narayanan et al., SC 2021; Megatron-LM",
             "a training pipeline, " + _LOOP, "interleaved"),
    Baseline("interleaved-zb", "Interleaved ZB", "Qi et al., ICLR 2024; PyTorch",
             "a pipeline with split backwards, " + _LOOP, "interleaved", "zero_bubble_orders"),
    Baseline("seq1f1b", "Seq1F1B", "Sun et al., NAACL 2025",
             "a training pipeline whose micro-batches come in chunks of their sequence", "seq1f1b"),
    Baseline("zb-h1", "ZB-H1", "Qi et al., ICLR 2024", "a pipeline with split backwards, one stage a device",
             "zero_bubble"),
    Baseline("zb-h2", "ZB-H2", "Qi et al., ICLR 2024", "a pipeline with split backwards, one stage a device",
             "zero_bubble", "h2_orders"),
    Baseline("zb-v", "ZB-V", "Qi et al., ICLR 2024", _SPLIT_V, "zb_v"),
    Baseline("zb-auto", "zero bubble, automatic", "Qi et al., ICLR 2024",
             "a pipeline with split backwards, one stage a device", "rivals.zb_auto"),
    Baseline("zb-v-auto", "ZB-V, automatic", "Qi et al., ICLR 2024, and their program", _SPLIT_V, "rivals.zb_v_auto"),
    Baseline("v-min", "V-Min", "Qi et al., NeurIPS 2024", _SPLIT_V, "v_blocks", "min_orders"),
    Baseline("v-half", "V-Half", "Qi et al., NeurIPS 2024", _SPLIT_V, "v_blocks", "half_orders"),
    Baseline("v-block", "building blocks", "Qi et al., NeurIPS 2024", "a training pipeline", "rivals.building_blocks"),
    Baseline("dualpipe-v", "DualPipeV", "DeepSeek-AI, 2024-2025", _SPLIT_V, "dual_pipe", "orders_v"),
    Baseline("dualpipe", "DualPipe", "DeepSeek-AI, 2024", _BOTH_WAYS + ", with split backwards", "dual_pipe"),
    Baseline("chimera", "Chimera", "Li and Hoefler, SC 2021", _BOTH_WAYS, "chimera"),
    Baseline("bitpipe", "BitPipe", "Wu et al., arXiv 2410.19367, 2024",
             _BOTH_WAYS + ", each with several stages a device", "bitpipe"),
    Baseline("hanayo", "Hanayo", "Liu et al., SC 2023", "a training pipeline, stages in waves down and up the devices",
             "hanayo"),
    Baseline("dynapipe", "DynaPipe", "Jiang et al., EuroSys 2024", "a training pipeline", "dynapipe"),
    Baseline("3f1b", "3F1B", "Lin et al., OSDI 2024", "a pipeline that runs without gradients first", "recycled"),
    Baseline("1f1b+", "1F1B+", "Lin et al., HPCA 2024",
             "a training pipeline, one stage a device, with blocks on several devices along it", "one_f_one_b_plus"),
    Baseline("greedy", "greedy", "list scheduling under memory, after Graham 1969", "anything", "rivals.greedy"),
    Baseline("stream", "streaming", "after Ma et al., USENIX ATC 2019", "devices with lanes", "rivals.stream"),
)}


def baseline(name: str, problem: Problem, micro_batches: int) -> Schedule:
    """The schedule of baseline ``name`` (a key of ``BASELINES``) for ``problem``, checked by the judge.

    The judge ignores the devices' memory here (``validate(schedule)`` does not). ``makespan_bound`` is 0: nothing is
    proven. Raises :class:`NotApplicable` if the baseline cannot run this problem with this many micro-batches, and
    ``ValueError`` for an unknown name or less than one micro-batch.
    """
    if name not in BASELINES:
        raise ValueError(f"there is no baseline {name!r}, there are {', '.join(BASELINES)}")
    if micro_batches < 1:
        raise ValueError(f"micro_batches is {micro_batches}, it must be at least 1")
    problem.require_plain()
    operations = time_orders(problem, micro_batches, BASELINES[name].orders(problem, micro_batches))
    schedule = Schedule(problem, micro_batches, operations, makespan_bound=0.0, solver={"name": name},
                        period=steady_period(problem, micro_batches, operations))
    validate(schedule, capacities=False)
    return schedule


def steady_period(problem: Problem, micro_batches: int, operations: Sequence[Operation]) -> float | None:
    """Time per micro-batch if it is truly steady, else ``None``; in the problem's time unit.

    Steady means: in the middle half of the makespan, or at least in its middle third, every block starts at the same
    interval, from each micro-batch to the next or to the one as many later as there are devices (interleaved schedules
    advance so); and the busiest device can sustain that.
    """
    makespan = max(operation.end for operation in operations)
    starts: list[list[float]] = [[0.0] * micro_batches for _ in problem.blocks]
    for operation in operations:
        starts[operation.block][operation.micro_batch] = operation.start
    work = max(sum(problem.blocks[i].duration for i in row) for row in problem.blocks_on)
    for ramp in (makespan / 4, makespan / 3):
        middle = [[start for start in row if ramp <= start <= makespan - ramp] for row in starts]
        for step in sorted({1, len(problem.devices)}):
            if any(len(row) < step + 2 for row in middle):
                continue
            intervals = [later - start for row in middle for start, later in zip(row, row[step:], strict=False)]
            period = intervals[0] / step
            if max(intervals) - min(intervals) <= 1e-9 * makespan and period >= work * (1 - 1e-9):
                return max(period, work)
    return None
