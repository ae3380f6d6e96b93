"""Full-precision master weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from weft.runtime.interface.precision import MasterWeights
from weft.runtime.train.stage import StageRunner


def test_masters_take_updates_and_sums_that_bf16_would_lose() -> None:
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(1.0)
    layer.to(torch.bfloat16)
    masters = MasterWeights(layer.parameters())
    optimizer = torch.optim.SGD(masters.parameters(), lr=1e-3)
    for split in (False, True):
        runner = StageRunner(layer, split=split, add=masters.add)
        for m, size in enumerate((1.0, 2.0**-9)):  # 1 + 2^-9 is 1 in bf16
            runner.forward(m, torch.ones(1, 1, dtype=torch.bfloat16))
            (runner.input_grad if split else runner.backward)(m, torch.full((1, 1), size, dtype=torch.bfloat16))
            if split:
                runner.weight_grad(m)
        runner.close()
        master, = masters.parameters()
        assert layer.weight.grad is None and master.grad is not None
        assert float(master.grad) == 1 + 2.0**-9
        master.grad = None
    for _ in range(8):
        master.grad = torch.ones(1, 1)
        optimizer.step()
        masters.write_back()
    assert float(master.detach()) == pytest.approx(1 - 8e-3)
    assert float(layer.weight.detach()) == float(torch.tensor(1 - 8e-3).bfloat16())


def test_masters_begin_with_what_was_not_rounded_and_let_go_when_closed() -> None:
    layer = nn.Linear(3, 3)
    full = [p.detach().clone() for p in layer.parameters()]
    layer.to(torch.bfloat16)
    masters = MasterWeights(layer.parameters(), full)
    assert all(torch.equal(master, wanted) for master, wanted in zip(masters.parameters(), full, strict=True))
    masters.close()
    torch.autograd.backward(layer(torch.ones(1, 3, dtype=torch.bfloat16)).sum())
    assert layer.weight.grad is not None


def test_a_parameter_in_full_precision_is_its_own_master() -> None:
    layer = nn.Linear(2, 2)
    masters, parameter = MasterWeights(layer.parameters()), next(layer.parameters())
    assert masters.parameters() == list(layer.parameters()) and masters.of(parameter) is parameter
