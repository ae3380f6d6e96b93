"""Random numbers by step, micro-batch and operator, and nothing else."""

from __future__ import annotations

import torch

from weft.runtime.train.moment import Moment, Seeded, seeds_of


def test_each_step_micro_batch_operator_and_seed_has_numbers_of_its_own() -> None:
    seeds = {Moment(seed, step, micro_batch).seed_of(operator)
             for seed in (0, 1, 2**64 - 1) for step in (0, 1) for micro_batch in (0, 1) for operator in (0, 1)}
    assert len(seeds) == 24 and all(0 <= seed < 2**63 for seed in seeds)
    assert Moment(5, 3, 2).seed_of(1) == Moment(5, 3, 2).seed_of(1)


def test_an_operator_draws_the_same_again_and_leaves_the_generator_alone() -> None:
    dropout = Seeded(torch.ops.aten.dropout.default, 4)
    module, moment, x = torch.nn.ModuleList([dropout]), Moment(1), torch.ones(64)
    seeds_of(module, moment)
    torch.manual_seed(9)
    first = dropout(x, 0.5, True)
    drawn = torch.rand(3)
    again = dropout(x, 0.5, True)
    moment.micro_batch = 1
    other = dropout(x, 0.5, True)
    assert torch.equal(first, again) and not torch.equal(first, other)
    torch.manual_seed(9)
    assert torch.equal(drawn, torch.rand(3))
