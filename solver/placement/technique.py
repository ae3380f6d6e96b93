"""The one interface of all that finds a placement, or proves something about all of them, within a search."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import ClassVar, Protocol, Self, TypeVar

__all__ = ["Technique", "applying"]

B_contra = TypeVar("B_contra", contravariant=True)
B = TypeVar("B")


class Technique(Protocol[B_contra]):
    """One way to find a placement or to raise the bound. The bracket is what the search knows: a technique offers what
    it finds to it and raises its bound; the bracket has every offer judged."""

    name: ClassVar[str]

    @classmethod
    def of(cls, bracket: B_contra) -> Self | None:
        """The technique for this search, or ``None`` where it is not for such graphs or devices."""
        ...

    def improve(self, bracket: B_contra, share: float) -> bool:
        """Try within ``share`` of the time that is left. ``True``: the whole question was put, so more time is all that
        could change the answer; ``False``: the graph is too large for this, or it looks at a part only."""
        ...


def applying(registry: Sequence[type[Technique[B]]], bracket: B, without: Container[str] = ()) -> list[Technique[B]]:
    """The techniques of ``registry`` that are for this search, in order, but those whose names are in ``without``."""
    made = (technique.of(bracket) for technique in registry if technique.name not in without)
    return [technique for technique in made if technique is not None]
