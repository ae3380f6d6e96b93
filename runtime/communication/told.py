"""What ranks tell each other beside their collectives: that one of them has failed, and why."""

from __future__ import annotations

import contextlib
from typing import Any

__all__ = ["Told"]


class Told:
    """One place in the store through which the ranks of ``torch.distributed`` found each other, by its ``name``.

    Where the store cannot be had (torch does not promise it), nothing is told, and ranks wait for their timeout.
    """

    def __init__(self, name: str) -> None:
        self._key = f"weft communication {name}"
        self._store: Any = None
        with contextlib.suppress(ImportError, AttributeError, ValueError, RuntimeError):
            from torch.distributed.distributed_c10d import _get_default_store

            self._store = _get_default_store()

    def write(self, sentence: str) -> None:
        """Tell it, unless somebody has told something before."""
        if self._store is None or self.read() is not None:
            return
        with contextlib.suppress(RuntimeError):  # rank 0, which has the store, may be gone
            self._store.set(self._key, sentence)

    def read(self) -> str | None:
        """What another rank, or this one, has told."""
        if self._store is None:
            return None
        with contextlib.suppress(RuntimeError):
            if self._store.check([self._key]):
                return bytes(self._store.get(self._key)).decode(errors="replace")
        return None
