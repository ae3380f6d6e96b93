"""Packages that are imported on use: they are what they are, and nobody else of the solver imports them before."""

from __future__ import annotations

import subprocess
import sys

import networkx
from ortools.sat.python import cp_model as real

from weft.solver.late import cp_model, nx


def test_what_is_used_is_the_package_s_own() -> None:
    assert cp_model.CpModel is real.CpModel
    assert nx.DiGraph is networkx.DiGraph


def test_a_package_is_imported_when_it_is_used() -> None:
    code = ("import sys; from weft.solver.late import cp_model, nx; import weft.solver.step.search; "
            "heavy = {'networkx', 'ortools'}; assert not heavy & set(sys.modules); nx.DiGraph; "
            "assert heavy & set(sys.modules) == {'networkx'}; cp_model.CpModel; assert heavy <= set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
