"""How long each operator of a captured model takes on this device: measured, one after another, on real numbers.

Of a model that is nowhere whole, operators run on numbers that are made for each alone. Each distinct operator (same
function, same shapes and types of what it reads) is measured once, on small memory: what it reads is made, it runs a
few times, and all is freed. So caches are warmer than in a run, and what depends on values (a branch in a kernel,
experts that are chosen) is that of constant numbers: the times say where to cut, and the stages themselves are measured
after that.
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

#: A pass back takes about twice as long as the one forward: two products in place of one.
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
    """Seconds of each of ``captured.calls`` on ``leaves``, the inputs of one micro-batch: of each the shortest of
    ``repeats`` forwards, of operators that are alike the median, and the backward as twice that; the last one with the
    ``loss`` of the result. Of a model on the meta device, each on numbers of its own, without the loss."""
    device = next((leaf.device for leaf in leaves if isinstance(leaf, Tensor)), torch.device("cpu"))
    if is_on_meta(captured.model):
        return [BOTH_WAYS * seconds for seconds in seconds_alone(captured, device, repeats)]
    timed, behind = _Timed(captured, device), 0.0
    with preserved_state(captured.model), single_threaded():
        for _ in range(repeats + 1):
            with torch.no_grad():
                results = timed.run(*leaves, enable_io_processing=False)
        with suppress(Exception):  # whatever a loss raises is said when its stage is measured
            behind = 0.0 if loss is None else min(timed.of_loss(loss, results) for _ in range(repeats + 1))
    alike: dict[Hashable, list[float]] = {}
    keys = [_likeness(node, captured) for node in captured.calls]
    for key, node in zip(keys, captured.calls, strict=True):
        alike.setdefault(key, []).append(timed.seconds.get(node, 0.0))
    found = [BOTH_WAYS * statistics.median(alike[key]) for key in keys]
    return [*found[:-1], found[-1] + behind]


def saved_bytes(captured: Captured, leaves: Sequence[Any]) -> list[float]:
    """Bytes that each of ``captured.calls`` makes and a backward needs, by shapes alone."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, preserved_state(captured.model):
        fakes = [mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        kept = saved_tensor_bytes(captured, fakes, lambda output: torch.empty(0))
    return [float(kept.by_operator.get(node.name, 0)) for node in captured.calls]


def operator_weights(captured: Captured) -> list[float]:
    """Bytes of the parameters that each of ``captured.calls`` is the first to read."""
    seen: set[int] = set()
    found = []
    for node in captured.calls:
        own = {id(value): value for arg in node.all_input_nodes if arg.op == "get_attr"
               and isinstance(value := captured.attribute(arg), nn.Parameter) and id(value) not in seen}
        seen |= own.keys()
        found.append(float(sum(p.numel() * p.element_size() for p in own.values())))
    return found


#: What floating-point numbers are: no operator takes longer on it, or finds it out of its domain.
VALUE = 0.5


def seconds_alone(captured: Captured, device: torch.device, repeats: int = 3) -> list[float]:
    """Seconds of each forward of ``captured.calls`` on ``device``, the shortest of ``repeats``; 0 for one that cannot
    run on such numbers, or that only takes a result apart."""
    keys = [_likeness(node, captured) for node in captured.calls]
    first = dict(zip(reversed(keys), reversed(captured.calls), strict=True))
    with single_threaded(), torch.no_grad(), torch.random.fork_rng():
        known = {key: 0.0 if is_item(node) else _measured(node, captured, device, repeats)
                 for key, node in first.items()}
    return [known[key] for key in keys]


def _measured(node: Node, captured: Captured, device: torch.device, repeats: int) -> float:
    try:
        args, kwargs = tree_map(lambda leaf: _made(_looks(leaf, captured), device) if isinstance(leaf, Node) else leaf,
                                (node.args, dict(node.kwargs)))
        run, timer = partial(cast("Callable[..., object]", node.target), *args, **kwargs), Timer.of_work(device)
        return min(timer.lap(run)[1] for _ in range(repeats + 1))
    except (RuntimeError, IndexError, ValueError, TypeError):  # a submodule; whatever kernels say of such numbers
        return 0.0


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
