"""What the public functions can be given."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from weft.models.spec.spec import Spec
    from weft.solver.problem import Problem

__all__ = ["PathLike", "Source"]

PathLike: TypeAlias = "str | os.PathLike[str]"
#: What can be solved: a model spec or ``weft.problem/1`` file, or what one of them was read into.
Source: TypeAlias = "PathLike | Spec | Problem"
