"""Chunks of torch tensors."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.runtime.communication.chunking import place, put, slice_of, take, whole_places
from weft.runtime.communication.instructions import Chunk, RankTensor

shapes = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(shapes, st.sampled_from([0, 1, None]), st.integers(1, 4), st.integers(1, 3))
def test_chunks_put_back_are_the_tensor(shape: tuple[int, int], axis: int | None, count: int, pieces: int) -> None:
    whole = torch.arange(shape[0] * shape[1] * (12 * pieces) ** 2).reshape(shape[0] * 12 * pieces, -1)
    target, sizes = torch.full_like(whole, -1), []
    for index in range(count):
        chunk = Chunk(axis, index, count, pieces)
        found = take(whole, chunk)
        sizes.append(found.numel())
        there = place(target, chunk)
        put(target, chunk, found)
        assert there is None or torch.equal(there.reshape(-1), found.reshape(-1))
    assert torch.equal(target, whole) and sum(sizes) == whole.numel()


def test_a_chunk_of_every_ranks_slice_is_scattered_into_the_chunk_of_each() -> None:
    whole, ranks = torch.arange(24.0).reshape(12, 2), 3
    for index in range(2):
        chunk = take(whole, Chunk(0, index, 2, pieces=ranks))
        for rank in range(ranks):
            own = take(slice_of(whole, 0, ranks, rank), Chunk(0, index, 2))
            assert torch.equal(chunk.chunk(ranks)[rank], own)


def test_places_are_those_in_the_whole_tensor() -> None:
    value = RankTensor((3,), 8, "sliced", None, (3, 2))
    assert whole_places(value, 2, 1, torch.device("cpu")).tolist() == [3, 4, 5]
    value = RankTensor((3, 1), 8, "sliced", 1, (3, 2))
    assert whole_places(value, 2, 1, torch.device("cpu")).tolist() == [[1], [3], [5]]
    assert whole_places(RankTensor((2,), 8, "local", None, (2,)), 2, 1, torch.device("cpu")).tolist() == [0, 1]
