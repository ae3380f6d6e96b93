"""The assignment of a captured graph's operators to backends, and its file ``weft.backends/1``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.runtime.backends.graph import UnitGraph
from weft.runtime.backends.registry import BackendError
from weft.solver.io.entries import Entry, read_json, require_format
from weft.solver.io.writing import write_atomically

ASSIGNMENT_FORMAT = "weft.backends/1"


@dataclass(frozen=True, slots=True)
class AssignedPart:
    """A part and its backend. ``operators``: their names in the captured graph. ``seconds``: per call, measured in
    isolation."""

    backend: str
    operators: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Assignment:
    """An assignment of the captured model with this ``digest``. All times are seconds per call. ``predicted``: from
    parts and boundaries. ``bound``: a lower bound on the prediction of any assignment of the measured parts.
    ``measured``: the whole model. ``eager``, ``alone``: the model without backends and with each single backend,
    measured in turn with it. ``measured`` and ``eager`` are ``None`` if the whole model was not run. ``trains``: times
    include the backward."""

    model: str
    digest: str
    machine: str
    parts: tuple[AssignedPart, ...]
    predicted: float
    bound: float
    measured: float | None = None
    eager: float | None = None
    alone: Mapping[str, float] | None = None
    trains: bool = False

    def units_of(self, graph: UnitGraph) -> list[tuple[str, tuple[int, ...]]]:
        """The backend and the units of ``graph`` of each part.

        Raises :class:`~weft.runtime.backends.registry.BackendError` for a graph other than the assignment's, and for
        parts that do not cover it exactly once.
        """
        if graph.captured.digest != self.digest:
            raise BackendError(f"the assignment of {self.model} is for another graph than this one (other operators, "
                               "shapes or types): place this one")
        by_name = {node.name: unit for unit, nodes in enumerate(graph.units) for node in nodes}
        parts, taken = [], dict[int, str]()
        for part in self.parts:
            for name in part.operators:
                if name not in by_name:
                    raise BackendError(f"the assignment of {self.model} names the operator {name!r:.60}, which the "
                                       "graph does not have")
            units = tuple(sorted({by_name[name] for name in part.operators}))
            for unit in units:
                if unit in taken:
                    raise BackendError(f"the assignment of {self.model} has the operator {graph.units[unit][0].name} "
                                       f"in two parts, of {taken[unit]} and of {part.backend}")
                taken[unit] = part.backend
            parts.append((part.backend, units))
        if missing := [nodes[0].name for unit, nodes in enumerate(graph.units) if unit not in taken]:
            raise BackendError(f"the assignment of {self.model} has no part with the operator {missing[0]}")
        return parts

    def to_json(self) -> dict[str, Any]:
        """The ``weft.backends/1`` object."""
        return {"format": ASSIGNMENT_FORMAT, "model": self.model, "digest": self.digest, "machine": self.machine,
                "trains": self.trains, "predicted": self.predicted, "bound": self.bound, "measured": self.measured,
                "eager": self.eager, "alone": dict(self.alone or {}),
                "parts": [{"backend": part.backend, "seconds": part.seconds, "operators": list(part.operators)}
                          for part in self.parts]}


def save_assignment(assignment: Assignment, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.backends/1`` file atomically. Raises ``OSError``."""
    write_atomically(path, json.dumps(assignment.to_json(), indent=1, allow_nan=False) + "\n")


def load_assignment(path: str | os.PathLike[str]) -> Assignment:
    """Read a ``weft.backends/1`` file. Raises :class:`~weft.solver.io.entries.FormatError`."""
    return assignment_from_json(read_json(path), os.fspath(path))


def assignment_from_json(value: Any, name: str = "assignment") -> Assignment:
    """The assignment of a ``weft.backends/1`` object. Raises :class:`~weft.solver.io.entries.FormatError`."""
    entry = Entry(value, name)
    require_format(entry, ASSIGNMENT_FORMAT)
    entry.allow("format", "model", "digest", "machine", "trains", "predicted", "bound", "measured", "eager", "alone",
                "parts")
    parts = []
    for item in entry.list("parts"):
        item.allow("backend", "seconds", "operators")
        operators = tuple(child.text("name") for child in item.list("operators", text_as="name"))
        parts.append(AssignedPart(item.text("backend"), operators, float(item.number("seconds"))))
    alone = entry.child("alone")
    measured, eager = (None if entry.get(field) is None else float(entry.number(field))
                       for field in ("measured", "eager"))
    return Assignment(entry.text("model"), entry.text("digest"), entry.text("machine"), tuple(parts),
                      float(entry.number("predicted")), float(entry.number("bound")), measured, eager,
                      {backend: float(alone.number(backend)) for backend in alone.value}, entry.get("trains") is True)
