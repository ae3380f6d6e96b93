"""``torch.nn.utils.clip_grad_norm_`` on the gradients of a pipeline: by the norm over all ranks, on each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
import torch.nn.utils.clip_grad as torchs
from torch import Tensor, nn

#: What torch, 2.6 to 2.13, takes the norm with that it clips by.
_NORM = "_get_total_norm"


def clipped_over_ranks(trained: Iterable[nn.Parameter], norm: Callable[[Collection[int], float], float]
                       ) -> Callable[[], None]:
    """From here on torch clips gradients of ``trained`` by what ``norm`` gives, which is told their ids and the kind of
    the norm, and any others as it did; until what is returned is called. Where there are none at all ``norm`` is asked
    too: other ranks may have some."""
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
    """The norm of that kind of ``gradients`` and those of the other ranks, who are told of by ``exchange``.

    Raises ``ValueError`` for ranks that take different ones, or one that is none.
    """
    if not kind > 0:
        raise ValueError(f"norm_type is {kind}, it must be greater than 0")
    own = [float(torch.linalg.vector_norm(gradient.detach(), kind, dtype=torch.float64)) for gradient in gradients]
    told = list(exchange((kind, max(own, default=0.0) if kind == float("inf") else sum(each ** kind for each in own))))
    if len({other for other, _ in told}) > 1:
        raise ValueError("the ranks clip by different kinds of norms: give one norm_type")
    parts = [part for _, part in told]
    return max(parts) if kind == float("inf") else float(sum(parts) ** (1 / kind))
