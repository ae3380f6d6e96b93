"""The JSON Schemas of ``weft.problem/1`` and ``weft.schedule/1``.

They state the rules that apply field by field. The rest is left to the readers (:mod:`weft.solver.io.problem_files` and
the files beside it): names are unique and known where they are used, lists fit the devices, dependencies have no cycle,
whole numbers are written without a point, and weft's own entries of ``solver`` have their shapes.
"""

from __future__ import annotations

from typing import Any

from weft.solver.io.problem_files import PROBLEM_FORMAT
from weft.solver.io.schedule_files import SCHEDULE_FORMAT
from weft.solver.problem import BlockKind
from weft.solver.values import LARGEST, LARGEST_AMOUNT, MOST_NAME

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAME = {"type": "string", "maxLength": MOST_NAME,
         "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f\\ufdd0-\\ufdef\\ufffe\\uffff]*$"}
_NUMBER = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}
_AMOUNT = {"type": "number", "minimum": -LARGEST_AMOUNT, "maximum": LARGEST_AMOUNT}
_FROM_0 = {"type": "number", "minimum": 0, "maximum": LARGEST_AMOUNT}


def problem_schema() -> dict[str, Any]:
    """The JSON Schema of a block problem."""
    return {"$schema": _DIALECT, "title": PROBLEM_FORMAT, **_problem()}


def schedule_schema() -> dict[str, Any]:
    """The JSON Schema of a schedule."""
    operation = _object({"block": _NAME, "micro_batch": _whole(0), "start": _NUMBER, "end": _NUMBER})
    repetend = _object({"first": _whole(0), "count": _whole(1), "micro_batches": _whole(1)})
    return {"$schema": _DIALECT, "title": SCHEDULE_FORMAT, **_object({
        "format": {"const": SCHEDULE_FORMAT},
        "problem": _problem(),
        "choices": {"type": "object", "additionalProperties": _NAME, "description": "the options that led to problem"},
        "micro_batches": _micro_batches(),
        "rounds": {**_whole(1), "description": "where micro-batches are counted per job or class: equal rounds that "
                                               "they make, by default as many as can be"},
        "operations": _list(operation),
        "makespan": _NUMBER,
        "makespan_bound": _NUMBER,
        "period": _or_null({"type": "number", "exclusiveMinimum": 0, "maximum": LARGEST}),
        "period_bound": _or_null(_NUMBER),
        "repetend": _or_null(repetend),
        "peak_memory": _list(_NUMBER),
        "status": {"type": "string", "description": "optimal (makespan = makespan_bound) or feasible"},
        "solver": {"type": "object", "description": "who made it, and what else helps to reproduce it"},
    }, "format", "problem", "micro_batches", "operations", "makespan", "makespan_bound", "period", "period_bound",
        "repetend", "peak_memory", "status", "solver")}


def _micro_batches() -> dict[str, Any]:
    """Their number; the class of each if they differ; one of these for each job if there are jobs."""
    counted = [_whole(1), _list(_NAME, minItems=1)]
    return {"anyOf": [*counted, {"type": "object", "additionalProperties": {"anyOf": counted}, "minProperties": 1}]}


def _problem() -> dict[str, Any]:
    when = {"type": "object", "additionalProperties": _NAME, "description": "option by choice"}
    duration = {"type": "number", "exclusiveMinimum": 0, "maximum": LARGEST_AMOUNT}
    memory = {"anyOf": [_AMOUNT, _list(_AMOUNT)],
              "description": "more than 0 is taken at the start, less is given back at the end"}
    wait = _object({"block": _NAME, "lag": _or_per_class(_FROM_0), "link": _or_null(_NAME), "distance": _whole(0),
                    "when": when}, "block")
    block = _object({
        "name": _NAME,
        "kind": {"enum": [str(kind) for kind in BlockKind]},
        "devices": _list(_whole(0), minItems=1, uniqueItems=True, description="indices into devices, all held at once"),
        "duration": _or_per_class(duration),
        "memory": _or_per_class(memory),
        "workspace": _or_per_class({"anyOf": [_FROM_0, _list(_FROM_0)]}),
        "when": {**when, "description": "the block exists under these options only"},
        "job": {**_NAME, "description": "micro-batches are counted per job"},
        "after": _list({"anyOf": [_NAME, wait]}),
    }, "name", "kind", "devices", "duration", "memory", "after")
    owner = _object({"name": _NAME, "memory": _or_null(_FROM_0), "static": _FROM_0, "lane_of": {"type": "null"}},
                    "name", "memory")
    lane = _object({"name": _NAME, "memory": {"type": "null"}, "static": {"const": 0},
                    "lane_of": {**_NAME, "description": "the device that it is an engine of, and whose memory counts"}},
                   "name", "lane_of")
    device = {"anyOf": [owner, lane]}
    return _object({
        "format": {"const": PROBLEM_FORMAT},
        "name": _NAME, "time_unit": _NAME, "memory_unit": _NAME,
        "devices": _list(device, minItems=1),
        "links": _list(_object({"name": _NAME, "source": _NAME, "target": _NAME})),
        "choices": {"type": "object", "additionalProperties": _list(_NAME, minItems=2, uniqueItems=True),
                    "description": "one option of each is taken, the same for all micro-batches"},
        "blocks": _list(block, minItems=1),
        "model": _model(),
    }, "format", "name", "time_unit", "memory_unit", "devices", "blocks")


def _model() -> dict[str, Any]:
    """The facts about the stages' modules (:mod:`weft.solver.io.problem_files`)."""
    count, texts = _whole(0), _list({"type": "string"})
    stage = _object({"forward": _NAME, "layers": texts, "parameters": count, "parameter_bytes": count,
                     "output_bytes": count, "deferred": count, "micro_batch": count}, "forward")
    tie = _object({"parameter": {"type": "string"}, "stages": _list(_NAME)})
    return _object({"stages": _list(stage), "ties": _list(tie),
                    "tolerance": {"type": "number", "minimum": 0, "exclusiveMaximum": 1}}, "stages")


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """With these fields and no others; all of them, or those named, are required."""
    return {"type": "object", "properties": properties, "required": list(required or properties),
            "additionalProperties": False}


def _list(items: dict[str, Any], **further: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **further}


def _whole(least: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least}


def _or_per_class(schema: dict[str, Any]) -> dict[str, Any]:
    """One value for all micro-batches, or one for each class of them."""
    return {"anyOf": [schema, {"type": "object", "additionalProperties": schema, "minProperties": 1}]}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}
