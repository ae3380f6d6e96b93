"""Kernels with torch against those of the interpreter.

Chunks of torch tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.models.communication.functions import FUNCTIONS
from weft.models.communication.interpreter import dropped as by_numpy
from weft.runtime.communication.calls import KERNELS, dropped, place, put, slice_of, take, whole_places
from weft.runtime.communication.instructions import Chunk, RankTensor, StageCall

ATTRIBUTES: dict[str, dict[str, Any]] = {
    "scale": {"factor": 0.3}, "descend": {"rate": 0.1}, "mean_of": {"beta": 0.9}, "square_of": {"beta": 0.99},
    "adam_direction": {"betas": (0.9, 0.99), "eps": 1e-8}, "decayed": {"decay": 0.1}}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_pointwise_functions_are_those_of_numpy(name: str) -> None:
    function = FUNCTIONS[name]
    operands = [np.abs(np.random.default_rng(i).standard_normal((3, 4))) + 1.0 for i in range(function.arity)]
    if name == "trust":
        operands[1:] = [np.array(2.0), np.array(0.0)]
    attributes = ATTRIBUTES.get(name, {})
    call = StageCall("s", "pointwise", ("a",) * function.arity, ("b",), attributes, function.compute)
    found = KERNELS["pointwise"](call, [torch.tensor(operand) for operand in operands])
    np.testing.assert_allclose(found.numpy(), function.compute(np, *operands, **attributes), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(("rate", "seed"), [(0.1, 0), (0.5, 7), (0.0, 2**40)])
def test_the_same_elements_are_dropped_as_by_the_interpreter(rate: float, seed: int) -> None:
    places = np.arange(5000)
    assert np.array_equal(dropped(torch.tensor(places), rate, seed).numpy(), by_numpy(places, rate, seed))


def test_a_pointwise_stage_has_the_widest_type_also_where_that_is_a_single_numbers() -> None:
    call = StageCall("s", "pointwise", ("a", "b"), ("c",), {}, FUNCTIONS["add"].compute)
    third = torch.tensor(1 / 3, dtype=torch.float64)
    found = KERNELS["pointwise"](call, [torch.zeros(2), third])
    assert found.dtype == torch.float64 and bool((found == third).all())


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
