"""How long operators take, each on numbers that are made for it alone: for a model that is nowhere whole.

Each distinct operator (same function, same shapes and types of what it reads) is measured once, on small memory: what
it reads is made, it runs a few times, and all is freed. So caches are warmer than in a run, and what depends on values
(a branch in a kernel, experts that are chosen) is that of constant numbers: the times say where to cut, and the stages
themselves are measured after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_map

from weft.runtime.captured.captured import Captured, is_item
from weft.runtime.measure.measure import single_threaded

__all__ = ["seconds_alone"]

#: What floating-point numbers are: no operator takes longer on it, or finds it out of its domain.
VALUE = 0.5


def seconds_alone(captured: Captured, device: torch.device, repeats: int = 3) -> list[float]:
    """Seconds of each forward of ``captured.calls`` on ``device``, the shortest of ``repeats``; 0 for one that cannot
    run on such numbers, or that only takes a result apart."""
    known: dict[Hashable, float] = {}
    found = []
    with single_threaded(), torch.no_grad(), torch.random.fork_rng():
        for node in captured.calls:
            key = _likeness(node, captured)
            if key not in known:
                known[key] = 0.0 if is_item(node) else _measured(node, captured, device, repeats)
            found.append(known[key])
    return found


def _measured(node: Node, captured: Captured, device: torch.device, repeats: int) -> float:
    if node.op != "call_function":
        return 0.0
    function: Callable[..., Any] = node.target  # type: ignore[assignment]
    best = float("inf")
    try:
        args, kwargs = tree_map(lambda leaf: _made(_looks(leaf, captured), device) if isinstance(leaf, Node) else leaf,
                                (node.args, dict(node.kwargs)))
        for _ in range(repeats + 1):
            begun = time.perf_counter()
            function(*args, **kwargs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best = min(best, time.perf_counter() - begun)
    except (RuntimeError, IndexError, ValueError, TypeError):  # whatever kernels say of numbers that they do not take
        return 0.0
    return best


def _looks(node: Node, captured: Captured) -> Any:
    """What ``node`` gives, without numbers."""
    return captured.attribute(node) if node.op == "get_attr" else node.meta.get("val")


def _made(looks: Any, device: torch.device) -> Any:
    def tensor(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        value = VALUE if leaf.is_floating_point() or leaf.is_complex() else 0
        return torch.full(leaf.shape, value, dtype=leaf.dtype, device=device)

    return tree_map(tensor, looks)


def _likeness(node: Node, captured: Captured) -> Hashable:
    def told(leaf: Any) -> Any:
        looks = _looks(leaf, captured) if isinstance(leaf, Node) else leaf
        return str(tree_map(lambda part: (tuple(part.shape), part.dtype) if isinstance(part, Tensor) else str(part),
                            looks))

    return str(node.target), str(tree_map(told, (node.args, dict(node.kwargs))))
