from __future__ import annotations

import random

import pytest

from weft.runtime.experts.monitor import DensityMonitor


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
def test_settings_that_mean_nothing_are_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"must fall|margin is"):
        make()  # type: ignore[operator]
