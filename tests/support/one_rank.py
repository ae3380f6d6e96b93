"""A session of one rank in this process: what ranks do together, done by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from weft.runtime.ranks.session import Session
from weft.runtime.ranks.watch import Unwatched, Watch


@contextmanager
def one_rank() -> Iterator[Session]:
    """Its session, unwatched."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield Session(0, 1, torch.device("cpu"), cast(Watch, Unwatched()), 0.0)
    finally:
        dist.destroy_process_group()
