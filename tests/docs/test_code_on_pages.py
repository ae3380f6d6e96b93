"""The specs and the Python code on the pages work as they stand there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.docs.test_pages import PAGES
from tests.support.paths import ROOT
from weft.models.spec.spec import load_spec
from weft.runtime.ranks.launch import launch_local


def blocks(language: str) -> list[Any]:
    """The code of every block of a language, by page."""
    return [pytest.param(code, id=f"{page.name} {i}") for page in PAGES
            for i, code in enumerate(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"),
                                                re.DOTALL | re.MULTILINE))]


@pytest.mark.parametrize("code", blocks("yaml"))
def test_a_spec_on_a_page_has_a_schedule(code: str, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(code, encoding="utf-8")
    load_spec(tmp_path / "my.yaml")
    assert weft.solve(tmp_path / "my.yaml", effort=0.05).makespan > 0


@pytest.mark.parametrize("code", blocks("python"))
def test_python_on_a_page_compiles(code: str) -> None:
    compile(code, "page", "exec")


def python_on(page: str) -> list[str]:
    """The blocks of Python on a page of docs."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(encoding="utf-8"),
                      re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_experts_move_when_the_gate_of_the_page_becomes_sparse(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "sparse.py").write_text(python_on("RUNNING.md")[1].replace('"runs/', f'"{tmp_path}/'))
    ended = launch_local(2, [sys.executable, str(tmp_path / "sparse.py")], timeout=120)
    assert [end.code for end in ended] == [0, 0], ended
    assert "step 1: loss" in ended[0].output and "phase 0" in ended[0].output
    assert ended[0].output.splitlines()[-1].endswith("phase 1")


@pytest.mark.slow
@pytest.mark.parametrize("page", ["PLANS.md", "COMMUNICATION.md", "RUNNING.md"])
def test_whole_examples_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    code = python_on(page)[0]
    exec(compile(code, page, "exec"), {"__name__": "page"})
    assert capsys.readouterr().out
