"""Points of a sweep solved on a Dask cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor


@contextlib.contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The executor of a Dask cluster whose scheduler is at ``address``.

    Raises ``ImportError`` if Dask is missing and ``OSError`` if no scheduler answers or a worker dies.
    """
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise ImportError("--dask needs Dask: install it with  pip install 'weft[dask]'") from None
    try:
        client = Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError) as error:
        raise OSError(f"no Dask scheduler answers at {address!r} ({error or type(error).__name__})") from None
    with client:
        try:
            yield client.get_executor(pure=False)
        except KilledWorker as error:
            raise ChildProcessError(f"a Dask worker ended unexpectedly ({error})") from None
