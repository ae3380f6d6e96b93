"""Which operators a model computes under ``torch.utils.checkpoint``: an export keeps them, and forgets that.

While a model is exported, what is checkpointed runs as it stands, of both kinds, and its operators are marked with the
number of the call. Of calls within calls the outermost counts, which is the one that holds its inputs in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint as torchs
from torch import Tensor
from torch.fx import Node, traceback

__all__ = ["checkpointed", "checkpoints_marked"]

#: Where torch's tracer takes the number of a checkpoint from, and puts it: among the meta data of an operator.
_MARK = "ac_graph_id"


def checkpointed(nodes: Iterable[Node]) -> dict[str, int]:
    """The number of the checkpoint that each of ``nodes`` was computed in, by name; those in none are not there."""
    return {node.name: node.meta[_MARK] for node in nodes if _MARK in node.meta}


@contextmanager
def checkpoints_marked() -> Iterator[list[bool]]:
    """Inside, checkpoints mark what is computed in them; gives of each whether it has a policy of its own."""
    seen: list[bool] = []

    @contextmanager
    def marking(has_policy: bool = False) -> Iterator[None]:
        if _MARK in traceback.current_meta:
            yield
            return
        traceback.current_meta[_MARK] = len(seen)
        seen.append(has_policy)
        try:
            yield
        finally:
            traceback.current_meta.pop(_MARK, None)

    class Reentrant:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            torchs.check_backward_validity(args)  # warns where torch would give what is inside no gradients
            learns = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)
            with marking(), torch.set_grad_enabled(learns):
                return function(*args)

    def plain(function: object, preserve: object, context_fn: object, *settings: Any, **kwargs: Any) -> Iterator[None]:
        with marking(context_fn is not torchs.noop_context_fn):
            yield

    private = {"CheckpointFunction": Reentrant, "_checkpoint_without_reentrant_generator": plain}
    kept = {name: getattr(torchs, name) for name in private}  # of torch 2.1 to 2.13
    for name, own in private.items():
        setattr(torchs, name, own)
    try:
        with traceback.preserve_node_meta():
            yield seen
    finally:
        for name, own in kept.items():
            setattr(torchs, name, own)
