"""Adaptive loss scaling for fp16, so that small gradients do not underflow.

Gradients are those of the scaled loss until the end of the batch, then divided by the scale. If one of them is infinite
or NaN, on any rank, all ranks skip the batch: its gradients are dropped, so that the optimizer changes nothing, and the
scale is halved. After :data:`INTERVAL` good batches it is doubled (Micikevicius et al., "Mixed precision training",
ICLR 2018; the numbers are those of ``torch.amp.GradScaler``).
"""

from __future__ import annotations

from typing import Any

#: The first scale, the batches after which it is doubled, and bounds on it.
FIRST, INTERVAL, LEAST, MOST = 2.0**16, 2000, 2.0**-10, 2.0**24


class LossScale:
    """``value``: the current factor of losses; ``good``: the number of batches since it changed; ``skipped``: the
    number of skipped batches."""

    def __init__(self, value: float = FIRST, interval: int = INTERVAL) -> None:
        self.value, self.interval, self.good, self.skipped = value, interval, 0, 0

    def update(self, is_finite: bool) -> None:
        """Update the scale after a batch; ``is_finite``: all of its gradients were finite."""
        if not is_finite:
            self.value, self.good, self.skipped = max(LEAST, self.value / 2), 0, self.skipped + 1
            return
        self.good += 1
        if self.good >= self.interval:
            self.value, self.good = min(MOST, self.value * 2), 0

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"value": self.value, "good": self.good, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self.value, self.good, self.skipped = float(state["value"]), int(state["good"]), int(state["skipped"])
