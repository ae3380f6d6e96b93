"""JSON Schemas of the files written by `weft place`: ``weft.placement/1``, ``weft.memory_plans/1`` and
``weft.placed_step/1``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NUMBER = {"type": "number", "minimum": 0}
_COUNT = {"type": "integer", "minimum": 0}
_NAMES = {"type": "array", "items": {"type": "string"}}


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required),
            "additionalProperties": False}


def _schema(name: str, fields: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name,
            **_object({"format": {"const": name}, "name": {"type": "string"}, **fields}, optional)}


#: Of chains and of graphs of stages; graphs also have the depth fields, replicated ones the device fields.
_PLACEMENT = _schema("weft.placement/1", {
    "time_unit": {"type": "string"}, "memory_unit": {"type": "string"},
    "objective": _NUMBER, "bound": _NUMBER, "status": {"enum": ["optimal", "feasible"]},
    "latency": _NUMBER, "latency_bound": {"type": ["number", "null"], "minimum": 0},
    "stages": {"type": "array", "minItems": 1, "items": _object(
        {"device": {"type": "string"}, "load": _NUMBER, "compute": _NUMBER, "transfers": _NUMBER, "memory": _NUMBER,
         "resident": _NUMBER, "in_flight": _COUNT, "nodes": _NAMES},
        {"devices": _COUNT, "all_reduce": _NUMBER, "depth": _COUNT, "after": {"type": "array", "items": _COUNT}})},
}, {"depth": _COUNT, "depth_bound": _COUNT, "least": _NUMBER, "slack": _NUMBER, "limit": _NUMBER})

_MEMORY_PLANS = _schema("weft.memory_plans/1", {"plans": {"type": "array", "minItems": 1, "items": _object({
    "plan": {"type": "string"}, "bottleneck": _NUMBER, "bound": _NUMBER,
    "stages": {"type": "array", "minItems": 1, "items": _object({
        "stage": _COUNT, "operators": _COUNT, "first": {"type": "string"}, "last": {"type": "string"},
        "in_flight": _COUNT, "kept": _object({"operators": _NAMES, "bytes": _COUNT}),
        "recomputed": _object({"operators": _NAMES, "seconds": _NUMBER, "bytes": _COUNT}),
        "offloaded": _object({"operators": _NAMES, "bytes": _COUNT, "seconds": _NUMBER}),
        "memory": {"type": "object", "additionalProperties": _COUNT}, "seconds": _NUMBER})}})}})

_SIZE = {"type": "integer", "minimum": 1}

_PLACED_STEP = _schema("weft.placed_step/1", {
    "time_unit": {"type": "string"}, "memory_unit": {"type": "string"}, "mini_batch": _SIZE,
    "micro_batch_sizes": {"type": "array", "minItems": 1, "items": _SIZE},
    "makespan": _NUMBER, "makespan_bound": _NUMBER, "bound_over_any_placement": _NUMBER,
    "status": {"enum": ["optimal", "feasible"]}, "covered": {"type": "string"},
    "one_size_1f1b": {"type": ["number", "null"], "minimum": 0},
    "considered": {"type": "array", "minItems": 1, "items": _object({
        "stages": _COUNT, "depth": _COUNT, "bound": _NUMBER, "makespan": {"type": ["number", "null"], "minimum": 0},
        "choices": _COUNT})},
    "stages": {"type": "array", "minItems": 1, "items": _object({
        "device": {"type": "string"}, "devices": _SIZE, "micro_batch": _SIZE, "load": _NUMBER, "memory": _NUMBER,
        "resident": _NUMBER, "depth": _COUNT, "after": {"type": "array", "items": _COUNT}, "nodes": _NAMES})},
    "solver": {"type": "object"}})

PLACEMENT_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "weft.placement/1": _PLACEMENT, "weft.memory_plans/1": _MEMORY_PLANS, "weft.placed_step/1": _PLACED_STEP,
}
