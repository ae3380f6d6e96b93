from __future__ import annotations

import random

import pytest
import torch

from weft.runtime.experts.gate import DensityMonitor, Gate, GateTemperature, balance

E, HIDDEN, TOKENS = 8, 16, 400


def _gate(kind: str = "dts", **options: object) -> Gate:
    torch.manual_seed(0)
    return Gate(HIDDEN, E, kind, **options)  # type: ignore[arg-type]


def _density(gate: Gate, step: int) -> float:
    torch.manual_seed(1)
    gate.step = step
    return float(gate(torch.randn(TOKENS, HIDDEN)).mask.sum()) / TOKENS


def test_active_experts_fall_with_the_temperature_and_end_at_one() -> None:
    gate = _gate(temperature=GateTemperature(2.0, 0.1, 100), hard_at=120)
    densities = [_density(gate, step) for step in range(0, 121, 20)]
    assert densities == sorted(densities, reverse=True)
    assert densities[0] > 0.95 * E
    assert 1 < densities[-2] < 2.5
    assert densities[-1] == 1.0


def test_weights_are_those_above_the_threshold() -> None:
    gate = _gate(threshold=0.05, temperature=GateTemperature(1.0, 1.0, 1))
    found = gate(torch.randn(TOKENS, HIDDEN))
    assert torch.equal(found.weights > 0.05, found.mask)
    assert bool((found.weights.sum(1) <= 1 + 1e-6).all()) and bool((found.weights.sum(1) > 1 - E * 0.05).all())


def test_one_hot_weights_have_the_gradient_of_soft_ones() -> None:
    gate = _gate(hard_at=0)
    x = torch.randn(TOKENS, HIDDEN)
    found = gate(x)
    assert bool((found.weights[found.mask] == 1).all()) and int(found.mask.sum()) == TOKENS
    (found.weights * torch.rand_like(found.weights)).sum().backward()
    grad = gate.logits.weight.grad
    assert grad is not None and float(grad.abs().sum()) > 0


def test_evaluation_takes_the_best_expert_without_noise() -> None:
    gate = _gate().eval()
    x = torch.randn(TOKENS, HIDDEN)
    first, second = gate(x), gate(x)
    assert torch.equal(first.weights, second.weights)
    assert torch.equal(first.mask.to(torch.int64).argmax(1), gate.logits(x).argmax(1))
    assert int(first.mask.sum()) == TOKENS


@pytest.mark.parametrize(("kind", "count"), [("switch", 1), ("top2", 2)])
def test_the_best_are_taken(kind: str, count: int) -> None:
    gate = _gate(kind)
    x = torch.randn(TOKENS, HIDDEN)
    found = gate(x)
    soft = torch.softmax(gate.logits(x), -1)
    assert bool((found.mask.sum(1) == count).all())
    assert torch.equal(soft[found.mask].reshape(TOKENS, count).sum(1), soft.topk(count).values.sum(1))
    wanted = soft.topk(1).values.squeeze(1) if count == 1 else torch.ones(TOKENS)
    torch.testing.assert_close(found.weights.sum(1), wanted)


def test_loads_that_are_even_have_the_least_loss() -> None:
    even = torch.eye(E).repeat(5, 1)
    assert float(balance(even, even > 0)) == pytest.approx(1.0)
    one = torch.zeros(40, E)
    one[:, 2] = 1.0
    assert float(balance(one, one > 0)) == pytest.approx(E)
    assert float(balance(one[:0], one[:0] > 0)) == 0.0


@pytest.mark.parametrize(("make", "says"), [
    (lambda: GateTemperature(0.1, 2.0, 10), "the temperature rises from 0.1 to 2"),
    (lambda: GateTemperature(2.0, 0.0, 10), "must be greater than 0"),
    (lambda: GateTemperature(2.0, 1.0, 0), "decay is 0 steps"),
    (lambda: Gate(4, 4, threshold=1.0), "threshold is 1, it must be between 0 and 1"),
    (lambda: Gate(4, 4, threshold=0.0), "threshold is 0"),
    (lambda: Gate(4, 1, "top2"), "top2 has 1 experts"),
    (lambda: _gate("best"), "there is no gate 'best'"),
])
def test_settings_that_mean_nothing_are_refused(make: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()  # type: ignore[operator]


def _switches(monitor: DensityMonitor, densities: list[float]) -> list[int]:
    phases = [monitor.update(density) for density in densities]
    return [after for before, after in zip([0, *phases], phases, strict=False) if after != before]


def test_a_density_that_falls_passes_every_border_once() -> None:
    falling = [8 - 7 * i / 200 for i in range(201)]
    assert _switches(DensityMonitor([5.0, 2.0]), falling) == [1, 2]


def test_noise_within_the_margin_switches_nothing() -> None:
    draw = random.Random(0)
    noisy = [5.0 * (1 + draw.uniform(-0.2, 0.2)) for _ in range(2000)]
    assert _switches(DensityMonitor([5.0], margin=0.08, share=0.1), noisy) == []
    assert len(_switches(DensityMonitor([5.0], margin=0.0, share=1.0), noisy)) > 500


def test_a_density_that_rises_again_goes_back() -> None:
    assert _switches(DensityMonitor([5.0], share=1.0), [6.0, 4.9, 4.7, 5.1, 5.3]) == [1, 0]


def test_a_jump_may_pass_several_borders() -> None:
    assert _switches(DensityMonitor([5.0, 3.0, 2.0], share=1.0), [8.0, 1.0]) == [3]


@pytest.mark.parametrize("make", [
    lambda: DensityMonitor([2.0, 2.0]), lambda: DensityMonitor([1.0, 2.0]), lambda: DensityMonitor([0.0]),
    lambda: DensityMonitor([2.0], margin=1.0), lambda: DensityMonitor([2.0], share=0.0)])
def test_what_a_monitor_cannot_watch_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"must fall|margin is"):
        make()  # type: ignore[operator]
