"""What the public functions can be given."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weft.models.spec.spec import Spec
    from weft.solver.problem import Problem
    from weft.solver.wide.problem import WideProblem

__all__ = ["MicroBatches", "PathLike", "Source"]

PathLike: TypeAlias = "str | os.PathLike[str]"
#: What can be solved: a model spec or ``weft.problem/1`` file, or what one of them was read into.
Source: TypeAlias = "PathLike | Spec | Problem | WideProblem"
#: How many micro-batches run; with classes the class of each; with jobs one of these for each job.
MicroBatches: TypeAlias = "int | Sequence[str] | Mapping[str, int | Sequence[str]]"
