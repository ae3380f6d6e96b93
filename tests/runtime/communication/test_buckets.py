"""Parameters in flat buckets, cut over ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.support.sharded_training import LAMB
from weft.runtime.communication.buckets import Bucket, BucketSlice, Member, buckets_of
from weft.runtime.communication.rules import trust_ratios


def parameters(sizes: list[int]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(size, generator=torch.Generator().manual_seed(i))) for i, size in enumerate(sizes)]


def bucket(sizes: list[int], ranks: int, rank: int) -> Bucket:
    members, begin = [], 0
    for i, parameter in enumerate(parameters(sizes)):
        members.append(Member(f"p{i}", parameter, begin))
        begin += sizes[i]
    return Bucket(0, members, ranks, rank, 0)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 4), st.data())
def test_the_sums_that_ranks_get_are_those_of_all_gradients(sizes: list[int], ranks: int, data: st.DataObject) -> None:
    every = [bucket(sizes, ranks, rank) for rank in range(ranks)]
    total = torch.zeros(ranks, every[0].width + 1)
    whole = [torch.zeros(size) for size in sizes]
    missing = 0
    for own in every:
        for i, size in enumerate(sizes):
            if data.draw(st.booleans()):
                gradient = torch.randint(-9, 9, (size,)).float()
                own.take(i, gradient)
                whole[i] += gradient
            else:
                missing += 1
        assert own.is_full == all(own.came)
        total += own.closed()
    for own in every:
        mine = total[own.rank]
        assert mine[-1] == missing
        for segment in own.segments:
            size = segment.end - segment.begin
            assert torch.equal(mine[segment.begin:segment.end],
                               whole[segment.member][segment.offset:segment.offset + size])
    assert sum(s.end - s.begin for own in every for s in own.segments) == sum(sizes)


def test_parameters_are_views_of_the_bucket_and_keep_their_values() -> None:
    own = bucket([3, 4], 2, 1)
    for i, member in enumerate(own.members):
        assert torch.equal(member.parameter, parameters([3, 4])[i])
    own.flat.fill_(5.0)
    assert all(bool((member.parameter == 5.0).all()) for member in own.members)
    assert own.width == 4 and own.slice.numel() == 4
    own.require_in_place()
    own.members[1].parameter.data = torch.zeros(4)
    with pytest.raises(ValueError, match="the parameter 'p1' have been replaced"):
        own.require_in_place()


def test_a_sparse_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the gradient of 'p0' is sparse, .* with sparse=False"):
        bucket([4], 2, 0).take(0, torch.ones(4).to_sparse())


def test_buckets_hold_one_type_and_options_and_at_most_so_many_bytes() -> None:
    named = [(f"p{i}", p, options) for i, (p, options) in enumerate(
        zip([*parameters([4, 4, 4, 40]), nn.Parameter(torch.zeros(2, dtype=torch.float64))], [0, 1, 0, 0, 0],
            strict=True))]
    found = buckets_of(named, 2, 0, 36)
    names = {tuple(member.name for member in one.members) for one in found}
    assert names == {("p0", "p2"), ("p1",), ("p3",), ("p4",)}
    assert [one.number for one in found] == list(range(4))


SIZES = (5, 1, 8, 3)
OPTIONS: dict[str, Any] = {"lr": 0.02, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.05}


def module() -> nn.ParameterList:
    draw = torch.Generator().manual_seed(3)
    return nn.ParameterList([nn.Parameter(torch.randn(size, generator=draw, dtype=torch.float64)) for size in SIZES])


def bucket_of_module(ranks: int, rank: int) -> Bucket:
    begins = [sum(SIZES[:i]) for i in range(len(SIZES))]
    return Bucket(0, [Member(str(i), p, begins[i]) for i, p in enumerate(module())], ranks, rank, 0)


@pytest.mark.parametrize("rule", ["adam", "adamw", "lamb"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_slices_of_all_ranks_are_what_one_process_has(rule: str, ranks: int) -> None:
    plain = module()
    torch_rule = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.get(rule)
    optimizer = LAMB(plain, 0.02, 0.05) if torch_rule is None else torch_rule(plain.parameters(), **OPTIONS)
    options = {**OPTIONS, "eps": 1e-6} if rule == "lamb" else OPTIONS
    every = [BucketSlice(bucket_of_module(ranks, rank), rule) for rank in range(ranks)]
    for step in range(6):
        draw = torch.Generator().manual_seed(step)
        present = [step % 3 != 1 or i != 2 for i in range(len(SIZES))]
        flat = torch.zeros(every[0].bucket.flat.numel(), dtype=torch.float64)
        for i, (parameter, member) in enumerate(zip(plain, every[0].bucket.members, strict=True)):
            gradient = torch.randn(parameter.numel(), generator=draw, dtype=torch.float64)
            flat[member.begin:member.end] = gradient if present[i] else 7.0  # what nobody may read
            parameter.grad = gradient if present[i] else None
        optimizer.step()
        for own in every:
            own.advance(flat.view(ranks, -1)[own.bucket.rank].clone(), present, options)
        if every[0].by_norms:
            squares = sum((own.squares() for own in every), torch.zeros(2, len(SIZES)))
            for own in every:
                own.apply(options, squares)
    whole = torch.cat([own.bucket.slice for own in every])
    for parameter, member in zip(plain, every[0].bucket.members, strict=True):
        torch.testing.assert_close(whole[member.begin:member.end], parameter.detach(), rtol=0, atol=1e-13)
    assert every[0].steps == [6, 6, 4, 6]
    assert not bool(whole[sum(SIZES):].any())  # what fills up stays zero


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_halves_are_summed_in_single_precision(dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.full((1003,), 20.0, dtype=dtype))  # 401,200 is beyond the largest float16
    own = BucketSlice(Bucket(0, [Member("p", parameter, 0)], 1, 0, 0), "lamb")
    own.advance(torch.ones(1003, dtype=dtype), [True], {**OPTIONS, "eps": 1e-3, "weight_decay": 0.0})
    squares = own.squares()
    assert squares.dtype == torch.float32 and squares[0, 0] == 401_200
    own.apply(OPTIONS, squares)
    torch.testing.assert_close(parameter.detach(), torch.full((1003,), 19.6, dtype=dtype), rtol=0.01, atol=0)


def test_a_norm_of_zero_gives_a_ratio_of_one() -> None:
    assert trust_ratios(torch.tensor([[4.0, 0.0, 9.0], [1.0, 1.0, 0.0]])).tolist() == [2.0, 1.0, 1.0]
