"""The nodes of the search over problems with open decisions: the interface that the tree uses, and open choices.

A node represents a set of plain problems. Its bound is valid for all of them; its children divide them; a leaf has one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from weft.solver.problem import Options
from weft.solver.problem.rounds import Rounds


class ChoiceNode(Protocol):
    """A node at which some of the decisions are made.

    ``bound``: no schedule of any problem below is better, in the problem's time unit; infinite if none has one.
    ``options``: those taken so far. ``key``: unique among the nodes of the tree; two ways to one leaf may share one
    key.
    """

    @property
    def bound(self) -> float: ...

    @property
    def options(self) -> Options: ...

    @property
    def key(self) -> Hashable: ...

    def children(self) -> Sequence[ChoiceNode] | None:
        """The same problems divided; ``None`` for a leaf."""
        ...

    def rounds(self) -> Rounds:
        """The plain problem of a leaf. Raises :class:`~weft.solver.problem.ProblemError` if it is not one."""
        ...

    def looks(self) -> Sequence[ChoiceNode]:
        """Leaves below this node where known schedules are tried first."""
        ...

    def beside(self, leaf: ChoiceNode) -> Sequence[ChoiceNode]:
        """Leaves below this node that differ little from ``leaf``."""
        ...
