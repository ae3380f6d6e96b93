"""The operators of a memory problem by class, and the choices for each class.

Operators of one class (equal kind and costs) are interchangeable: the numbers of a class that are recomputed and
offloaded determine a choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.solver.placement.memory.plan import MemoryProblem, Mode

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Classes:
    """The operators of a problem by class: ``of`` says which, ``before`` counts the first operators by class, the
    other arrays have one entry a class.

    ``passing``: bytes that stay where a run begins with an operator of the class. ``follows``: the class that stands
    before every operator of it, -1 where there are several.
    """

    of: Ints
    before: Ints
    forward: Ints
    kept: Ints
    passing: Ints
    follows: Ints

    @classmethod
    def make(cls, problem: MemoryProblem) -> Classes:
        """The classes of ``problem``."""
        index: dict[tuple[object, ...], int] = {}
        of = []
        for k, op in enumerate(problem.operators):
            key = (op.kind or ("alone", k), op.forward, op.kept, problem.passing_bytes(k))
            of.append(index.setdefault(key, len(index)))
        keys = list(index)
        before = np.zeros((len(of) + 1, len(keys)), dtype=np.int64)
        follows = np.full(len(keys), -2, dtype=np.int64)
        for k, c in enumerate(of):
            before[k + 1] = before[k]
            before[k + 1, c] += 1
            if k:
                follows[c] = of[k - 1] if follows[c] in (-2, of[k - 1]) else -1
        forward, kept, passing = (np.array([key[field] for key in keys], dtype=np.int64) for field in (1, 2, 3))
        return cls(np.array(of), before, forward, kept, passing, np.maximum(follows, -1))

    def unpaired(self, k: int, first: int, last: int) -> tuple[int, int]:
        """For class ``k`` in a stage: its operators that begin the stage, and operators of the class it follows that
        stand before none of it (the last of the stage apart)."""
        begins = int(self.of[first] == k)
        p = int(self.follows[k])
        if p < 0:
            return begins, 0
        there = self.before[last] - self.before[first]
        return begins, int(there[p]) - (int(there[k]) - begins) - int(self.of[last - 1] == p)


@dataclass(frozen=True)
class ClassCounts:
    """How many operators of each class are recomputed and offloaded."""

    recompute: Ints
    offload: Ints


def modes_of(classes: Classes, first: int, last: int, choice: ClassCounts) -> list[Mode]:
    """A mode for each operator of the stage: the first ones of a class are recomputed, the next offloaded."""
    recompute, offload = choice.recompute.tolist(), choice.offload.tolist()
    modes: list[Mode] = []
    for k in classes.of[first:last].tolist():
        if recompute[k]:
            recompute[k] -= 1
            modes.append("recompute")
        elif offload[k]:
            offload[k] -= 1
            modes.append("offload")
        else:
            modes.append("keep")
    return modes
