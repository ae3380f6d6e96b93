"""Packages that are imported on use: they are what they are, and nobody else of the solver imports them before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import networkx
import pytest
from ortools.sat.python import cp_model as real

from weft.solver.late import _Late, cp_model, nx


def test_what_is_used_is_the_package_s_own() -> None:
    assert cp_model.CpModel is real.CpModel
    assert nx.DiGraph is networkx.DiGraph


@pytest.mark.parametrize("before", ["", "import pandas; "])
def test_what_a_package_imports_may_wait_in_turn(before: str) -> None:
    code = (f"import sys; {before}there = 'pandas' in sys.modules; from weft.solver.late import cp_model; "
            "model = cp_model.CpModel(); x = model.new_int_var(0, 4, 'x'); model.add(2 * x == 6); "
            "solver = cp_model.CpSolver(); assert solver.solve(model) == cp_model.OPTIMAL and solver.value(x) == 3; "
            "assert ('pandas' in sys.modules) == there; import pandas; "
            "table = model.new_int_var_series('y', pandas.Index(['a']), 0, 4); "
            "assert isinstance(table, pandas.Series); solver.solve(model); assert 0 <= solver.values(table)['a'] <= 4")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_a_package_that_uses_more_of_another_during_its_import_gets_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deferred_one.py").write_text("class Table: rows = 3")
    (tmp_path / "needs_one.py").write_text("import deferred_one\nrows = deferred_one.Table.rows")
    monkeypatch.syspath_prepend(tmp_path)
    assert _Late("needs_one", "deferred_one").rows == 3
    assert sys.modules["deferred_one"].__file__ == str(tmp_path / "deferred_one.py")
