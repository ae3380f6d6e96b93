"""A device's tensor memory, counted at allocation, with a budget.

Loads are checked before allocation. Results of operators are counted by a dispatch mode: every new storage counts until
it is freed, and one beyond the budget raises an error after its allocation. Temporary memory inside a kernel is not
counted.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OverBudget(MemoryError):
    """An allocation exceeds the budget."""


class Account:
    """Bytes of live tensors: ``used`` now, and their ``peak``; ``budget``: the limit (``None``: no limit)."""

    def __init__(self, budget: int | None = None) -> None:
        self.budget, self.used, self.peak = budget, 0, 0
        self._live: dict[int, int] = {}
        self._lock = threading.RLock()

    def room(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """A new tensor, checked before allocation. Raises :class:`OverBudget`."""
        size = torch.Size(shape).numel() * dtype.itemsize
        with self._lock:
            self._require(size)
            return self.hold(torch.empty(tuple(shape), dtype=dtype, device=device))

    def hold(self, tensor: Tensor) -> Tensor:
        """Count the storage of ``tensor`` until it is freed, if it is not counted yet. Raises :class:`OverBudget`."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        with self._lock:
            if key in self._live or not size:
                return tensor
            self._require(size)
            self._live[key] = size
            self.used += size
            self.peak = max(self.peak, self.used)
        weakref.finalize(storage, self._release, key).atexit = False
        return tensor

    def counting(self) -> TorchDispatchMode:
        """A mode in which results of operators are counted; each thread and use needs its own."""
        return _Counting(self)

    def _require(self, size: int) -> None:
        if self.budget is not None and self.used + size > self.budget:
            raise OverBudget(f"{size} bytes do not fit: {self.used} of the budget of {self.budget} are in use")

    def _release(self, key: int) -> None:
        with self._lock:
            self.used -= self._live.pop(key)


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, account: Account) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.account = account

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                self.account.hold(leaf)
        return result
