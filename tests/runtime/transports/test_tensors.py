"""What is said of messages of unknown shapes, and the memory that grows for them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.runtime.transports.interface import TransportError
from weft.runtime.transports.tensors import (
    DTYPES,
    Growing,
    allocate,
    describe,
    described,
    layout_of,
    rest_of,
    view,
    words_of,
)

LENGTHS = st.lists(st.integers(0, 3), max_size=11).map(tuple)


@given(st.lists(st.tuples(LENGTHS, st.sampled_from(DTYPES), st.booleans()), min_size=1, max_size=3))
def test_what_is_described_is_what_there_is(
        tensors: list[tuple[tuple[int, ...], torch.dtype, bool]]) -> None:
    """Of any number of dimensions, more than a description has room for among them; some are left out."""
    layout = layout_of({f"t{i}": ((None,), dtype) for i, (_, dtype, _) in enumerate(tensors)})
    parcel = {f"t{i}": torch.empty(shape, dtype=dtype) for i, (shape, dtype, is_sent) in enumerate(tensors) if is_sent}
    words, rest = [7] * words_of(layout), rest_of(layout, parcel)
    describe(layout, parcel, words, (len(rest), 42))
    assert words[:2] == [len(rest), 42]
    found = described(layout, words, rest)
    assert [(said.name, said.dtype, said.shape, said.address) for said in found] == [
        (name, tensor.dtype, tuple(tensor.shape), tensor.data_ptr()) for name, tensor in parcel.items()]
    memory = Growing(torch.device("cpu"))
    landed: dict[str, torch.Tensor] = {}
    memory.land(found, landed)
    for number, (name, tensor) in enumerate(landed.items()):
        assert (tensor.shape, tensor.dtype) == (parcel[name].shape, parcel[name].dtype)
        tensor.view(-1).view(torch.uint8).fill_(number + 1)
    for number, tensor in enumerate(landed.values()):
        assert bool((tensor.view(-1).view(torch.uint8) == number + 1).all())  # no two lie in one place


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=30))
def test_memory_grows_by_half_of_what_it_becomes_and_is_kept(sizes: list[int]) -> None:
    memory, places = Growing(torch.device("cpu")), []
    for size in sizes:
        before = memory.memory
        assert len(memory.room(size)) >= size
        if memory.memory is not before:
            assert len(before) < size and len(memory.memory) >= 2 * len(before)
            places.append(len(memory.memory))
    assert len(memory.memory) <= 2 * max(sizes)
    assert len(places) <= 1 + max(sizes).bit_length()


def test_a_type_without_a_number_is_refused() -> None:
    layout = layout_of({"x": ((None,), torch.float8_e4m3fnuz)})
    with pytest.raises(TransportError, match=r"x is of torch\.float8_e4m3fnuz, which cannot be sent"):
        describe(layout, {"x": torch.empty(2, dtype=torch.float8_e4m3fnuz)}, [0] * words_of(layout))


def test_a_parcel_lies_in_one_buffer_at_aligned_places() -> None:
    layout = layout_of({"x": ((3, 2), torch.float64), "y": ((5,), torch.int32)})
    assert layout.size == 64 + 20 and str(layout) == "x [3, 2] of float64 and y [5] of int32"
    memory, = allocate([layout.size], torch.device("cpu"))
    parcel = view(memory, layout)
    parcel["x"].fill_(1)
    parcel["y"].fill_(2)
    assert torch.equal(view(memory, layout)["x"], torch.ones(3, 2, dtype=torch.float64))
    assert parcel["y"].data_ptr() - parcel["x"].data_ptr() == 64
