"""Operators are timed one by one, each kind once, on numbers made for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx import Node

from tests.support.captured_models import CASES, made
from weft.app.pipeline.planning import times
from weft.app.pipeline.planning.times import operator_seconds, seconds_alone
from weft.runtime.captured.captured import Captured
from weft.runtime.measure.measure import Timer


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


def test_operators_that_are_alike_take_the_median_and_the_last_has_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    laps = map(float, range(1, 1000))

    def lap(self: Timer, run: Callable[[], object]) -> tuple[object, float]:
        return run(), next(laps)

    monkeypatch.setattr(Timer, "lap", lap)
    case = made("gpt", 4)
    captured = Captured.of(case.model, case.args)
    plain = operator_seconds(captured, case.args, 1)
    by_name = dict(zip((node.name for node in captured.calls), plain, strict=True))
    assert by_name["linear"] == by_name["linear_4"] != by_name["linear_1"]
    laps = map(float, [1] * 1000)
    whole = operator_seconds(captured, case.args, 1, lambda output: output.float().mean())
    assert whole[:-1] == [3.0] * (len(whole) - 1) and whole[-1] == 4.0
    assert operator_seconds(captured, case.args, 1, lambda output: output.nothing)[-1] == 3.0  # said elsewhere
