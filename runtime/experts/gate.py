"""Gates, which select a token's experts and their weights: dense-to-sparse, Switch, and top-2; and the monitor that
switches phases by the measured density, with hysteresis.

The dense-to-sparse gate (EvoMoE, Nie et al., 2021) draws Gumbel softmax weights at a decreasing temperature: at first
nearly all experts have more weight than the threshold, at the end one has. From step ``hard_at`` on the weights are
one-hot, with the gradient of the soft ones (straight-through). Evaluation uses the best expert, without noise. Switch
(Fedus et al., 2021) weights the best expert by its probability; ``top2`` (Lepikhin et al., 2020) weights the best two
by their normalised probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn

GateKind: TypeAlias = Literal["dts", "switch", "top2"]


@dataclass(frozen=True, slots=True)
class GateTemperature:
    """Decreases from ``start`` to ``end`` in ``decay`` steps, exponentially or linearly, and is then constant."""

    start: float = 2.0
    end: float = 0.1
    decay: int = 1000
    exponential: bool = True

    def __post_init__(self) -> None:
        if not (self.end > 0 and math.isfinite(self.start)):
            raise ValueError(f"the temperature goes from {self.start:g} to {self.end:g}, both must be greater than 0")
        if self.end > self.start:
            raise ValueError(f"the temperature rises from {self.start:g} to {self.end:g}, but a gate becomes sparse as "
                             "it falls: give an end of at most start")
        if self.decay < 1:
            raise ValueError(f"decay is {self.decay} steps, it must be at least 1")

    def at(self, step: int) -> float:
        """The temperature at ``step``."""
        part = min(step / self.decay, 1.0)
        if not self.exponential:
            return self.start + (self.end - self.start) * part
        return self.start * float((self.end / self.start) ** part)


class Gating(NamedTuple):
    """``weights`` and ``mask`` by token and expert; a weight is 0 where the mask is false. ``loss``: the auxiliary loss
    that balances the load."""

    weights: Tensor
    mask: Tensor
    loss: Tensor


class Gate(nn.Module):
    """The gate of ``experts`` experts over tokens of width ``hidden``.

    ``temperature``, ``threshold`` and ``hard_at`` are the dense-to-sparse gate's. :attr:`step` is the training step,
    set by the trainer. Random numbers are torch's own. Raises ``ValueError`` for invalid settings.
    """

    def __init__(self, hidden: int, experts: int, kind: GateKind = "dts", *, temperature: GateTemperature | None = None,
                 threshold: float = 0.001, hard_at: int | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if kind not in get_args(GateKind):
            raise ValueError(f"there is no gate {kind!r}: take one of {', '.join(get_args(GateKind))}")
        if not 0 < threshold < 1:
            raise ValueError(f"threshold is {threshold:g}, it must be between 0 and 1: the weights of a token's "
                             "experts add up to 1")
        if experts < (2 if kind == "top2" else 1):
            raise ValueError(f"{kind} has {experts} experts to choose from, it needs more")
        self.kind, self.threshold, self.hard_at = kind, threshold, hard_at
        self.temperature = temperature or GateTemperature()
        self.step = 0
        self.logits = nn.Linear(hidden, experts, bias=False, dtype=dtype)

    @property
    def is_hard(self) -> bool:
        """Whether training has reached the step from which one expert is used."""
        return self.hard_at is not None and self.step >= self.hard_at

    def forward(self, x: Tensor) -> Gating:
        """Weights of ``x`` (tokens, hidden)."""
        logits = self.logits(x)
        if self.kind != "dts":
            weights, mask = _best(torch.softmax(logits, -1), 2 if self.kind == "top2" else 1)
        elif not self.training:
            mask = _one_hot(logits)
            weights = mask.to(logits.dtype)
        else:
            weights, mask = self._drawn(logits)
        return Gating(weights, mask, balance(weights, mask))

    def _drawn(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        noise = -torch.empty_like(logits).exponential_().log()
        soft = torch.softmax((logits + noise) / self.temperature.at(self.step), -1)
        if self.is_hard:
            mask = _one_hot(soft)
            return mask * (1 + (soft - soft.detach())), mask
        mask = (soft > self.threshold) | _one_hot(soft)
        return mask * soft, mask


def balance(weights: Tensor, mask: Tensor) -> Tensor:
    """The load-balancing loss: the number of experts squared, times the mean over experts of their mean weight times
    the share of tokens that use them. It is least for a uniform load. A scalar; 0 without tokens."""
    if not len(weights):
        return weights.sum()
    return weights.shape[1] * (weights.mean(0) * mask.to(weights.dtype).mean(0)).sum()


def _one_hot(values: Tensor) -> Tensor:
    """The position of the greatest value of each row, the first of equal ones."""
    return torch.zeros_like(values, dtype=torch.bool).scatter_(-1, values.argmax(-1, keepdim=True), True)


def _best(soft: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest weights of each token; with several, normalised to sum to 1."""
    chosen = soft.topk(count, -1).indices
    mask = torch.zeros_like(soft, dtype=torch.bool).scatter_(-1, chosen, True)
    weights = mask * soft
    return (weights / weights.sum(-1, keepdim=True) if count > 1 else weights), mask


class DensityMonitor:
    """The current phase, according to the measured density and ``borders``, which are descending densities.

    The density is smoothed exponentially (each new one counts ``share``). A border is crossed, in either direction,
    when the smoothed density is beyond it by more than the share ``margin`` of it, so noise within the margin does not
    switch phases.
    Raises ``ValueError`` for borders that do not descend and invalid settings.
    """

    def __init__(self, borders: Sequence[float], *, margin: float = 0.05, share: float = 0.1, phase: int = 0) -> None:
        if any(after >= before for before, after in pairwise(borders)) or any(border <= 0 for border in borders):
            raise ValueError(f"the borders between phases are {list(borders)}, they must fall and be greater than 0")
        if not 0 <= margin < 1 or not 0 < share <= 1:
            raise ValueError(f"margin is {margin:g} and share {share:g}: a margin is at least 0 and below 1, a share "
                             "more than 0 and at most 1")
        self.borders, self.margin, self.share = tuple(borders), margin, share
        self.phase = phase
        self.density: float | None = None

    def update(self, density: float) -> int:
        """Record a measured ``density``; returns the phase that is due from now on."""
        self.density = density if self.density is None else self.density + self.share * (density - self.density)
        while self.phase < len(self.borders) and self.density < self.borders[self.phase] * (1 - self.margin):
            self.phase += 1
        while self.phase and self.density > self.borders[self.phase - 1] * (1 + self.margin):
            self.phase -= 1
        return self.phase
