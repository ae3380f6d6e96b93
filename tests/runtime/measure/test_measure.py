"""Memory and times, measured."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from weft.runtime.measure.measure import Memory, Sample, memory_of

CPU = torch.device("cpu")


def test_every_block_of_memory_is_counted() -> None:
    def run() -> Tensor:
        large = torch.empty(1000, 256)  # 1,024,000 bytes, gone at the end
        return large[:10].clone()

    result, memory = memory_of(run, CPU)
    assert memory == Memory(result.nbytes, 1_024_000 + result.nbytes)


def test_the_median_does_not_follow_one_slow_lap() -> None:
    sample = Sample.of([1.0, 1.1, 0.9, 1.0, 60.0])
    assert sample.seconds == 1.0 and sample.repeats == 5 and sample.spread == pytest.approx(0.1)
    assert Sample.of([2.0]) == Sample(2.0, 0.0, 1)
