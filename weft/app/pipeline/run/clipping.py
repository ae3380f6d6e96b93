"""Lets ``torch.nn.utils.clip_grad_norm_`` clip a pipeline's gradients by their norm over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
import torch.nn.utils.clip_grad as torchs
from torch import Tensor, nn

#: The function of torch 2.6 to 2.13 that computes the norm for clipping.
_NORM = "_get_total_norm"


def clipped_over_ranks(trained: Iterable[nn.Parameter], norm: Callable[[Collection[int], float], float]
                       ) -> Callable[[], None]:
    """Let torch clip gradients of ``trained`` by ``norm``, a function of their ids and the kind of norm. Other
    gradients are clipped as before. ``norm`` is called without any gradient too, as other ranks may have some. Returns
    a function that restores torch's own."""
    mine, theirs = list(trained), getattr(torchs, _NORM)

    def over_ranks(tensors: Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False,
                   foreach: bool | None = None) -> Any:
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        own = {id(parameter.grad) for parameter in mine if parameter.grad is not None}
        clipped = {id(gradient) for gradient in given} & own
        if given and not clipped:
            return theirs(given, norm_type, error_if_nonfinite, foreach)
        if len(clipped) < len(given):
            raise ValueError("clip_grad_norm_ is given gradients of the pipeline and others: clip each by itself")
        wide = torch.float64 if any(gradient.dtype == torch.float64 for gradient in given) else torch.float32
        found = torch.tensor(norm(clipped, float(norm_type)), dtype=wide, device=given[0].device if given else None)
        if error_if_nonfinite and not torch.isfinite(found):
            raise RuntimeError(f"the norm of the gradients of all ranks is {float(found)}: it cannot be clipped by")
        return found

    def remove() -> None:
        if getattr(torchs, _NORM) is over_ranks:
            setattr(torchs, _NORM, theirs)

    setattr(torchs, _NORM, over_ranks)
    return remove


def total_norm(gradients: Iterable[Tensor], kind: float, exchange: Callable[[tuple[float, float]],
                                                                            Iterable[tuple[float, float]]]) -> float:
    """The norm of ``gradients`` and those of the other ranks. ``kind``: the exponent. ``exchange`` gathers the kind and
    the partial norm of each rank.

    Raises ``ValueError`` for a ``kind`` that is not positive, or that differs between ranks.
    """
    if not kind > 0:
        raise ValueError(f"norm_type is {kind}, it must be greater than 0")
    own = [float(torch.linalg.vector_norm(gradient.detach(), kind, dtype=torch.float64)) for gradient in gradients]
    mine = max(own, default=0.0) if kind == float("inf") else sum(each ** kind for each in own)
    gathered = list(exchange((kind, mine)))
    if len({other for other, _ in gathered}) > 1:
        raise ValueError("the ranks clip by different kinds of norms: give one norm_type")
    parts = [part for _, part in gathered]
    return max(parts) if kind == float("inf") else float(sum(parts) ** (1 / kind))
