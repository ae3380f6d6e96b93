"""The bytes of tensors that autograd saves, by the operator that produces them: measured on one micro-batch.

The model runs operator by operator with a pack hook. Each storage is counted once, for its producer, whichever operator
saves it. Parameters, buffers and inputs are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_leaves, tree_unflatten

from weft.runtime.captured.captured import Captured


@dataclass(frozen=True)
class SavedBytes:
    """Bytes for one micro-batch. ``by_operator``: of saved storages, by producer. ``outputs``: the operators whose
    result is saved. ``by_loss``: of storages that the loss produces."""

    by_operator: dict[str, int]
    outputs: frozenset[str]
    by_loss: int


class _Watched(Interpreter):
    """Runs a graph and records saved storages. ``producer``: of each storage, by address; all results stay alive."""

    def __init__(self, captured: Captured) -> None:
        super().__init__(captured.graph_module, garbage_collect_values=False)
        self.producer: dict[int, str | None] = {}
        self.now: str | None = None
        self.by_operator: dict[str, int] = {}
        self.saved: set[int] = set()
        self.alive: list[object] = []  # so that no address is reused
        self.results: dict[int, str] = {}
        for tensor in (*captured.model.parameters(), *captured.model.buffers()):
            self.producer[_address(tensor)] = None

    def run_node(self, n: Node) -> Any:
        is_call = n.op in ("call_function", "call_module")
        self.now = n.name if is_call else None
        result = super().run_node(n)
        if n.op != "output":
            for tensor in tree_leaves(result):
                if isinstance(tensor, Tensor):
                    self.producer.setdefault(_address(tensor), self.now)
                    if is_call:
                        self.results.setdefault(_address(tensor), n.name)
        return result

    def save(self, tensor: Tensor) -> Tensor:
        """Count the storage of a saved tensor: the pack hook."""
        storage, place = tensor.untyped_storage(), _address(tensor)
        self.alive.append(storage)
        producer = self.producer.setdefault(place, self.now)
        if producer is not None and place not in self.saved:
            self.saved.add(place)
            self.by_operator[producer] = self.by_operator.get(producer, 0) + storage.nbytes()
        return tensor.detach()


def saved_tensor_bytes(captured: Captured, leaves: Sequence[Any], loss: Callable[[Any], Tensor]) -> SavedBytes:
    """The bytes saved by a forward on ``leaves``, the inputs of one micro-batch, and by ``loss`` of its result.

    Buffers are written to as in training.
    """
    watched = _Watched(captured)
    watched.producer.update((_address(leaf), None) for leaf in leaves if isinstance(leaf, Tensor))
    with saved_tensors_hooks(watched.save, lambda tensor: tensor):
        results = watched.run(*leaves, enable_io_processing=False)
        flat = list(results) if isinstance(results, tuple | list) else [results]
        watched.now = _LOSS
        value = loss(tree_unflatten(flat, captured.out_spec))
    outputs = frozenset(name for place, name in watched.results.items() if place in watched.saved)
    del value
    return SavedBytes({name: size for name, size in watched.by_operator.items() if name != _LOSS}, outputs,
                      watched.by_operator.get(_LOSS, 0))


_LOSS = "the loss"


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # exists for fake tensors too
