"""Cached plans are found by calls with equal inputs, and only by these."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.builders import pipeline
from tests.support.one_rank import one_rank
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.plan_cache import PipelineDecision, PlanCache
from weft.runtime.captured.captured import Captured
from weft.runtime.plan.plan import plan_of
from weft.solver.baselines import baseline

X, Y = torch.ones(2, 3), torch.zeros(2, 3)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))


def loss_in(power: int) -> Callable[[Tensor, Tensor], Tensor]:
    if power == 2:
        return lambda found, wanted: ((found - wanted) ** 2).mean()
    return lambda found, wanted: ((found - wanted) ** 4).mean()


def kept(folder: Path | None, module: nn.Module | None = None, x: Tensor = X, target: Any = Y,
         **options: Any) -> PlanCache:
    asked = PipelineOptions(**{"micro_batches": 2, "loss": loss_in(2), "cache": folder, **options})
    with one_rank() as session:
        return PlanCache(Captured.of(module or model(), (x,)), target, session, asked)


@pytest.fixture(scope="module")
def made() -> PipelineDecision:
    plan = plan_of(baseline("1f1b", pipeline([0, 1]), 2))
    return PipelineDecision((1,), plan, ("a note",), (10, 20), lasts=True)


def frozen() -> nn.Module:
    found = model()
    next(found.parameters()).requires_grad_(False)
    return found


CHANGES: dict[str, dict[str, Any]] = {
    "another loss": {"loss": loss_in(4)}, "other arguments": {"loss": partial(nn.functional.mse_loss, reduction="sum")},
    "more micro-batches": {"micro_batches": 4}, "a limit": {"memory": 2**30}, "a spec": {"spec": {"cluster": {}}},
    "a frozen part": {"module": frozen()}, "another shape": {"x": torch.ones(4, 3)},
    "other operators": {"module": nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))},
    "another target": {"target": Y.double()}, "another type": {"dtype": torch.bfloat16}}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_a_plan_depends_on_has_a_plan_of_its_own(change: dict[str, Any], made: PipelineDecision,
                                                      tmp_path: Path) -> None:
    kept(tmp_path).keep(made)
    assert kept(tmp_path).read() is not None and kept(tmp_path, **change).read() is None


@pytest.mark.parametrize("same", [{}, {"seed": 3}, {"clip_norm": 1.0}, {"loss": loss_in(2)}, {"timeout": 9.0}])
def test_what_it_does_not_depend_on_has_the_same(same: dict[str, Any], made: PipelineDecision, tmp_path: Path) -> None:
    kept(tmp_path).keep(made)
    entry = kept(tmp_path, **same).read()
    assert entry is not None
    found = PipelineDecision.from_json(entry)
    assert (found.places, found.plan, found.peaks) == (made.places, made.plan, made.peaks)
    assert found.notes[:1] == made.notes and found.notes[1].startswith("the plan was measured on ")
    assert kept(tmp_path, remeasure=True).read() is None


def test_a_plan_of_a_busy_machine_is_not_kept_nor_one_with_backends_or_without_a_folder(
        made: PipelineDecision, tmp_path: Path) -> None:
    kept(tmp_path).keep(replace(made, lasts=False))
    kept(tmp_path, backends="auto").keep(made)
    kept(None).keep(made)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", [lambda text: text[:-9], lambda text: text.replace("a note", "no note"),
                                    lambda text: json.dumps({**json.loads(text), "checksum": ""})])
def test_an_entry_that_is_damaged_is_none(damage: Callable[[str], str], made: PipelineDecision, tmp_path: Path) -> None:
    kept(tmp_path).keep(made)
    entry, = (tmp_path / "plans").iterdir()
    entry.write_text(damage(entry.read_text()))
    assert kept(tmp_path).read() is None
