"""What the documented Python functions do with every kind of input: as :mod:`tests.support.grid` for commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import weft
from tests.support.kinds_of_input import KINDS

__all__ = ["CALLS", "Call"]

LIMITS: dict[str, Any] = {"effort": 0.02, "time_limit": 3000}
_SWEPT: dict[str, Any] = {"memory": ["1x"], "cache": None, "refine": False, "workers": 1}
_PROBLEMS = "block choices jobs classes"


@dataclass(frozen=True)
class Call:
    """``call`` of a source and the keyword of its micro-batches. ``refused``: of the kinds of input that it refuses,
    words of the sentence; the others run, and give a result with these ``fields``. ``slow``: it takes seconds."""

    name: str
    call: Callable[..., Any]
    fields: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False


def _no(kinds: str, words: str) -> dict[str, str]:
    return dict.fromkeys(kinds.split(), words)


_ALIKE = _no("jobs classes lengths", "a latency is of one micro-batch")


def _sweep(source: Any, **count: Any) -> Any:
    counts: dict[str, Any] = {name: [value] for name, value in count.items()}
    return weft.sweep(source, **_SWEPT, **LIMITS, **counts)


CALLS: tuple[Call, ...] = (
    Call("solve", lambda source, **count: weft.solve(source, **LIMITS, **count), "makespan makespan_bound period"),
    Call("solve for the span", lambda source, **count: weft.solve(source, objective="span", **LIMITS, **count),
         "value value_bound"),
    Call("compare", lambda source, **count: weft.compare(source, **LIMITS, **count), "rows"),
    Call("estimate", lambda source, **_: weft.estimate(source), "",
         _no(_PROBLEMS, "estimate is for model specs")),
    Call("sweep", _sweep, "rows", _no("choices jobs classes", "a sweep is of a model or of a block problem without")),
    Call("latency", lambda source, **count: weft.latency(source, points=2, **LIMITS, **count), "points", _ALIKE),
    Call("explain", lambda source, **count: weft.explain(source, **LIMITS, **count), ""),
    Call("share", lambda source, **_: weft.share(source, source, ratio="1:1", **LIMITS), "schedule",
         _no("jobs", "give each job a file of its own") | _no("classes", "give each class a file of its own")
         | _no("lengths", "lists micro-batches that differ, and a job that shares GPUs"), slow=True),
    Call("place", lambda source, **_: weft.place(source, **LIMITS), "",
         _no(_PROBLEMS, "what is placed is an operator graph or a model spec")
         | _no("layers inference open", "placing needs operators")),
)
assert set().union(*(call.refused for call in CALLS)) <= set(KINDS)
