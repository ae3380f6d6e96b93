"""Kernels alone: what is counted, and times by a clock that is injected."""

from __future__ import annotations

from dataclasses import asdict
from itertools import count
from typing import get_args

import pytest
import torch

from weft.models.hardware.device_files import DeviceTable, KernelSample
from weft.models.hardware.device_type import KernelClass
from weft.runtime.measure.kernels import _Autograd, measure_kernels
from weft.runtime.measure.measure import Timer


def test_all_classes_are_measured_forward_and_backward_by_the_clock_that_is_given() -> None:
    ticks, device = count(), torch.device("cpu")
    found = measure_kernels(device, quick=True, timer=Timer(device, lambda: next(ticks) * 1e-3))
    passes = {(sample.group, sample.which) for sample in found}
    classes = {"launch", *get_args(KernelClass)}
    both = {(group, which) for group in classes for which in ("forward", "backward")}
    assert passes == both | {("memory", "forward")}
    # A lap is one tick. In each pass 32 layers and 64 launches; autograd starts in what is left of a tick.
    by_pass = {(s.group, s.which): s for s in found}
    assert by_pass["launch", "forward"].seconds == pytest.approx(1e-3 / 32)
    assert by_pass["launch", "backward"].seconds == pytest.approx(1e-3 / 64)
    assert by_pass["norm", "forward"].seconds == pytest.approx(1e-3) and by_pass["norm", "forward"].spread < 1e-9
    assert by_pass["norm", "backward"].seconds == pytest.approx(1e-4)  # never less than a tenth of what was measured
    products = [s for s in found if s.group == "gemm" and s.which == "forward"]
    assert {(s.dtype, s.flops) for s in products} == {(dtype, 2.0 * size**3) for dtype in ("float32", "bfloat16")
                                                      for size in (32, 128)}
    measured = DeviceTable("ticks", "", 1, 1, (0.0, 0.0), 1, tuple(
        KernelSample(**asdict(time)) for time in found)).device_type()
    assert measured.product_rate(2.0 * 128**3, "float32", "forward") == pytest.approx(2.0 * 128**3 / (1e-3 - 1e-3 / 32))


def test_a_backward_that_hides_the_start_of_autograd_is_not_shortened_by_it() -> None:
    autograd = _Autograd(start=1.0, hidden=5.0)
    assert [autograd.without(seconds) for seconds in (1.0, 4.0, 6.0)] == [0.1, 3.0, 6.0]
