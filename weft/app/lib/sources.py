"""Types of the public functions' arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, Union

if TYPE_CHECKING:
    from weft.models.spec.spec import Spec
    from weft.solver.problem import Problem
    from weft.solver.wide.problem import WideProblem

PathLike: TypeAlias = str | os.PathLike[str]
#: A solvable source: a model spec or ``weft.problem/1`` file, or the object read from one.
Source: TypeAlias = Union[PathLike, "Spec", "Problem", "WideProblem"]
#: The number of micro-batches; with classes the class of each; with jobs one of these for each job.
MicroBatches: TypeAlias = int | Sequence[str] | Mapping[str, int | Sequence[str]]
