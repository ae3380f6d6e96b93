"""Packages that are imported on use: they are what they are, and nobody else of the solver imports them before."""

from __future__ import annotations

import networkx
from ortools.sat.python import cp_model as real

from weft.solver.late import cp_model, nx


def test_what_is_used_is_the_package_s_own() -> None:
    assert cp_model.CpModel is real.CpModel
    assert nx.DiGraph is networkx.DiGraph
