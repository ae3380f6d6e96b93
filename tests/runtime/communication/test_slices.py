"""What rules do with slices, on virtual ranks, against torch's optimizers and LAMB as it is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.sharded_training import LAMB
from weft.runtime.communication.buckets import Bucket, Member
from weft.runtime.communication.rules import trust_ratios
from weft.runtime.communication.slices import Slice

SIZES = (5, 1, 8, 3)
OPTIONS: dict[str, Any] = {"lr": 0.02, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.05}


def module() -> nn.ParameterList:
    draw = torch.Generator().manual_seed(3)
    return nn.ParameterList([nn.Parameter(torch.randn(size, generator=draw, dtype=torch.float64)) for size in SIZES])


def bucket(ranks: int, rank: int) -> Bucket:
    begins = [sum(SIZES[:i]) for i in range(len(SIZES))]
    return Bucket(0, [Member(str(i), p, begins[i]) for i, p in enumerate(module())], ranks, rank, 0)


@pytest.mark.parametrize("rule", ["adam", "adamw", "lamb"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_slices_of_all_ranks_are_what_one_process_has(rule: str, ranks: int) -> None:
    plain = module()
    torch_rule = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.get(rule)
    optimizer = LAMB(plain, 0.02, 0.05) if torch_rule is None else torch_rule(plain.parameters(), **OPTIONS)
    options = {**OPTIONS, "eps": 1e-6} if rule == "lamb" else OPTIONS
    every = [Slice(bucket(ranks, rank), rule) for rank in range(ranks)]
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
    own = Slice(Bucket(0, [Member("p", parameter, 0)], 1, 0, 0), "lamb")
    own.advance(torch.ones(1003, dtype=dtype), [True], {**OPTIONS, "eps": 1e-3, "weight_decay": 0.0})
    squares = own.squares()
    assert squares.dtype == torch.float32 and squares[0, 0] == 401_200
    own.apply(OPTIONS, squares)
    torch.testing.assert_close(parameter.detach(), torch.full((1003,), 19.6, dtype=dtype), rtol=0.01, atol=0)


def test_a_norm_of_zero_gives_a_ratio_of_one() -> None:
    assert trust_ratios(torch.tensor([[4.0, 0.0, 9.0], [1.0, 1.0, 0.0]])).tolist() == [2.0, 1.0, 1.0]
