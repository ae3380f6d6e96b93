"""The nodes of the search over problems with something left to decide: what the tree asks of one, and open choices.

A node stands for a set of plain problems. Its bound holds for all of them; its children divide them; a leaf has one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from weft.solver.wide.block import Options
from weft.solver.wide.run import Rounds


class ChoiceNode(Protocol):
    """Some of what may be decided is.

    ``bound``: no schedule of any problem below is better, in the problem's time unit; infinite where none has one.
    ``options``: those taken so far. ``key``: what no other node of the tree has; two ways to one leaf may have one key.
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
        """The plain problem of a leaf. Raises :class:`~weft.solver.problem.ProblemError` where it is none."""
        ...

    def looks(self) -> Sequence[ChoiceNode]:
        """Leaves below this node where known schedules are tried first."""
        ...

    def beside(self, leaf: ChoiceNode) -> Sequence[ChoiceNode]:
        """Leaves below this node that differ from ``leaf`` by little."""
        ...
