"""A pipeline that follows a family of plans: losses as without switching, killed between, by steps and by a density."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.follow_ranks import STEPS, SWITCHES
from tests.support.ranks import finished
from weft.app.pipeline.run.following import Following, _steps
from weft.runtime.captured.captured import CaptureError
from weft.runtime.experts.gate import DensityMonitor
from weft.solver.io.entries import FormatError


@pytest.mark.slow
def test_switching_plans_changes_no_loss(tmp_path: Path) -> None:
    finished(2, "tests.support.follow_ranks", str(tmp_path))
    found = {part: [torch.load(tmp_path / f"{part}.{rank}.pt") for rank in range(2)]
             for part in ("plain", "steps", "density", "killed", "resumed")}
    for rank in range(2):
        plain, steps, killed, resumed = (found[part][rank] for part in ("plain", "steps", "killed", "resumed"))
        assert plain["ran"] == [[20]] * STEPS
        assert steps["ran"] == [[20], [20], [40], [40], [20], [20]] == killed["ran"] + resumed["ran"]
        assert found["density"][rank]["ran"][0] == [20] and found["density"][rank]["ran"][-1] == [40]
        for other in (steps["losses"], killed["losses"] + resumed["losses"], found["density"][rank]["losses"]):
            assert other == pytest.approx(plain["losses"], rel=1e-10)
        for other in (steps, resumed, found["density"][rank]):
            for name, value in plain["state"].items():
                torch.testing.assert_close(other["state"][name], value, rtol=1e-10, atol=1e-12)
    assert sum(sum(found["steps"][rank]["received"]) for rank in range(2)) > 0


def made(steps: list[tuple[int, int]], monitor: DensityMonitor | None = None) -> Any:
    return Following([], torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0), steps, monitor)


def test_a_checkpoint_of_another_family_is_refused() -> None:
    state = made(SWITCHES).state_dict()
    made(SWITCHES).load_state_dict(state)
    with pytest.raises(ValueError, match="of another family"):
        made([(0, 1)]).load_state_dict(state)
    by_density = made([], DensityMonitor([4.0]))
    by_density.hear([8.0, 8.0])
    again = made([], DensityMonitor([4.0]))
    again.load_state_dict(by_density.state_dict())
    assert again.monitor.density == 8.0
    with pytest.raises(CaptureError, match="by steps, not by a density"):
        made(SWITCHES).hear([1.0])


def test_switches_are_read_from_a_family_and_mistakes_are_named(tmp_path: Path) -> None:
    file = tmp_path / "family.json"
    value: dict[str, Any] = {"format": "weft.family/1", "plans": [{}, {}],
                             "parts": [{"first": 0, "plan": 1}, {"first": 5, "plan": 1}, {"first": 9, "plan": 0}]}
    file.write_text(json.dumps(value))
    assert _steps(file, 2) == ((0, 1), (5, 1), (9, 0))
    with pytest.raises(CaptureError, match="the family has 2 plans, but 3 were given"):
        _steps(file, 3)
    with pytest.raises(FormatError):
        file.write_text("{}")
        _steps(file, 2)
    for wrong, why in (([], "from step 0 on"), ([(1, 0)], "from step 0 on"), ([(0, 0), (0, 1)], "rising"),
                       ([(0, 2)], "names plan 2")):
        with pytest.raises(CaptureError, match=why):
            _steps(wrong, 2)
