"""What ``weft.solver`` offers: every name is there, the example runs, and importing it loads nothing."""

from __future__ import annotations

import doctest
import subprocess
import sys

import weft.solver


def test_the_example_runs() -> None:
    found = doctest.testmod(weft.solver)
    assert found.attempted >= 7 and not found.failed


def test_every_public_name_stands_where_it_is_said_to() -> None:
    assert sorted(weft.solver._HOME_OF) == sorted(weft.solver.__all__) == sorted(set(dir(weft.solver))
                                                                                & set(weft.solver.__all__))
    for name in weft.solver.__all__:
        value = getattr(weft.solver, name)
        home = getattr(value, "__module__", "")
        assert home in ("", f"weft.solver.{weft.solver._HOME_OF[name]}"), name


def test_importing_it_loads_nothing() -> None:
    heavy = ("numpy", "ortools", "networkx", "torch", "weft.solver.problem")
    subprocess.run([sys.executable, "-c", "import sys, weft.solver\n"
                    f"found = [name for name in {heavy} if name in sys.modules]\n"
                    "assert not found, found\n"
                    "from weft.solver import Problem, Budget, validate\n"
                    "assert 'ortools' not in sys.modules and 'torch' not in sys.modules\n"
                    "try:\n"
                    "    weft.solver.nothing\n"
                    "except AttributeError as error:\n"
                    "    assert 'nothing' in str(error)\n"
                    "else:\n"
                    "    raise AssertionError('it has everything')\n"], check=True)
