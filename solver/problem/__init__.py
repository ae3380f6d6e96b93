"""What a problem is: one micro-batch's blocks on devices, with choices, jobs and classes where there are any.

A problem of many under an assignment of its choices has none left (:meth:`~weft.solver.problem.problem.Problem.under`);
in the rounds of a :class:`~weft.solver.problem.rounds.Run` what is left is a plain problem
(:class:`~weft.solver.problem.rounds.Rounds`), which is what algorithms schedule.

More memory makes no known schedule worse: :mod:`weft.solver.baselines.rivals.stream` tries the same amounts in any
case. But a search may end with a longer schedule than with less memory, because it starts elsewhere: two of 77 streams
came out 1 % longer. A known answer for less memory can be given as ``start`` of
:func:`weft.solver.step.search.solve`: it fits, and no answer is worse than its start.
"""

from weft.solver.problem.block import (
    Amounts,
    Block,
    BlockKind,
    Dependency,
    Device,
    Link,
    Options,
    changed,
    owners,
    per_class,
)
from weft.solver.problem.problem import Problem
from weft.solver.values import Number, ProblemError

__all__ = ["Amounts", "Block", "BlockKind", "Dependency", "Device", "Link", "Number", "Options", "Problem",
           "ProblemError", "changed", "owners", "per_class"]
