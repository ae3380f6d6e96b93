"""What a worker keeps of a pass. (Its passes are run by the tests of plans and of pipelines.)"""

from __future__ import annotations

from typing import cast

import torch
from torch.nn.functional import mse_loss

from weft.runtime.train.worker import StageWorker


def test_a_loss_that_is_kept_does_not_keep_what_it_was_computed_in() -> None:
    for loss in (mse_loss(torch.ones(64, 64), torch.zeros(64, 64)), torch.ones(9)[4], torch.ones(())):
        kept = StageWorker._scalar(cast(StageWorker, None), 0, "loss", loss)
        assert kept == loss and kept.untyped_storage().nbytes() == loss.element_size()
