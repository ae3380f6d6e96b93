"""The memory that each operator of a captured model leaves for the backward: measured, on one micro-batch.

The model runs operator by operator, and autograd reports the tensors it saves. Each memory is counted once, with the
operator that made it, whatever saves it; parameters, buffers and inputs are not counted.
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
class Kept:
    """Bytes for one micro-batch: ``made``, by operator, of its results that the backward needs; ``given``, the names of
    operators whose own result is among them; ``behind``, of tensors that the loss saves in addition."""

    made: dict[str, int]
    given: frozenset[str]
    behind: int


class _Watched(Interpreter):
    """``maker``: of each memory by address, since all results stay alive here."""

    def __init__(self, captured: Captured) -> None:
        super().__init__(captured.graph_module, garbage_collect_values=False)
        self.maker: dict[int, str | None] = {}
        self.now: str | None = None
        self.made: dict[str, int] = {}
        self.given: set[str] = set()
        self.saved: set[int] = set()
        self.alive: list[object] = []  # so that no address is reused
        self.results: dict[int, str] = {}
        for tensor in (*captured.model.parameters(), *captured.model.buffers()):
            self.maker[_address(tensor)] = None

    def run_node(self, n: Node) -> Any:
        is_call = n.op in ("call_function", "call_module")
        self.now = n.name if is_call else None
        result = super().run_node(n)
        if n.op != "output":
            for tensor in tree_leaves(result):
                if isinstance(tensor, Tensor):
                    self.maker.setdefault(_address(tensor), self.now)
                    if is_call:
                        self.results.setdefault(_address(tensor), n.name)
        return result

    def save(self, tensor: Tensor) -> Tensor:
        """Count a tensor that an operator saves."""
        memory, place = tensor.untyped_storage(), _address(tensor)
        self.alive.append(memory)
        maker = self.maker.setdefault(place, self.now)
        if maker is not None and place not in self.saved:
            self.saved.add(place)
            self.made[maker] = self.made.get(maker, 0) + memory.nbytes()
        return tensor.detach()


def kept_bytes(captured: Captured, leaves: Sequence[Any], loss: Callable[[Any], Tensor]) -> Kept:
    """The memory kept by a forward on ``leaves``, the inputs of one micro-batch; ``loss`` is computed from its result.

    Buffers are written to as in training.
    """
    watched = _Watched(captured)
    watched.maker.update((_address(leaf), None) for leaf in leaves if isinstance(leaf, Tensor))
    with saved_tensors_hooks(watched.save, lambda tensor: tensor):
        results = watched.run(*leaves, enable_io_processing=False)
        flat = list(results) if isinstance(results, tuple | list) else [results]
        watched.now = _LOSS
        held = loss(tree_unflatten(flat, captured.out_spec))
    given = frozenset(name for place, name in watched.results.items() if place in watched.saved)
    del held
    return Kept({name: size for name, size in watched.made.items() if name != _LOSS}, given,
                watched.made.get(_LOSS, 0))


_LOSS = "the loss"


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # tensors without memory have one too
