"""An optimizer over parameters that gather no gradients is refused when it steps."""

from __future__ import annotations

import torch
from torch import nn

from weft.app.pipeline.run.optimizers import watched_optimizers


def test_an_optimizer_of_what_is_not_trained_is_heard_of_until_the_watch_ends() -> None:
    model, said = nn.Linear(2, 2), []  # type: nn.Linear, list[str]
    handle = watched_optimizers(model.parameters(), said.append)
    torch.optim.SGD([nn.Parameter(torch.ones(2))]).step()
    assert not said
    torch.optim.SGD(model.parameters()).step()
    assert len(said) == 1 and "build it over pipe.parameters()" in said[0]
    handle.remove()
    torch.optim.SGD(model.parameters()).step()
    assert len(said) == 1
