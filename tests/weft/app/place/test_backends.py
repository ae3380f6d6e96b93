"""`weft place --backends`: what it writes, what it says of backends that it does not use."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from tests.support.commands import refusal
from weft.app.place.backends import choose_backends
from weft.runtime.backends import registry
from weft.runtime.backends.registry import BackendError


@pytest.fixture
def _bad() -> Iterator[None]:
    """Backends that do what they should not are registered; gone afterwards."""
    before = dict(registry.registered())
    import tests.support.bad_backends as own

    importlib.reload(own)
    yield
    registry._REGISTERED.clear()
    registry._REGISTERED.update(before)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(),
                                          (torch.randn(3, 8),)), path)
    return path


@pytest.mark.slow
def test_the_choice_says_what_is_not_used_and_is_never_worse_than_eager(_bad: None, model: Path,
                                                                        tmp_path: Path) -> None:
    found = choose_backends(model, "good,wrong,absent", time_limit=2.0, measure_limit=100.0, trial_limit=60.0,
                            folder=tmp_path / "kept")
    chosen = found.assignment
    assert chosen.measured is not None and chosen.eager is not None and chosen.measured <= chosen.eager
    assert chosen.bound <= chosen.predicted and {part.backend for part in chosen.parts} <= {"eager", "good"}
    notes = " ".join(found.notes)
    assert "absent: skipped" in notes and "wrong: has wrong numbers: the largest error is 0.1" in notes
    assert chosen.model in str(found) and "predicted" in str(found)
    x = torch.randn(3, 8)
    plain = torch.export.load(model).module()
    torch.testing.assert_close(weft.build(model, chosen)(x), plain(x))
    with pytest.raises(BackendError, match="was placed for"):
        weft.build(model, found.to_json())(torch.randn(4, 8))
    late = choose_backends(model, "good", time_limit=2.0, measure_limit=0.0, trial_limit=60.0, folder=tmp_path / "new")
    assert any("were not measured in 0 s" in note for note in late.notes)


@pytest.mark.parametrize(("arguments", "why"), [
    (["{model}", "--backends", "nobody"], "names 'nobody', which nobody has registered"),
    (["spec.yaml", "--backends", "all"], "--backends is for models that torch.export.save wrote"),
    (["absent.pt2", "--backends", "all"], "there is no such file")])
def test_a_mistake_is_one_sentence(arguments: list[str], why: str, model: Path) -> None:
    assert why in refusal("place", *(argument.format(model=model) for argument in arguments))
