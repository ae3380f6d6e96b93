"""Chunks are all of a tensor, once, and those of slices are of every rank's slice."""

from __future__ import annotations

import pytest

from weft.models.communication.chunks import chunk_places
from weft.models.communication.program import CommunicationTensor, Overlap


@pytest.mark.parametrize("by_slices", [False, True])
@pytest.mark.parametrize(("tensor", "axis", "held"), [
    (CommunicationTensor("t", (24, 2)), 0, 24), (CommunicationTensor("t", (24, 2)), None, 48),
    (CommunicationTensor("t", (24, 2), "local"), 0, 24),
    (CommunicationTensor("t", (24, 4), "sliced", 1), 0, 24), (CommunicationTensor("t", (24, 4), "sliced", 0), 0, 6),
    (CommunicationTensor("t", (24, 4), "sliced", None), None, 24)])
def test_chunks_are_all_of_it(tensor: CommunicationTensor, axis: int | None, held: int, by_slices: bool) -> None:
    if tensor.layout == "sliced" and tensor.axis == axis and not by_slices:
        return  # such a chain is always cut by slices
    overlap = Overlap(("a", "b"), 3, {"t": axis}, by_slices)
    chunks = [chunk_places(tensor, overlap, chunk, 4) for chunk in range(3)]
    assert sorted(i for chunk in chunks for i in chunk) == list(range(held))
    assert len(set(map(len, chunks))) == 1


def test_a_chunk_of_a_whole_tensor_has_a_part_of_every_slice() -> None:
    overlap = Overlap(("a", "b"), 2, {"t": 0}, True)
    assert [*chunk_places(CommunicationTensor("t", (16,), "local"), overlap, 1, 4)] == [2, 3, 6, 7, 10, 11, 14, 15]
    assert [*chunk_places(CommunicationTensor("t", (16,), "sliced", 0), overlap, 1, 4)] == [2, 3]
