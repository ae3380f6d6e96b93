"""A pipeline's checkpoints: runs in one folder are kept apart, and other types of weights are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.one_rank import one_rank
from weft.app.pipeline.run.state import PipelineState
from weft.runtime.ranks.session import Session, SessionError


@pytest.fixture
def session() -> Iterator[Session]:
    with one_rank() as found:
        yield found


def state(session: Session, value: float, dtype: torch.dtype = torch.float32) -> PipelineState:
    model = nn.Linear(2, 2).to(dtype)
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    cut: Any = SimpleNamespace(captured=SimpleNamespace(model=model), tensors=lambda stage: list(model.parameters()))
    return PipelineState(session, cut, (0,))


def test_a_run_that_did_not_resume_loses_nothing_and_is_resumed_next(session: Session, tmp_path: Path) -> None:
    old = state(session, 1.0)
    for step in (300, 400):
        old.save(tmp_path, step, None, 2, 0)
    new = state(session, 2.0)
    with pytest.warns(UserWarning, match="holds checkpoints of an earlier run, from which this one does not go on: it"):
        first = new.save(tmp_path, 1, None, 2, 0)
    assert first == tmp_path / "run-002" / "step-000000001" and first.exists()
    assert new.save(tmp_path, 2, None, 2, 0).parent == first.parent
    assert (tmp_path / "step-000000400").exists()
    after = state(session, 3.0)
    found = after.resume(tmp_path, None)
    assert found is not None and found.step == 2 and float(next(after.model.parameters())[0, 0].detach()) == 2.0
    assert after.save(tmp_path, 3, None, 2, 0).parent == first.parent  # one run with that which it went on from
    assert sorted(path.name for path in first.parent.iterdir()) == ["step-000000002", "step-000000003"]


def test_a_checkpoint_of_another_type_is_refused(session: Session, tmp_path: Path) -> None:
    state(session, 1.0, torch.float64).save(tmp_path, 1, None, None, 0)
    other = state(session, 2.0)
    with pytest.raises(SessionError, match="was saved by a pipeline with parameters of float64, this one has float32"):
        other.resume(tmp_path, None)
    assert float(next(other.model.parameters())[0, 0].detach()) == 2.0
