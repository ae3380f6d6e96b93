"""The pipelines and orders that a training tool supports, and a schedule as the tool runs it.

Tools that build the model themselves have names of layers: an embedding, equal layers, layers of multi-token
prediction, and a head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from weft.runtime.export.forms import (
    ExportError,
    as_ranks,
    pipeline_for,
    require_one_kind,
    whole_backwards,
    with_whole_backwards,
)
from weft.solver.judge.validate import violations
from weft.solver.pipeline import Pipeline, Shape
from weft.solver.schedule import Schedule
from weft.solver.timing import DeadlockError, Orders, time_orders

_EMBEDDING = re.compile("embed", re.IGNORECASE)
_HEAD = re.compile("head|output|logits|loss|norm", re.IGNORECASE)
_PREDICTION = re.compile(r"predict|mtp", re.IGNORECASE)


def layers_of(schedule: Schedule, pipeline: Pipeline, tool: str) -> list[list[str]]:
    """Per stage the names of its layers, as recorded by the search."""
    found = schedule.solver.get("layers_of_stage")
    if (not isinstance(found, list) or len(found) != len(pipeline.stages)
            or not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in found)):
        raise ExportError(f"{tool} cannot express {schedule.problem.name!r}: the schedule does not say which layers "
                          "its stages hold; solve a model spec, not a block problem")
    return found


def letters_of(schedule: Schedule, pipeline: Pipeline, tool: str) -> list[str]:
    """Per stage, a letter for each layer: E, t, m or L. Final layers named norm, head, output or the like form the
    head."""
    layers = layers_of(schedule, pipeline, tool)
    names = [name for stage in layers for name in stage]
    head = _first_of_head(names)
    if not names or not _EMBEDDING.search(names[0]) or head == len(names):
        odd = names[0] if not names or not _EMBEDDING.search(names[0]) else names[-1]
        raise ExportError(f"{tool} cannot express {schedule.problem.name!r}: layer {odd!r} is not called as an "
                          f"{'embedding' if odd == names[0] else 'output head'} is, and a model of its kind is an "
                          "embedding, equal layers and a head")
    if head < len(names) - len(layers[-1]):
        raise ExportError(f"{tool} cannot express {schedule.problem.name!r}: its head is layers "
                          f"{', '.join(map(repr, names[head:]))}, which are not all on the last stage")
    for name in names[1:head]:
        if _EMBEDDING.search(name) or (_HEAD.search(name) and not _PREDICTION.search(name)):
            raise ExportError(f"{tool} cannot express {schedule.problem.name!r}: layer {name!r} is in the middle, "
                              "where only transformer layers may be")
    letters = iter(letters_of_names(names))
    return ["".join(next(letters) for _ in stage) for stage in layers]


def letters_of_names(names: list[str]) -> list[str]:
    """A letter for each layer, "" for further layers of the head."""
    head = _first_of_head(names)
    return ["E" if place == 0 else "" if place > head else "L" if place == head else
            "m" if _PREDICTION.search(name) else "t" for place, name in enumerate(names)]


def _first_of_head(names: list[str]) -> int:
    head = len(names)
    while head > 1 and _HEAD.search(names[head - 1]):
        head -= 1
    return head


@dataclass(frozen=True, slots=True)
class OwnOrder:
    """An order that a tool generates itself. ``title``: its name in the tool. ``settings``: the required settings."""

    title: str
    orders: Orders
    settings: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A schedule as a tool runs it: ``schedule`` is timed under its order, on ranks of ``gpus`` GPUs each.

    ``order``: its name, "" if it is the given one. ``settings``: the settings that it needs.
    """

    schedule: Schedule
    gpus: int = 1
    order: str = ""
    settings: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Tool:
    """One tool. ``shapes``: the supported placements of stages; empty: all. ``splits``: whether input and weight
    gradients may be separate. ``own``: the orders that it generates for a pipeline with full backwards and a number of
    micro-batches; ``None``: it runs the given order. ``require``: refuses other unsupported features of a pipeline.
    ``alike``: whether all layers have the same recomputation rule. ``any_graph``: whether stages may form any graph, on
    any GPUs. ``zero``: the stages of ZeRO that it supports with a pipeline. ``lacks``: the degrees of a grid that it
    does not support. ``reads``: its input, in a few words; ``text``: writes this input for a run, if it is one file.
    """

    name: str
    title: str
    reads: str
    shapes: tuple[Shape, ...] = ()
    splits: bool = False
    own: Callable[[Pipeline, int], Iterator[OwnOrder]] | None = None
    require: Callable[[Schedule, Pipeline], None] | None = None
    alike: bool = False
    any_graph: bool = False
    zero: tuple[int, ...] = (0, 1, 2, 3)
    lacks: tuple[str, ...] = ()
    text: Callable[[ToolRun], str] | None = None

    def run(self, schedule: Schedule) -> ToolRun:
        """``schedule`` as this tool runs it: in the shortest of its own orders within memory, if it generates them.

        Raises :class:`~weft.runtime.export.forms.ExportError` for an unsupported feature, and if no order fits.
        """
        if self.any_graph:
            return self._any_graph(schedule)
        ranks, gpus = as_ranks(schedule, self.title)
        pipeline = pipeline_for(ranks, self.title)
        if not pipeline.has_backward:
            raise ExportError(f"{self.title} cannot express {ranks.problem.name!r}: it has no backward, and its "
                              "schedules are of training")
        self._require_shape(pipeline)
        if self.alike and ("memory_plan" in schedule.solver or schedule.choices):
            how = ("operator by operator (placement.memory: decide)" if "memory_plan" in schedule.solver else
                   "stage by stage (placement.choices)")
            raise ExportError(f"{self.title} cannot express {ranks.problem.name!r}: what is kept is decided {how}, "
                              "and it recomputes the same of every layer")
        if self.require is not None:
            self.require(ranks, pipeline)
        if self.own is not None:
            return self._in_own_order(ranks, pipeline, gpus)
        return ToolRun(ranks if self.splits else self._fitting(with_whole_backwards(ranks, pipeline.stages)), gpus)

    def _any_graph(self, schedule: Schedule) -> ToolRun:
        require_one_kind(schedule, self.title)
        if any(block.kind.letter in "IW" for block in schedule.problem.blocks):
            ranks, _ = as_ranks(schedule, self.title, unequal=True)
            return ToolRun(self._fitting(with_whole_backwards(schedule, pipeline_for(ranks, self.title).stages)))
        return ToolRun(schedule)

    def _require_shape(self, pipeline: Pipeline) -> None:
        if not self.shapes or pipeline.shape in self.shapes:
            return
        places = ", ".join(pipeline.problem.devices[stage.device].name for stage in pipeline.stages[:9])
        more = ", ..." * (len(pipeline.stages) > 9)
        words = {"chain": "one stage a rank", "loop": "stages round and round", "v": "two a rank, down and back (V)",
                 "wave": "waves", "other": ""}
        raise ExportError(f"{self.title} cannot express {pipeline.problem.name!r}: its stages are on {places}{more}, "
                          f"and it has {' or '.join(words[shape] for shape in self.shapes)} only")

    def _in_own_order(self, ranks: Schedule, pipeline: Pipeline, gpus: int) -> ToolRun:
        assert self.own is not None
        problem = whole_backwards(ranks.problem, pipeline.stages)
        whole = pipeline if problem is ranks.problem else Pipeline.of(problem)
        best: ToolRun | None = None
        fault = ""
        for made in self.own(whole, ranks.micro_batches):
            try:
                operations = time_orders(problem, ranks.micro_batches, made.orders)
            except DeadlockError:
                continue
            found = replace(ranks, problem=problem, operations=operations, makespan_bound=0.0, period=None,
                            period_bound=None, repetend=None)
            faults = violations(found, limit=1)
            fault = fault or f"{made.title}: {faults[0]}" if faults else fault
            if not faults and (best is None or found.makespan < best.schedule.makespan):
                best = ToolRun(found, gpus, made.title, made.settings)
        if best is None:
            raise ExportError(f"{self.title} cannot run {ranks.problem.name!r}: {fault or 'it has no order for it'}")
        return best

    def _fitting(self, schedule: Schedule) -> Schedule:
        faults = violations(schedule, limit=1)
        if faults:
            raise ExportError(f"{self.title} cannot run {schedule.problem.name!r} with whole backwards in this order: "
                              f"{faults[0]}")
        return schedule
