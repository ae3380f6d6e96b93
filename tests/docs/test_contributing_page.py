"""CONTRIBUTING.md: each step of its recipes names a file that exists and a line that stands in it."""

from __future__ import annotations

import re

import pytest

from tests.support.imports import located
from tests.support.paths import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^### (Add [^\n]+)\n(.*?)(?=^### |\Z)", PAGE, re.DOTALL | re.MULTILINE))
STEPS = [(title, number, step) for title, text in RECIPES.items()
         for number, step in enumerate(re.split(r"^\d\. ", text, flags=re.MULTILINE)[1:], start=1)]


@pytest.mark.parametrize(("title", "number", "step"), STEPS, ids=[f"{title[4:24]} {number}"
                                                                  for title, number, _ in STEPS])
def test_a_step_has_a_file_and_a_line_of_it(title: str, number: int, step: str) -> None:
    named = re.match(r"`([\w./]+)`", step)
    quoted = re.search(r"^   (?:At|As in `([^`]+)`): `(.+)`$", step, re.MULTILINE)
    assert named and quoted, step
    folder = located(ROOT, named[1].rpartition("/")[0])
    assert "NAME" not in named[1] or folder.is_dir(), f"there is no folder for {named[1]}"
    file = located(ROOT, quoted[1] or named[1])
    assert file.is_file(), f"{file} is not there"
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    assert any(line.startswith(quoted[2]) for line in lines), f"{file} has no line {quoted[2]}"


def test_what_it_says_of_modules_and_options_holds() -> None:
    for module in re.findall(r"python -m ([\w.]+)", PAGE):
        path = ROOT / module.replace(".", "/")
        assert module == "pytest" or path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
