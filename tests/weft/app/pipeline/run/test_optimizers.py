"""An optimizer over parameters that gather no gradients is refused when it steps, a scaler of losses when it is called.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from weft.app.pipeline.run.optimizers import watched_optimizers, watched_scalers
from weft.runtime.interface.optim import AdamA


def test_an_optimizer_of_what_is_not_trained_is_heard_of_until_the_watch_ends() -> None:
    model, said = nn.Linear(2, 2), []  # type: nn.Linear, list[str]
    handle = watched_optimizers([], model.parameters(), said.append)
    torch.optim.SGD([nn.Parameter(torch.ones(2))]).step()
    assert not said
    torch.optim.SGD(model.parameters()).step()
    assert len(said) == 1 and "make it of pipe.parameters()" in said[0]
    handle.remove()
    torch.optim.SGD(model.parameters()).step()
    assert len(said) == 1


def test_an_optimizer_that_would_leave_the_model_as_it_is_is_heard_of() -> None:
    model, said = nn.Linear(2, 2), []  # type: nn.Linear, list[str]
    copied = [nn.Parameter(torch.ones(2))]
    handle = watched_optimizers(model.parameters(), [], said.append)
    try:
        torch.optim.SGD(copied).step()
        assert not said  # nothing has a gradient yet
        model(torch.ones(2)).sum().backward()
        torch.optim.SGD(copied).step()
        assert len(said) == 1 and "would train nothing, as it has none of this rank's parameters" in said[0]
        copied[0].grad = torch.ones(2)
        torch.optim.SGD(copied).step()
        torch.optim.SGD(model.parameters()).step()
        assert len(said) == 1  # something else of the script's, and one that fits
        adama = AdamA(model.parameters())
        for parameter in model.parameters():
            assert parameter.grad is not None
            adama.fold(parameter, parameter.grad, whole=True)
        adama.step()
        assert len(said) == 1  # the script folds by itself
        with pytest.raises(ValueError, match="have not been folded"):
            adama.step()
        assert len(said) == 2 and "AdamA would train nothing here" in said[1]
    finally:
        handle.remove()


def test_zero_1_of_shares_which_torch_cannot_do_is_heard_of() -> None:
    kind: type[nn.Parameter] = type("DTensor", (torch.Tensor,), {})
    shares: list[Any] = [torch.ones(2).as_subclass(kind).requires_grad_()]
    said: list[str] = []
    zero: type[torch.optim.SGD] = type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})
    handle = watched_optimizers(shares, [], said.append)
    try:
        torch.optim.SGD(shares).step()
        assert not said
        zero(shares).step()
        assert len(said) == 1 and "divides an optimizer's states among copies, which shares already are" in said[0]
    finally:
        handle.remove()


def test_a_scaler_of_the_scripts_is_heard_of_with_a_pipelines_loss_or_optimizer() -> None:
    model, other, said = nn.Linear(2, 2), nn.Linear(2, 2), []  # type: nn.Linear, nn.Linear, list[str]
    scaler: Any = GradScaler("cpu")
    off: Any = GradScaler("cpu", enabled=False)
    mine, theirs = torch.optim.SGD(model.parameters()), torch.optim.SGD(other.parameters())
    handle = watched_scalers(model.parameters(), said.append)
    scaler.scale(other(torch.ones(2)).sum()).backward()
    scaler.unscale_(theirs)
    scaler.step(optimizer=theirs)
    assert off.scale(1.0) == 1.0
    off.step(mine)
    assert not said
    for name, given in (("scale", 1.0), ("unscale_", mine), ("step", mine)):
        with suppress(ValueError, AssertionError):  # torch's own
            getattr(scaler, name)(given)
        assert len(said) == 1 and "leave the scaler out" in said.pop()
    handle.remove()
    with pytest.raises(ValueError, match="outputs must be"):
        scaler.scale(1.0)
    assert not said
