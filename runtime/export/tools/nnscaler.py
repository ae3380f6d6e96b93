"""A schedule as a Python module for nnScaler, whose ``schedule(graph, ...)`` makes the ``SchedulePlan``.

nnScaler's graph must be staged already: one segment (``IRSegment``) for each forward block, in the order of the
problem's forwards, on the same devices; a segment's backward is its ``mirror``. Steps are ranks in time, not times: a
new one begins whenever an operation starts or ends, so every device's order, and all overlaps, are the schedule's.
nnScaler puts a transfer behind the last step of its producer.

Read from nnScaler's ``graph/schedule/schedplan.py`` and ``predefined.py`` (microsoft/nnscaler, MIT); not run in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.runtime.export.forms import ExportError, ranked_steps, require_one_kind
from weft.runtime.export.tools.tool import Tool
from weft.runtime.plan.stage_graph import NotAStageGraph, StageGraph, StagePasses
from weft.solver.problem import BlockKind
from weft.solver.schedule import Schedule

_TOOL = "nnScaler"

_MODULE = '''\
# The schedule of {name!r} for nnScaler, written by weft.
"""``schedule(graph)`` orders a staged graph: an ``nnscaler.graph.schedule.schedplan.SchedulePlan``."""

from nnscaler.graph.schedule.schedplan import SchedulePlan
from nnscaler.graph.segment import IRSegment

MICRO_BATCHES = {micro_batches}
# The devices of every forward segment, in the graph's order.
DEVICES = (
{devices})
# (segment, whether its backward, micro-batch, first step, steps)
BLOCKS = (
{blocks})


def schedule(graph, num_microbatches=MICRO_BATCHES, num_stages=len(DEVICES)):
    """The plan of ``graph``; the same arguments as those of nnScaler's ``PredefinedSched``."""
    segments = [segment for segment in graph.select(ntype=IRSegment, flatten=False) if segment.isfw()]
    found = tuple(tuple(sorted(segment.device)) for segment in segments)
    if (num_microbatches, num_stages, found) != (MICRO_BATCHES, len(DEVICES), DEVICES):
        raise ValueError(f"this schedule is for {{MICRO_BATCHES}} micro-batches of {{len(DEVICES)}} segments on "
                         f"devices {{DEVICES}}, not for {{num_microbatches}} of {{num_stages}} on {{found}}")
    plan = SchedulePlan(graph, num_microbatches)
    for segment, backward, micro_batch, step, span in BLOCKS:
        plan.add_segment(segments[segment].mirror if backward else segments[segment], micro_batch, step, span)
    plan.finish()
    return plan
'''


def nnscaler_module(schedule: Schedule) -> str:
    """The module's text. Blocks on several devices and branches are supported.

    Raises :class:`~weft.runtime.export.forms.ExportError` for split backwards, recomputation and other blocks that
    nnScaler has no segment for, and for backwards that do not mirror the forwards.
    """
    problem, stages = schedule.problem, _stages(schedule)
    passes = {block: (s, letter != "F") for s, stage in enumerate(stages) for letter, block in stage.blocks.items()}
    rows = sorted((step, span, *passes[operation.block], operation.micro_batch)
                  for operation, (step, span) in zip(schedule.operations, ranked_steps(schedule, _TOOL), strict=True))
    return _MODULE.format(
        name=problem.name, micro_batches=schedule.micro_batches,
        devices="".join(f"    {stage.ranks},\n" for stage in stages),
        blocks="".join(f"    ({segment}, {backward}, {micro_batch}, {step}, {span}),\n"
                       for step, span, segment, backward, micro_batch in rows))


def _stages(schedule: Schedule) -> Sequence[StagePasses]:
    problem = schedule.problem
    require_one_kind(schedule, _TOOL)
    for block in problem.blocks:
        if block.kind not in (BlockKind.FORWARD, BlockKind.BACKWARD):
            raise ExportError(f"{_TOOL} cannot express {problem.name!r}: block {block.name!r} is of kind {block.kind}, "
                              "it has forwards and full backwards only")
    try:
        graph = StageGraph.of(problem)
    except NotAStageGraph as reason:
        raise ExportError(f"{_TOOL} cannot express {problem.name!r}: {reason}") from None
    for stage in graph.stages if graph.has_backward else ():
        if stage.backward is None:
            raise ExportError(f"{_TOOL} cannot express {problem.name!r}: no backward mirrors forward "
                              f"{problem.blocks[stage.blocks['F']].name!r}")
    return graph.stages


NNSCALER = Tool("nnscaler", _TOOL, "a module that makes the SchedulePlan", any_graph=True,
                text=lambda run: nnscaler_module(run.schedule))
