"""Megatron-LM and Megatron-Bridge: the placement of layers; the order is Megatron's own.

A layout (``--pipeline-model-parallel-layout``, read from ``pipeline_parallel_layer_layout.py``) has a word of letters
for each stage, ``E`` embedding, ``t`` layer, ``m`` multi-token prediction, ``L`` head and loss; stage s is on rank s
modulo p (:mod:`weft.solver.io.megatron_layout` reads and writes it). Where a rank has one stage Megatron runs 1F1B,
else its interleaved form, in groups of N micro-batches (``--microbatch-group-size-per-virtual-pipeline-stage``, p by
default); backwards are whole. Read from ``pipeline_parallel/schedules.py`` of NVIDIA/Megatron-LM d98e8a6 (Aug 2026).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.runtime.export.forms import ExportError
from weft.runtime.export.tools.megatron_arguments import MegatronArguments
from weft.runtime.export.tools.tool import OwnOrder, Tool, ToolRun, letters_of
from weft.solver.baselines.lib.alternating import TurnRule
from weft.solver.pipeline import Pipeline
from weft.solver.schedule import Schedule

_TITLE = "Megatron-LM"
#: Megatron's name for the micro-batches that pass through a chunk before the next chunk's turn.
GROUP = "microbatch-group-size-per-virtual-pipeline-stage"


def megatron_orders(pipeline: Pipeline, micro_batches: int) -> Iterator[OwnOrder]:
    """1F1B if each rank has one stage; else interleaved 1F1B, for groups of p, which is its default, and of other sizes
    that it accepts."""
    p, chunks = len(pipeline.chunks), len(pipeline.stages) // len(pipeline.chunks)

    def rows(turns: TurnRule) -> list[list[tuple[int, int]]]:
        return [turns.row(rank, p, [(pipeline.stages[s],) for s in own], micro_batches)
                for rank, own in enumerate(pipeline.chunks)]

    if chunks == 1:
        yield OwnOrder("1F1B", rows(TurnRule((micro_batches,), 1)))
        return
    for size in dict.fromkeys((p, 2 * p, micro_batches)):
        whole, rest = divmod(micro_batches, size)
        if p <= size <= micro_batches and (not rest or rest >= p):
            groups = (size,) * whole + ((rest,) if rest else ())
            yield OwnOrder("interleaved 1F1B", rows(TurnRule(groups, 2)), {} if size == p else {GROUP: size})


def _require(schedule: Schedule, pipeline: Pipeline) -> None:
    """Refuse layers that no layout has, and numbers of micro-batches that its orders do not support."""
    p, chunks = len(pipeline.chunks), len(pipeline.stages) // len(pipeline.chunks)
    letters = letters_of(schedule, pipeline, _TITLE)
    if chunks > 1 and schedule.micro_batches < p:
        raise ExportError(f"{_TITLE} cannot run {schedule.problem.name!r}: {schedule.micro_batches} micro-batches are "
                          f"fewer than its {p} ranks, and interleaved 1F1B takes that many at least")
    with_m = [s for s, word in enumerate(letters) if "m" in word]
    if len(with_m) > 1:
        raise ExportError(f"{_TITLE} cannot express {schedule.problem.name!r}: layers of multi-token prediction are on "
                          f"stages {', '.join(map(str, with_m))}, and there all are on one")
    if with_m and (with_m[0] < len(letters) - p or (with_m[0] % p == 0 and p > 1)):
        raise ExportError(f"{_TITLE} cannot express {schedule.problem.name!r}: multi-token prediction is on stage "
                          f"{with_m[0]} of {len(letters)}, and there it is on the last chunk of a rank, but the first")


def arguments_of(run: ToolRun) -> MegatronArguments:
    """Megatron's arguments for ``run``, which is one of its own. Raises
    :class:`~weft.runtime.export.forms.ExportError` if its layers have no letters."""
    schedule = run.schedule
    pipeline = Pipeline.of(schedule.problem)
    layout = tuple(letters_of(schedule, pipeline, _TITLE))
    found = _grid_settings(schedule)
    return MegatronArguments(**{**found, "tensor": found.get("tensor", run.gpus)},  # a group's GPUs compute together
                             pipeline=len(pipeline.chunks), layout=layout, group=run.settings.get(GROUP))


def _grid_settings(schedule: Schedule) -> dict[str, Any]:
    """The settings of the schedule's grid beside its pipeline (``solver["grid"]``); empty without one."""
    grid = schedule.solver.get("grid")
    if grid is None:
        return {}
    same = ("tensor", "context", "expert", "micro_batch", "recompute", "zero", "context_keys", "overlap_experts")
    return {**{key: grid[key] for key in same if key in grid},
            "sequence_parallel": grid["sequence_parallel"] and grid["tensor"] > 1,
            "batch": grid["micro_batches"] * grid["micro_batch"] * grid["data"]}


MEGATRON = Tool("megatron", _TITLE, "arguments", shapes=("chain", "loop"), own=megatron_orders, require=_require,
                alike=True, text=lambda run: arguments_of(run).text())
