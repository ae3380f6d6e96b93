"""Measures the time of each operator of a captured model on this device.

The operators of a model on the meta device run on generated tensors. Each distinct operator (same function, same shapes
and dtypes of its inputs) is measured once: its inputs are allocated, it runs a few times, and they are freed. Caches
are warmer than in training, and data-dependent costs (a branch in a kernel, the choice of experts) are those of
constant inputs. These times only suggest cuts; the stages of a cut are then measured themselves.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_map, tree_unflatten

from weft.runtime.captured.captured import Captured, is_item, is_on_meta
from weft.runtime.captured.memory.saved_bytes import saved_tensor_bytes
from weft.runtime.captured.metadata_reads import preserved_state
from weft.runtime.measure.measure import Timer, single_threaded

#: Time of a forward and a backward over the forward's: a backward has two matrix products for each one of the forward.
BOTH_WAYS = 3.0


class _Timed(Interpreter):
    def __init__(self, captured: Captured, device: torch.device) -> None:
        super().__init__(captured.graph_module)
        self.captured, self.timer = captured, Timer.of_work(device)
        self.seconds: dict[Node, float] = {}

    def run_node(self, n: Node) -> Any:
        result, took = self.timer.lap(partial(super().run_node, n))
        self.seconds[n] = min(self.seconds.get(n, float("inf")), took)
        return result

    def of_loss(self, loss: Callable[[Any], Tensor], results: Any) -> float:
        """Seconds of the loss of the graph's ``results``, forward and backward."""
        flat = [leaf.detach().requires_grad_() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
                for leaf in (results if isinstance(results, tuple | list) else [results])]
        output = tree_unflatten(flat, self.captured.out_spec)
        return self.timer.lap(lambda: loss(output).backward())[1]  # type: ignore[no-untyped-call]


def operator_seconds(captured: Captured, leaves: Sequence[Any], repeats: int = 5,
                     loss: Callable[[Any], Tensor] | None = None) -> list[float]:
    """Seconds (forward and backward) of each of ``captured.calls`` on ``leaves``, the inputs of one micro-batch.

    The forward is the shortest of ``repeats`` runs, then the median over equal operators; the backward counts as twice
    the forward. The last operator includes the ``loss`` of the result. Operators of a model on the meta device run on
    generated tensors, without the loss.
    """
    device = next((leaf.device for leaf in leaves if isinstance(leaf, Tensor)), torch.device("cpu"))
    if is_on_meta(captured.model):
        return [BOTH_WAYS * seconds for seconds in seconds_alone(captured, device, repeats)]
    timed, behind = _Timed(captured, device), 0.0
    with preserved_state(captured.model), single_threaded():
        for _ in range(repeats + 1):
            with torch.no_grad():
                results = timed.run(*leaves, enable_io_processing=False)
        with suppress(Exception):  # a faulty loss is reported when its stage is measured
            behind = 0.0 if loss is None else min(timed.of_loss(loss, results) for _ in range(repeats + 1))
    alike: dict[Hashable, list[float]] = {}
    keys = [_signature(node, captured) for node in captured.calls]
    for key, node in zip(keys, captured.calls, strict=True):
        alike.setdefault(key, []).append(timed.seconds.get(node, 0.0))
    found = [BOTH_WAYS * statistics.median(alike[key]) for key in keys]
    return [*found[:-1], found[-1] + behind]


def saved_bytes(captured: Captured, leaves: Sequence[Any]) -> list[float]:
    """Bytes of activations that each of ``captured.calls`` saves for the backward, derived from shapes."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, preserved_state(captured.model):
        fakes = [mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        kept = saved_tensor_bytes(captured, fakes, lambda output: torch.empty(0))
    return [float(kept.by_operator.get(node.name, 0)) for node in captured.calls]


def operator_weights(captured: Captured, calls: Sequence[Node]) -> list[int]:
    """Bytes of parameters of each of ``calls`` of ``captured``; a shared parameter counts for its first reader."""
    seen: set[int] = set()
    found = []
    for node in calls:
        own = {id(value): value for arg in node.all_input_nodes if arg.op == "get_attr"
               and isinstance(value := captured.attribute(arg), nn.Parameter) and id(value) not in seen}
        seen |= own.keys()
        found.append(sum(p.numel() * p.element_size() for p in own.values()))
    return found


#: Value of generated floating-point tensors: in the domain of every operator, and not denormal.
VALUE = 0.5


def seconds_alone(captured: Captured, device: torch.device, repeats: int = 3) -> list[float]:
    """Seconds of each forward of ``captured.calls`` on generated tensors on ``device``, the shortest of ``repeats``;
    0 for operators that cannot run on such values, or that only unpack a tuple."""
    keys = [_signature(node, captured) for node in captured.calls]
    first = dict(zip(reversed(keys), reversed(captured.calls), strict=True))
    with single_threaded(), torch.no_grad(), torch.random.fork_rng():
        known = {key: 0.0 if is_item(node) else _measured(node, captured, device, repeats)
                 for key, node in first.items()}
    return [known[key] for key in keys]


def _measured(node: Node, captured: Captured, device: torch.device, repeats: int) -> float:
    try:
        args, kwargs = tree_map(
            lambda leaf: _generated(_metadata(leaf, captured), device) if isinstance(leaf, Node) else leaf,
            (node.args, dict(node.kwargs)))
        run, timer = partial(cast("Callable[..., object]", node.target), *args, **kwargs), Timer.of_work(device)
        return min(timer.lap(run)[1] for _ in range(repeats + 1))
    except (RuntimeError, IndexError, ValueError, TypeError):  # a submodule, or a kernel that refuses these values
        return 0.0


def _metadata(node: Node, captured: Captured) -> Any:
    """The result of ``node`` as fake tensors."""
    return captured.attribute(node) if node.op == "get_attr" else node.meta.get("val")


def _generated(metadata: Any, device: torch.device) -> Any:
    def tensor(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        value = VALUE if leaf.is_floating_point() or leaf.is_complex() else 0
        return torch.full(leaf.shape, value, dtype=leaf.dtype, device=device)

    return tree_map(tensor, metadata)


def _signature(node: Node, captured: Captured) -> Hashable:
    def described(leaf: Any) -> Any:
        value = _metadata(leaf, captured) if isinstance(leaf, Node) else leaf
        return str(tree_map(lambda part: (tuple(part.shape), part.dtype) if isinstance(part, Tensor) else str(part),
                            value))

    return str(node.target), str(tree_map(described, (node.args, dict(node.kwargs))))
