"""The provenance of a schedule in a file: the ``solver`` object of schedules and plans.

It may contain anything that helps to reproduce a schedule. Entries that weft itself writes and reads have a shape; a
file in which one has another shape is refused (:class:`~weft.solver.io.entries.FormatError`) before it is used. Whether
they are true is checked elsewhere (:mod:`weft.solver.judge.claims`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, TypeAlias

from weft.solver.io.entries import FormatError, number, show
from weft.solver.schedule import OBJECTIVES

#: Raises ``FormatError`` for a value of another shape; the text names its place.
_Shape: TypeAlias = Callable[[Any, str], object]

#: Longer texts are a mistake: they appear in titles, tables and pictures.
_MOST_TEXT = 10_000
_VERDICTS = ("chosen", "bound", "worse", "memory", "unknown", "none")


def check_provenance(value: Any, devices: int, where: str) -> dict[str, Any]:
    """``value``, the ``solver`` object of a schedule on ``devices`` devices; ``where`` leads every message."""
    if not isinstance(value, dict):
        raise FormatError(f"{where} is {show(value)}, it must be an object")
    per_device = _length(devices, f"one for each of the {devices} devices")
    shapes: dict[str, _Shape] = {
        **_PLAIN,
        "static_memory": _both(_listing(_at_least_0), per_device),
        "gpu_memory": _either(_at_least_0, _both(_listing(_either(_null, _at_least_0)), per_device)),
        "gradients_freed": _both(_listing(_at_least_0), per_device),
        "memory_plan": _object(stages=_listing(_memory_stage(devices))),
    }
    for key, shape in shapes.items():
        if key in value:
            shape(value[key], f"{where}: {key}")
    stages = [len(value[key]) for key in _PER_STAGE if value.get(key) is not None]
    if len(set(stages)) > 1:
        raise FormatError(f"{where}: {', '.join(_PER_STAGE)} must have one entry for each stage, here they have "
                          f"{', '.join(map(str, stages))}")
    if "gpus_of_stage" in value and "tensor_parallel" not in value:
        raise FormatError(f"{where}: the field 'tensor_parallel' is missing beside gpus_of_stage")
    if "gpus_of_stage" in value and [] in (value.get("layers_of_stage") or []):
        raise FormatError(f"{where}: layers_of_stage has a stage without layers, each must have one at least")
    if "repetend_period" in value and "repetend_period_bound" not in value:
        raise FormatError(f"{where}: the field 'repetend_period_bound' is missing beside repetend_period")
    needed = {"span": ("span", "span_bound"), "latency": ("latency", "latency_bound")}
    for key in needed.get(value.get("objective", ""), ()):
        if key not in value:
            raise FormatError(f"{where}: the field {key!r} is missing beside the objective {value['objective']!r}")
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        raise FormatError(f"{where} holds a number that is not finite, or is nested too deeply") from None
    return value


# -- shapes ----------------------------------------------------------------------------------------------------------


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise FormatError(f"{where} is {show(value)}, it must be text")
    if len(value) > _MOST_TEXT:
        raise FormatError(f"{where} is a text of {len(value)} characters, more than {_MOST_TEXT}")


def _null(value: Any, where: str) -> None:
    if value is not None:
        raise FormatError(f"{where} is {show(value)}, it must be null")


def _flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise FormatError(f"{where} is {show(value)}, it must be true or false")


def _at_least_0(value: Any, where: str) -> None:
    if number(value, where) < 0:
        raise FormatError(f"{where} is {show(value)}, it must be 0 or more")


def _whole(value: Any, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise FormatError(f"{where} is {show(value)}, it must be a whole number")


def _count(value: Any, where: str) -> None:
    _whole(value, where)
    if value < 1:
        raise FormatError(f"{where} is {show(value)}, it must be at least 1")


def _either(*shapes: _Shape) -> _Shape:
    def shape(value: Any, where: str) -> None:
        for option in shapes[:-1]:
            with contextlib.suppress(FormatError):
                option(value, where)
                return
        shapes[-1](value, where)
    return shape


def _both(one: _Shape, other: _Shape) -> _Shape:
    def shape(value: Any, where: str) -> None:
        one(value, where)
        other(value, where)
    return shape


def _length(expected: int, meaning: str) -> _Shape:
    def shape(value: Any, where: str) -> None:
        if len(value) != expected:
            raise FormatError(f"{where} has {len(value)} entries, it must have {meaning}")
    return shape


def _listing(entry: _Shape) -> _Shape:
    def shape(value: Any, where: str) -> None:
        if not isinstance(value, list):
            raise FormatError(f"{where} is {show(value)}, it must be a list")
        for i, item in enumerate(value):
            entry(item, f"{where}[{i}]")
    return shape


def _mapping(entry: _Shape) -> _Shape:
    def shape(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(f"{where} is {show(value)}, it must be an object")
        for key, item in value.items():
            entry(item, f"{where}: {key}")
    return shape


def _object(optional: Mapping[str, _Shape] | None = None, **fields: _Shape) -> _Shape:
    """At least these fields; others are accepted."""
    def shape(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(f"{where} is {show(value)}, it must be an object")
        for key, entry in fields.items():
            if key not in value:
                raise FormatError(f"{where}: the field {key!r} is missing")
            entry(value[key], f"{where}: {key}")
        for key, entry in (optional or {}).items():
            if key in value:
                entry(value[key], f"{where}: {key}")
    return shape


def _history(value: Any, where: str) -> None:
    _listing(_both(_listing(_at_least_0), _length(3, "seconds, makespan and bound")))(value, where)
    for i, ((before, *_), (after, *_)) in enumerate(pairwise(value)):
        if after < before:
            raise FormatError(f"{where}[{i + 1}]: its time is before that of the one before")


def _alternative(value: Any, where: str) -> None:
    _object(placement=_text, bound=_either(_null, _at_least_0), makespan=_either(_null, _at_least_0),
            verdict=_text, optional={"reason": _text})(value, where)
    verdict = value["verdict"]
    if verdict not in _VERDICTS:
        raise FormatError(f"{where}: verdict is {show(verdict)}, it must be one of {', '.join(_VERDICTS)}")
    needed = "reason" if verdict in ("none", "memory") else "bound"
    if value.get(needed) is None:
        raise FormatError(f"{where}: the verdict {verdict!r} needs a {needed}")


def _objective(value: Any, where: str) -> None:
    if value not in OBJECTIVES:
        raise FormatError(f"{where} is {show(value)}, it must be one of {', '.join(OBJECTIVES)}")


def _classes(value: Any, where: str) -> None:
    _mapping(_at_least_0)(value, where)
    if not sum(value.values()) > 0:
        raise FormatError(f"{where} adds up to 0 bytes, it must be more")


def _memory_stage(devices: int) -> _Shape:
    operators = _listing(_text)
    some = _object(operators=operators, bytes=_at_least_0, seconds=_at_least_0)
    fields = _object(stage=_whole, operators=_count, first=_text, last=_text, recomputed=some, offloaded=some,
                     kept=_object(operators=operators, bytes=_at_least_0))

    def shape(value: Any, where: str) -> None:
        fields(value, where)
        if not 0 <= value["stage"] < devices:
            raise FormatError(f"{where}: stage is {value['stage']}, there are {devices} devices")
    return shape


def _overlap(value: Any, where: str) -> None:
    """Why there is nothing to overlap, or the gain."""
    for why in ("nothing", "not_searched"):
        if isinstance(value, dict) and why in value:
            _text(value[why], f"{where}: {why}")
            return
    shapes: dict[str, _Shape] = {
        "taken": _flag, "with": _at_least_0, "without": _either(_null, _at_least_0), "bound": _at_least_0,
        "best_without_options": _either(_null, _at_least_0), "bound_over_placements": _at_least_0}
    step: dict[str, _Shape] = {"name": _text, "with": _either(_null, _at_least_0)}
    optional = {"nothing_fits": _flag, "update": _at_least_0, "frameworks": _listing(_object({}, **step))}
    _object(optional, **shapes)(value, where)


def _unit(value: Any, where: str) -> None:
    if value not in UNITS:
        raise FormatError(f"{where} is {show(value)}, it must be one of {', '.join(UNITS)}")


def _calls(value: Any, where: str) -> None:
    _whole(value, where)
    _at_least_0(value, where)


#: The values for a micro-batch of a schedule that is not the spec's: all of a step, or two side by side.
UNITS = ("step", "pair")
#: Lists with an entry for each stage of the placement.
_PER_STAGE = ("layers_of_stage", "gpus_of_stage", "tensor_parallel", "co_shard")

_PLAIN: Mapping[str, _Shape] = {
    "name": _text, "version": _text, "placement": _text, "optimizer": _text, "source": _text, "covered": _text,
    "notes": _listing(_text), "seconds": _at_least_0, "deterministic_seconds": _at_least_0, "seed": _whole,
    "workers": _count, "interrupted": _flag, "repetend_proven": _flag, "history": _history,
    **dict.fromkeys(("steady_bound", "repetend_period", "repetend_period_bound", "bound_over_placements",
                     "bound_over_any_placement", "latency", "latency_bound", "latency_period", "reserve", "span",
                     "span_bound"),
                    _at_least_0),
    "objective": _objective, "overlap": _overlap, "unit": _unit,
    "techniques": _mapping(_object(calls=_calls, proofs=_calls, improvements=_calls, seconds=_at_least_0)),
    "options": _listing(_object(choice=_text, option=_text, taken=_flag, bound=_either(_null, _at_least_0),
                                makespan=_either(_null, _at_least_0))),
    "assignments": _count, "searched": _calls, "sequence": _object(any_class=_flag, sequences=_either(_null, _count)),
    "placements": _count, "replicas": _count, "alternatives": _listing(_alternative),
    "bytes_per_parameter": _classes, "layers_of_stage": _listing(_listing(_text)),
    "gpus_of_stage": _listing(_both(_listing(_whole), lambda value, where: _count(len(value), f"{where}: its length"))),
    "tensor_parallel": _listing(_object(collectives=_mapping(_whole), optional={"origins": _mapping(_at_least_0)})),
    "co_shard": _listing(_either(_null, _object(parts=_text, seconds_more=number, kept_less=number,
                                                workspace_less=number))),
}
