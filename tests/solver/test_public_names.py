"""Packages whose names are loaded on first use: ``dir`` shows all of them before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.imports import Sources
from tests.support.paths import ROOT

LAZY = sorted(name for name, path in Sources(ROOT).files.items()
              if "= lazily(__name__)" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("package", LAZY)
def test_a_lazy_package_lists_its_names_and_loads_none(package: str) -> None:
    code = (f"import sys, {package} as package; before = set(sys.modules); shown = dir(package); "
            "assert set(package.__all__) <= set(shown), set(package.__all__) - set(shown); "
            "assert set(sys.modules) == before")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_there_are_such_packages() -> None:
    assert {"weft", "weft.plans", "weft.communication", "weft.solver", "weft.models", "weft.runtime"} <= set(LAZY)
