"""How often garbage is collected while schedules are computed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: The thresholds: with Python's defaults, repeated scans of millions of operations take up to half of the time, and
#: nothing here makes cyclic garbage at that rate.
_COLLECT = (100_000, 50, 1000)


@contextmanager
def seldom_collected(never: bool = False) -> Iterator[None]:
    """Inside, garbage is collected seldom, or never; afterwards as before."""
    before = gc.get_threshold()
    gc.set_threshold(*((0,) if never else _COLLECT))
    try:
        yield
    finally:
        gc.set_threshold(*before)
