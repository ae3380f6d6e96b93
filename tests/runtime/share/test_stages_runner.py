"""A job is saved only where all its ranks ended the batch: none waits in the saving for one that has a fault."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from weft.runtime.checkpoint.checkpoint import Checkpoints
from weft.runtime.share.job_runner import RunOptions
from weft.runtime.share.stages_runner import DataParallelRunner
from weft.runtime.share.turns import JobOver


def runner(folder: Path, *, fails: bool = False, every: int = 2) -> DataParallelRunner:
    """At the end of batch 1 of 3."""
    def end(*_: object) -> None:
        if fails:
            raise RuntimeError("the optimizer broke")
    found = DataParallelRunner.__new__(DataParallelRunner)
    mixed = cast(Any, found)
    mixed.job, mixed.training = SimpleNamespace(name="a", ranks=(0, 1)), SimpleNamespace(steps=3)
    mixed.session = SimpleNamespace(counterparts=lambda: None, members=None, watch=SimpleNamespace(
        doing=lambda *_: None, rest=lambda: None))
    mixed.trainer, mixed.step, mixed.fault = SimpleNamespace(end=end), 1, None
    mixed.options = RunOptions(checkpoints=Checkpoints(folder, every))
    mixed._over, mixed._done, mixed._changed = False, set(), threading.Condition()
    return found


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What this rank says; the other one says that it is not well."""
    found: list[int] = []

    def all_reduce(value: torch.Tensor, op: object, group: object) -> None:
        found.append(int(value.item()))
        value.fill_(0)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    return found


def test_a_rank_with_a_fault_says_so_before_the_saving(said: list[int], tmp_path: Path) -> None:
    own = runner(tmp_path, fails=True)
    with pytest.raises(RuntimeError, match="the optimizer broke"):
        own._finish()
    assert said == [0]
    own.fault = (0.0, "it broke")
    with pytest.raises(JobOver):  # its sums do not go on to ask the other ranks once more
        own._await([("B0", 2)], or_fault=True)


def test_the_others_do_not_go_into_the_saving(said: list[int], tmp_path: Path) -> None:
    own = runner(tmp_path)
    with pytest.raises(JobOver):
        own._finish()
    assert said == [1]
    with pytest.raises(JobOver):
        own._await([("B0", 2)])
