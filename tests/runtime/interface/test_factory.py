"""Functions named by ``--stages``: whatever they do, ``weft plan`` says one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import chain, pipeline, refusal
from weft.cli.main import main
from weft.runtime.interface.factory import FactoryError, load_factory
from weft.solver import baseline, save_schedule

MINE = """
import sys
import torch
from torch import nn
from weft.runtime.interface.training import Boundary, Training

def good(plan, rank, **changed):
    fields = {"stages": {rank: nn.Linear(2, 2)}, "boundaries": [Boundary((1, 2))], "inputs": lambda s, m: None}
    return Training(**{**fields, **changed})

def other(plan, rank):
    return 3

def empty(): ...
def broken(plan, rank):
    return {}["weights"]
def leaves(plan, rank):
    sys.exit(3)
def deep(plan, rank):
    return deep(plan, rank)
def numbered(plan, rank):
    return good(plan, rank, stages={"0": nn.Linear(2, 2)})
def unmade(plan, rank):
    return good(plan, rank, stages={rank: nn.Linear})
def listed(plan, rank):
    return good(plan, rank, stages=[nn.Linear(2, 2)])
def shapeless(plan, rank):
    return good(plan, rank, boundaries=[(1, 2)])
def unbounded(plan, rank):
    return good(plan, rank, boundaries=None)
def endless(plan, rank):
    return good(plan, rank, steps=1.5)
def dataless(plan, rank):
    return good(plan, rank, inputs=None)
def lossy(plan, rank):
    return good(plan, rank, loss=3)
def tied(plan, rank):
    return good(plan, rank, ties=[(0, 1)])
def layered(plan, rank):
    return good(plan, rank, layers={0: "embedding"})
names = 3
"""

SENTENCES = {
    "os:system": r"--stages os:system takes (command), it must take a plan and a rank, as function(plan, rank)",
    "nowhere.at.all:f": "--stages nowhere.at.all:f: No module named 'nowhere'",
    ".relative:f": ".relative cannot be imported: TypeError",
    "os:nothing": "--stages os:nothing: module 'os' has no attribute 'nothing'",
    "os": "--stages is 'os', it must be FILE.py:FUNCTION or MODULE:FUNCTION",
    ":f": "--stages is ':f', it must be",
    "none.py:f": "--stages none.py:f: there is no file none.py",
    "raises.py:f": "raises.py cannot be imported: ZeroDivisionError: division by zero",
    "ends.py:f": "ends.py cannot be imported: SystemExit: 0",
    "wrong.py:f": "--stages wrong.py:f: '(' was never closed",
    "mine.py:names": "names is int, it must be a function",
    "mine.py:other": "gave int, it must give a weft.runtime.Training with a rank's stages",
    "mine.py:empty": "takes (), it must take a plan and a rank",
    "mine.py:broken": "broken: KeyError: 'weights' (",
    "mine.py:leaves": "leaves: SystemExit: 3",
    "mine.py:deep": "deep: RecursionError: maximum recursion depth",
    "mine.py:numbered": "it must hold modules by number of their stage",
    "mine.py:unmade": "stages[0] is type, it must be a torch.nn.Module",
    "mine.py:listed": "it must hold modules by number of their stage",
    "mine.py:shapeless": "boundaries has (1, 2), it must be a weft.runtime.Boundary",
    "mine.py:unbounded": "boundaries is NoneType, it must be a list of",
    "mine.py:endless": "steps is 1.5, it must be a number of batches",
    "mine.py:dataless": "inputs is NoneType, it must be a function",
    "mine.py:lossy": "loss is int, it must be a function",
    "mine.py:layered": "layers is {0: 'embedding'}, it must hold lists of names by stage",
    "mine.py:tied": "ties is [(0, 1)], it must be a list of parameters' names by stage",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # what is put there for a file goes with it
    for name, text in (("mine", MINE), ("raises", "1 / 0"), ("ends", "raise SystemExit(0)"), ("wrong", "f(")):
        Path(f"{name}.py").write_text(text)
    save_schedule(baseline("1f1b", pipeline(chain(2)), 2), "schedule.json")
    return tmp_path


@pytest.mark.parametrize("stages", SENTENCES)
def test_whatever_a_function_does_plan_says_one_sentence(here: Path, stages: str) -> None:
    said = refusal("plan", "schedule.json", "-o", "plan.json", "--stages", stages)
    assert said.startswith("weft: --stages") and SENTENCES[stages] in said
    assert not Path("plan.json").exists()


def test_a_function_that_gives_stages_is_taken_from_a_file_or_a_module(
        here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["plan", "schedule.json", "-o", "plan.json", "--stages", "mine.py:good"]) == 0
    monkeypatch.syspath_prepend(str(here))
    assert main(["plan", "schedule.json", "-o", "again.json", "--stages", "mine:good"]) == 0
    assert Path("plan.json").read_text() == Path("again.json").read_text()


def test_what_stages_may_differ_in_needs_stages(here: Path) -> None:
    assert "they need --stages" in refusal("plan", "schedule.json", "--allow-unsplit")


def test_a_file_is_no_module_of_its_name(here: Path) -> None:
    """One called torch.py would be imported instead of torch from then on."""
    Path("torch.py").write_text("def f(plan, rank): return 3")
    with pytest.raises(FactoryError, match="gave int"):
        load_factory("torch.py:f")(None, 0)
    import torch

    assert hasattr(torch, "nn")
