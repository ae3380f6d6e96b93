"""Operators are timed one by one, each kind once, on numbers made for it."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Node

from tests.support.captured_models import CASES, made
from weft.app.pipeline.planning import times
from weft.app.pipeline.planning.times import operator_seconds, seconds_alone
from weft.runtime.captured.captured import Captured


@pytest.mark.parametrize("name", CASES)
def test_every_operator_has_a_time_but_those_that_take_results_apart(name: str) -> None:
    real, meta = made(name, 4), made(name, 4, device="meta")
    captured = Captured.of(meta.model, real.args, real.kwargs)
    found = operator_seconds(captured, [*real.args, *real.kwargs.values()], 1)
    assert [seconds == 0 for seconds in found] == [node.name.startswith("getitem") for node in captured.calls]


def test_operators_that_are_alike_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(node: Node, *rest: object) -> float:
        measured.append(node.name)
        return len(measured)

    monkeypatch.setattr(times, "_measured", measure)
    case = made("gpt", 4, device="meta")
    captured = Captured.of(case.model, made("gpt", 4).args)
    found = seconds_alone(captured, torch.device("cpu"))
    by_name = dict(zip((node.name for node in captured.calls), found, strict=True))
    assert by_name["linear"] == by_name["linear_4"] != by_name["linear_1"] and len(measured) < len(found) / 2
