"""Parameters in flat buckets, cut over ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from weft.runtime.communication.buckets import Bucket, Member, buckets_of


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


def test_parameters_without_elements_change_nothing() -> None:
    for sizes in ([0], [3, 0, 4], [0, 5], [5, 0, 0]):
        for rank in range(3):
            own = bucket(sizes, 3, rank)
            own.require_in_place()
            for i, size in enumerate(sizes):
                own.take(i, torch.ones(size))
            assert own.is_full and own.closed()[:, :-1].sum() == sum(sizes)


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
