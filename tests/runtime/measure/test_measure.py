"""Memory and times, measured."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from weft.runtime.measure import measure
from weft.runtime.measure.measure import Memory, Sample, memories, memory_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("lean", [measure._LEAN, "99"])  # with and without the calls that are private to torch
def test_every_block_of_memory_is_counted(lean: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_LEAN", lean)

    def run() -> Tensor:
        large = torch.empty(1000, 256)  # 1,024,000 bytes, gone at the end
        return large[:10].clone()

    result, memory = memory_of(run, CPU)
    assert memory == Memory(result.nbytes, 1_024_000 + result.nbytes)


def test_a_sparse_tensor_lies_in_its_places_and_its_values() -> None:
    dense = torch.eye(4, dtype=torch.float64)
    found = [memories(each) for each in (dense, dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc())]
    assert [(len(parts), parts[-1].nbytes()) for parts in found] == [(1, 128), (2, 32), (3, 32), (3, 32)]


def test_the_median_does_not_follow_one_slow_lap() -> None:
    sample = Sample.of([1.0, 1.1, 0.9, 1.0, 60.0])
    assert sample.seconds == 1.0 and sample.repeats == 5 and sample.spread == pytest.approx(0.1)
    assert Sample.of([2.0]) == Sample(2.0, 0.0, 1)
