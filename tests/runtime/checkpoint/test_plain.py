"""States of schedulers and the like come back from JSON as they were."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR, OneCycleLR, SequentialLR

from weft.runtime.checkpoint.optimizer_state import OptimizerStateError
from weft.runtime.checkpoint.plain import extra_of, give_extra


def schedulers(lr: float) -> tuple[torch.optim.Optimizer, list[LRScheduler]]:
    """One of each kind, over one optimizer a kind."""
    def fresh() -> torch.optim.Optimizer:
        return torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=lr)

    row = fresh()
    return row, [MultiStepLR(fresh(), [2, 3, 3]), OneCycleLR(fresh(), 0.1, total_steps=9), SequentialLR(
        row, [CosineAnnealingLR(row, 4), MultiStepLR(row, [1])], milestones=[2])]


def rates(found: list[LRScheduler]) -> list[list[float]]:
    return [list(map(float, each.get_last_lr())) for each in found]


@pytest.mark.filterwarnings("ignore:.*optimizer.step.*", "ignore:.*epoch parameter.*")
def test_schedulers_go_on_from_what_json_has_of_them() -> None:
    _, first = schedulers(0.5)
    for _ in range(3):
        for each in first:
            each.step()
    saved = json.loads(json.dumps(extra_of({str(i): each for i, each in enumerate(first)})))
    _, second = schedulers(0.5)
    give_extra({str(i): each for i, each in enumerate(second)}, saved)
    assert rates(second) == rates(first)
    milestones: Any = second[0].state_dict()["milestones"]
    assert type(milestones).__name__ == "Counter" and milestones == {2: 1, 3: 2}
    assert [each.state_dict()["last_epoch"] for each in second] == [3, 3, 3]


def test_what_cannot_be_saved_or_given_is_said() -> None:
    class Held:
        def state_dict(self) -> dict[str, Any]:
            return {"rows": [object()]}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("rows")

    with pytest.raises(OptimizerStateError, match=r"held\.rows is object, which cannot be saved"):
        extra_of({"held": Held()})
    with pytest.raises(OptimizerStateError, match="extra has int as 'epoch', which has no state_dict"):
        extra_of({"epoch": 3})
    with pytest.raises(OptimizerStateError, match=r"nothing was saved as 'held' \(there is nothing\)"):
        give_extra({"held": Held()}, {})
    with pytest.raises(OptimizerStateError, match="Held does not take what was saved as 'held': KeyError: 'rows'"):
        give_extra({"held": Held()}, {"held": {}})
