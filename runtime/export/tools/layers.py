"""The layers of stages, as named by tools that build the model themselves: an embedding, equal layers, those of
multi-token prediction, and a head."""

from __future__ import annotations

import re

from weft.runtime.export.refusal import ExportError
from weft.solver.pipeline import Pipeline
from weft.solver.schedule import Schedule

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
