"""Packages whose names are loaded on first use: ``dir`` shows all of them before."""

from __future__ import annotations

import subprocess
import sys

from tests.support.imports import WEFT

LAZY = sorted(name for name, path in WEFT.files.items()
              if "= lazily(__name__)" in path.read_text(encoding="utf-8"))


def test_lazy_packages_list_their_names_and_load_none() -> None:
    code = "\n".join(["import sys", *(
        f"import {package} as package; before = set(sys.modules); shown = dir(package); "
        "assert set(package.__all__) <= set(shown), set(package.__all__) - set(shown); "
        "assert set(sys.modules) == before" for package in LAZY)])
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_there_are_such_packages() -> None:
    assert {"weft", "weft.plans", "weft.communication", "weft.solver", "weft.models", "weft.runtime"} <= set(LAZY)
