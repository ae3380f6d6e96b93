"""A loss that is not finite ends the run."""

from __future__ import annotations

import pytest
import torch

from weft.runtime.ranks.health import RunError, require_finite


def test_a_loss_that_is_no_number_is_named() -> None:
    require_finite({(0, "loss", 0): torch.tensor(1.0)}, 4)
    with pytest.raises(RunError, match="the loss of micro-batch 2 in batch 4 is nan"):
        require_finite({(0, "loss", 0): torch.tensor(1.0), (0, "loss", 2): torch.tensor(float("nan"))}, 4)
    with pytest.raises(RunError, match="is inf"):
        require_finite({(0, "loss", 1): torch.tensor(float("inf"))}, 0)
