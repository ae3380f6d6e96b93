"""One call of a captured program made runnable: random tensors on a device in place of fake ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from weft.models.capture.calls import ProgramRun, TracedCall
from weft.models.capture.capture import signature
from weft.models.capture.operator_costs import mutated

#: Lookup operators: the position of the table among the arguments, and the axis of the lookup.
_LOOK_UPS = {"embedding": (0, 0), "cross_entropy_loss": (0, 1), "nll_loss_nd": (0, 1), "nll_loss": (0, 1)}


def distinct_calls(run: ProgramRun, names: set[str]) -> list[tuple[TracedCall, tuple[str, ...]]]:
    """One call for each combination of kind, shapes, types and settings among those named, with the names of all calls
    of equal cost."""
    found: dict[Any, tuple[TracedCall, list[str]]] = {}
    for call in run.calls:
        if call.step.name in names:
            found.setdefault(signature(call), (call, []))[1].append(call.step.name)
    return [(call, tuple(alike)) for call, alike in found.values()]


def shapes_text(call: TracedCall) -> str:
    """The input tensors of a call as text: ``float32[2, 8] float32[8]``."""
    return " ".join(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
                    for leaf in tree_leaves((call.arguments, call.keywords)) if isinstance(leaf, torch.Tensor))


@dataclass
class Trial:
    """A call on tensors with data. :meth:`prepare` is to be called before each forward."""

    call: TracedCall
    leaves: dict[int, torch.Tensor]
    written: set[int]

    @classmethod
    def of(cls, call: TracedCall, device: torch.device) -> Trial:
        """Random numbers in the shapes, strides and types of ``call``; indices stay within their tables."""
        bound = 1
        if call.kind in _LOOK_UPS:
            place, axis = _LOOK_UPS[call.kind]
            table = call.arguments[place]
            bound = table.shape[axis] if table.dim() > axis else table.shape[0]
        leaves = {id(leaf): _random(leaf, bound, device)
                  for leaf in tree_leaves((call.arguments, call.keywords)) if isinstance(leaf, torch.Tensor)}
        return cls(call, leaves, {id(leaf) for leaf in mutated(call.function, call.arguments, call.keywords)})

    @staticmethod
    def needed_bytes(call: TracedCall) -> int:
        """The memory of a trial, from shapes: all inputs, outputs and saved tensors, and their gradients."""
        given = {id(leaf): leaf for leaf in tree_leaves((call.arguments, call.keywords))
                 if isinstance(leaf, torch.Tensor)}
        tensors = [*given.values(), *(value for _, value in call.outputs), *call.saved.values()]
        return 2 * sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    def prepare(self) -> Callable[[], list[torch.Tensor]]:
        """A forward that is ready to run; it returns the tensors that require gradients."""
        def real(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            leaf = self.leaves[id(value)]
            return leaf.clone() if id(value) in self.written else leaf

        arguments, keywords = tree_map(real, (tuple(self.call.arguments), dict(self.call.keywords)))

        def forward() -> list[torch.Tensor]:
            with torch.set_grad_enabled(self.call.step.grad and self.call.backward):
                results = self.call.function(*arguments, **keywords)
            return [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]

        return forward

    def towards(self, *, weights: bool) -> list[torch.Tensor]:
        """The tensors whose gradients a backward computes: inputs, and with ``weights`` also the weights."""
        return [leaf for key, leaf in self.leaves.items()
                if leaf.requires_grad and (weights or key not in self.call.weight_ids)]


def _random(like: torch.Tensor, bound: int, device: torch.device) -> torch.Tensor:
    reach = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    count = reach if like.numel() else 0
    if like.is_floating_point() or like.is_complex():
        flat = torch.randn(count, device=device, dtype=torch.float32).to(like.dtype)
    elif like.dtype == torch.bool:
        flat = torch.ones(count, device=device, dtype=torch.bool)
    else:
        flat = torch.randint(bound, (count,), device=device, dtype=torch.int64).to(like.dtype)
    value = flat.as_strided(like.shape, like.stride())
    return value.detach().requires_grad_(like.requires_grad)
