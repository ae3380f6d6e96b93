"""How an operator splits, in one line: ``m k+, k+ n -> m n``.

Left of the arrow stand its inputs, right its outputs, each with a name per dimension. A name alone is *spatial*: a part
of the operator reads and gives its part of it. ``k+`` is a *reduction*: it is in no output, and parts of it give terms
of a sum. ``h^`` is *frozen*: it is not cut. ``(h d)`` is one dimension of h x d elements, h changing slowest; ``1`` a
dimension of one element. What an input does not name, all parts read whole. (The notation is that of Lin et al.,
"SuperScaler" / "nnScaler", OSDI 2024.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

__all__ = ["Annotation", "Axis", "PlanError", "Role", "annotation", "mirrored"]

#: The names whose sizes multiply to a dimension's; none for a dimension of one element.
Axis: TypeAlias = tuple[str, ...]
Dimensions: TypeAlias = tuple[Axis, ...]
Role: TypeAlias = Literal["spatial", "reduction", "frozen"]

_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*[+^]?)|(?P<group>\([^()]*\))|(?P<one>1))(?=[\s,]|$)")
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<mark>[+^]?)")


class PlanError(ValueError):
    """A plan that cannot be: an annotation that means nothing, a split that does not divide, a cycle ..."""


@dataclass(frozen=True)
class Annotation:
    """``inputs`` and ``outputs`` by tensor and dimension; ``marks``: the names that are ``+`` or ``^``."""

    inputs: tuple[Dimensions, ...]
    outputs: tuple[Dimensions, ...]
    marks: Mapping[str, str]

    def __str__(self) -> str:
        return " -> ".join(", ".join(" ".join(map(self._axis, tensor)) for tensor in side)
                           for side in (self.inputs, self.outputs))

    def _axis(self, axis: Axis) -> str:
        names = [f"{name}{self.marks.get(name, '')}" for name in axis]
        return "1" if not names else names[0] if len(names) == 1 else f"({' '.join(names)})"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names, in the order in which they first stand."""
        return tuple(dict.fromkeys(name for tensor in (*self.inputs, *self.outputs) for axis in tensor
                                   for name in axis))

    def role(self, name: str) -> Role:
        """What a name is."""
        return {"+": "reduction", "^": "frozen"}.get(self.marks.get(name, ""), "spatial")  # type: ignore[return-value]

    def sizes(self, shapes: Sequence[Sequence[int]], known: Mapping[str, int] | None = None) -> dict[str, int]:
        """The size of each name from the shapes of the inputs, beside those ``known``.

        Raises :class:`PlanError` where shapes and names do not fit.
        """
        found = dict(known or {})
        if len(shapes) != len(self.inputs):
            raise PlanError(f"the annotation {self} has {len(self.inputs)} inputs, {len(shapes)} are given")
        for shape, tensor in zip(shapes, self.inputs, strict=True):
            if len(shape) != len(tensor):
                raise PlanError(f"the annotation {self} names {len(tensor)} dimensions of an input of shape "
                                f"{tuple(shape)}")
        pairs = [(axis, size) for shape, tensor in zip(shapes, self.inputs, strict=True)
                 for size, axis in zip(shape, tensor, strict=True)]
        for _ in range(len(pairs) + 1):  # a name may stand alone only behind the group that needs it
            for axis, size in pairs:
                missing = [name for name in axis if name not in found]
                rest = math.prod(found[name] for name in axis if name in found)
                if len(missing) == 1 and rest and size % rest == 0:
                    found[missing[0]] = size // rest
                elif not missing and rest != size:
                    raise PlanError(f"the annotation {self}: {self._axis(axis)} is {rest} in one place and {size} in "
                                    "another")
        for name in self.names:
            if name not in found:
                raise PlanError(f"the annotation {self}: the size of {name!r} follows from no shape; give it")
        return found

    @staticmethod
    def shape(tensor: Dimensions, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of a tensor under ``sizes``."""
        return tuple(math.prod(sizes[name] for name in axis) for axis in tensor)


def annotation(text: str) -> Annotation:
    """The annotation that ``text`` writes. Raises :class:`PlanError` with the fault."""
    sides = text.split("->")
    if len(sides) != 2:
        raise PlanError(f"the annotation {text!r} needs one arrow: inputs -> outputs")
    marks: dict[str, str] = {}
    plain: set[str] = set()
    inputs, outputs = (tuple(_tensor(part, text, marks, plain) for part in side.split(",")) for side in sides)
    found = Annotation(inputs, outputs, marks)
    _require_roles(found, text)
    return found


def mirrored(inputs: Sequence[Dimensions], outputs: Sequence[Dimensions], frozen: Iterable[str]) -> Annotation:
    """The annotation of an operator that sums over what no output names, as gradients do."""
    given = {name for tensor in outputs for axis in tensor for name in axis}
    marks = {name: "+" for tensor in inputs for axis in tensor for name in axis if name not in given}
    marks |= dict.fromkeys((name for name in frozen if name in marks or name in given), "^")
    every = [{name for axis in tensor for name in axis} for tensor in outputs]
    marks |= {name: "^" for name in given if not all(name in names for names in every)}
    return Annotation(tuple(inputs), tuple(outputs), marks)


def _tensor(part: str, text: str, marks: dict[str, str], plain: set[str]) -> Dimensions:
    axes: list[Axis] = []
    at = 0
    part = part.strip()
    while at < len(part):
        token = _TOKEN.match(part, at)
        if token is None:
            raise PlanError(f"the annotation {text!r}: {part[at:].strip()!r} is no dimension; write a name, one with + "
                            "or ^, a group in parentheses, or 1")
        at = token.end()
        axis = []
        for found in _NAME.finditer(token["name"] or token["group"] or ""):
            name, mark = found["name"], found["mark"]
            if marks.get(name, mark) != mark and mark:
                raise PlanError(f"the annotation {text!r}: {name!r} is marked + and ^")
            if mark:
                marks[name] = mark
            else:
                plain.add(name)
            axis.append(name)
        axes.append(tuple(axis))
    names = [name for axis in axes for name in axis]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(f"the annotation {text!r}: {name!r} stands twice in one tensor")
    return tuple(axes)


def _require_roles(found: Annotation, text: str) -> None:
    given = [{name for axis in tensor for name in axis} for tensor in found.outputs]
    for name in found.names:
        missing = [names for names in given if name not in names]
        if found.role(name) == "spatial" and missing:
            raise PlanError(f"the annotation {text!r}: {name!r} is spatial, but an output does not have it; write "
                            f"{name}+ if parts of it are terms of a sum, {name}^ if it is not to be cut")
        if found.role(name) == "reduction" and len(missing) < len(given):
            raise PlanError(f"the annotation {text!r}: {name!r} is a reduction, but an output has it; write {name} or "
                            f"{name}^")
