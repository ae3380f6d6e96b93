"""Buffers as tensors."""

from __future__ import annotations

import torch

from weft.runtime.transports.buffer_tensors import allocate, layout_of, view


def test_a_parcel_lies_in_one_buffer_at_aligned_places() -> None:
    layout = layout_of({"x": ((3, 2), torch.float64), "y": ((5,), torch.int32)})
    assert layout.size == 64 + 20 and str(layout) == "x [3, 2] of float64 and y [5] of int32"
    memory, = allocate([layout.size], torch.device("cpu"))
    parcel = view(memory, layout)
    parcel["x"].fill_(1)
    parcel["y"].fill_(2)
    assert torch.equal(view(memory, layout)["x"], torch.ones(3, 2, dtype=torch.float64))
    assert parcel["y"].data_ptr() - parcel["x"].data_ptr() == 64
