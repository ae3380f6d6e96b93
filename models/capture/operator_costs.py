"""The cost of one call of a torch operator: counted on tensors without data, forward and each part of the backward.

The call and its backward run on fake tensors (shapes, types and storages, no data), and a dispatch mode records every
kernel that would have run: its floating-point operations by the formulas of ``torch.utils.flop_counter``, the bytes of
the tensors it reads and writes, and the storages allocated and freed. A kernel without a formula counts 0 operations:
it is memory-bound. Causal attention skips masked keys. A view costs nothing. Embeddings and other gathers read the
selected rows, not the whole table. Summing the gradients of a tensor with several readers belongs to no operator and is
not counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from weft.models.graph.operators import Work, causal_share

_aten = torch.ops.aten
#: torch.utils.flop_counter's formulas, and those for the CPU's fused attention, which it lacks.
FLOP_FORMULAS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    _aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
}
_GATHERS = {_aten.embedding, _aten.index_select, _aten.gather, _aten.index}
_WRITES_ONLY = {_aten.zero_, _aten.fill_, _aten.bernoulli_, _aten.copy_, _aten.normal_, _aten.uniform_}
_ALLOCATES_ONLY = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}


@dataclass(frozen=True, slots=True)
class CallCost:
    """One call: work of its forward and the parts of its backward (``None`` if there is none), and the peak bytes of
    temporary tensors in a pass."""

    forward: Work
    input_grad: Work | None
    weight_grad: Work | None
    workspace: int


def storage(tensor: torch.Tensor) -> int:
    """The identity of the storage of ``tensor`` among all live ones."""
    key: int = tensor.untyped_storage()._cdata
    return key


def mutated(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that a call writes into."""
    found = []
    for i, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = arguments[i] if i < len(arguments) else keywords.get(argument.name)
            found += [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    return found


def call_cost(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], weights: set[int], *,
              backward: bool = True) -> CallCost:
    """The cost of ``function(*arguments, **keywords)`` on fake tensors, under the fake mode that is on.

    ``weights``: the ``id`` of the arguments whose gradient is a weight gradient. The call itself runs on fresh tensors
    of the same kinds. Raises torch's exception if it cannot run the call on fake tensors.
    """
    leaves: dict[int, torch.Tensor] = {}
    written = {id(tensor) for tensor in mutated(function, arguments, keywords)}

    def fresh(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in leaves:
            leaves[id(value)] = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype,
                                                    device=value.device, requires_grad=value.requires_grad)
        leaf = leaves[id(value)]
        return leaf.clone() if id(value) in written and leaf.requires_grad else leaf

    given, named = tree_map(fresh, (tuple(arguments), dict(keywords)))
    meter = _Meter()
    with meter:
        results = function(*given, **named)
    forward, workspace = meter.work, meter.temporary
    outputs = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    inputs = [leaf for key, leaf in leaves.items() if leaf.requires_grad and key not in weights]
    trained = [leaf for key, leaf in leaves.items() if leaf.requires_grad and key in weights]
    if not backward or not outputs:
        return CallCost(forward, None, None, workspace)
    gradients = [torch.empty_like(output) for output in outputs]

    def passed(towards: list[torch.Tensor]) -> Work:
        nonlocal workspace
        meter = _Meter()
        with meter:
            found = torch.autograd.grad(outputs, towards, gradients, retain_graph=True, allow_unused=True)
        workspace = max(workspace, meter.temporary)
        del found
        return meter.work

    whole = passed([*inputs, *trained])
    if not trained:
        return CallCost(forward, whole, None, workspace)
    if not inputs:
        return CallCost(forward, None, whole, workspace)
    part = passed(inputs)
    return CallCost(forward, part, Work(whole.flops - part.flops, max(0, whole.bytes_read - part.bytes_read),
                                        max(0, whole.bytes_written - part.bytes_written)), workspace)


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums the work of every kernel called while it is active, and tracks the storages allocated."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops, self.read, self.written = 0, 0, 0
        self._live, self._peak = 0, 0
        self._known: set[int] = set()

    @property
    def work(self) -> Work:
        return Work(self.flops, self.read, self.written)

    @property
    def temporary(self) -> int:
        """The peak bytes alive beyond those still alive now."""
        return self._peak - self._live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        packet = func._overloadpacket
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        if packet in FLOP_FORMULAS:
            self.flops += int(FLOP_FORMULAS[packet](*args, **kwargs, out_val=results) * _seen(func, args, kwargs))
        before = {storage(tensor) for tensor in given}
        for tensor in made:
            self._follow(tensor, before)
        written = [*mutated(func, args, kwargs), *(tensor for tensor in made if storage(tensor) not in before)]
        if written and packet not in _ALLOCATES_ONLY:
            total = sum(_bytes(tensor) for tensor in written)
            self.written += total
            if packet in _GATHERS:
                self.read += total + sum(_bytes(tensor) for tensor in given if not tensor.is_floating_point())
            else:
                skipped = id(args[0]) if packet in _WRITES_ONLY else None
                self.read += sum(_bytes(tensor) for tensor in {id(t): t for t in given if id(t) != skipped}.values())
        return results

    def _follow(self, tensor: torch.Tensor, before: set[int]) -> None:
        place = tensor.untyped_storage()
        key, size = place._cdata, place.nbytes()
        if key in before or key in self._known:
            return
        self._known.add(key)
        self._live += size
        self._peak = max(self._peak, self._live)
        weakref.finalize(place, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._live -= size


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes moved by a kernel over ``tensor``: an expanded one counts as its underlying data."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _seen(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> float:
    """The share of its products that an attention kernel computes; 1 for any other kernel."""
    given = {**dict(zip((entry.name for entry in function._schema.arguments), arguments, strict=False)), **keywords}
    if not given.get("is_causal") or "query" not in given or given["query"].dim() != 4:
        return 1.0
    return causal_share(given["query"].size(-2), given["key"].size(-2))
