"""Failures of ranks of a process group: a rank that fails publishes the reason, and waiting ranks report the cause.

When a communication library reports only a lost connection, ranks identify the ended process: at the start they
exchange machine and process numbers, so ranks of one machine can check which processes have ended. Processes of other
machines are not visible, so their ranks are named as possible causes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from weft.runtime.transports.one_host.peers import Processes, machine

#: Parts of gloo's and NCCL's messages when the connection to the peer is lost.
LOST = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "remote process has terminated")
_PATIENCE, _LOOK = 1.0, 0.05  # seconds that a process may take to end after its connections


class RankError(RuntimeError):
    """A rank has failed; the message is one sentence, with its number if known."""


class Failure:
    """A record ``name`` of the first failure, in the rendezvous store of ``torch.distributed``.

    If the store is unavailable (it is no public interface of torch), nothing is recorded, and ranks wait for their
    timeout.
    """

    def __init__(self, name: str) -> None:
        self._key = f"weft communication {name}"
        self._store: Any = None
        with contextlib.suppress(ImportError, AttributeError, ValueError, RuntimeError):
            from torch.distributed.distributed_c10d import _get_default_store

            self._store = _get_default_store()

    def write(self, sentence: str) -> None:
        """Record ``sentence``, unless a failure is recorded."""
        if self._store is None or self.read() is not None:
            return
        with contextlib.suppress(RuntimeError):  # rank 0, which hosts the store, may be gone
            self._store.set(self._key, sentence)

    def read(self) -> str | None:
        """The recorded sentence of any rank, or ``None``."""
        if self._store is None:
            return None
        with contextlib.suppress(RuntimeError):
            if self._store.check([self._key]):
                return bytes(self._store.get(self._key)).decode(errors="replace")
        return None


class PeerRanks:
    """The ranks of ``group``, which all create this together. ``timeout``: seconds that one communication waits for
    them (``None``: that of the group). ``record``: the failure record that several groups of one program share."""

    def __init__(self, group: dist.ProcessGroup | None, timeout: float | None, record: Failure | None = None) -> None:
        self.rank, self.timeout = dist.get_rank(group), timeout
        found: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, (uuid.uuid4().hex, (machine() or socket.gethostname(), os.getpid())), group=group)
        self.record = Failure(found[0][0]) if record is None else record
        self._gone = _Gone(self.rank, [where for _, where in found])
        self.failed: str | None = None  # this rank's own report

    @contextmanager
    def reporting(self, where: str = "") -> Iterator[None]:
        """Inside, an error is recorded, so that the other ranks do not wait for this one."""
        try:
            yield
        except RankError:
            raise  # all of them have it
        except Exception as error:
            self.failed = self.failed or f"rank {self.rank} failed{where and f' in {where}'}: {_first_line(error)}"
            self.record.write(self.failed)
            raise

    def error(self, name: str, error: BaseException, among: Collection[int] | None = None) -> RankError:
        """The error for the failed communication ``name`` with the ranks ``among`` (default: all)."""
        reason = self.record.read()
        if reason is not None:
            return RankError(reason)
        if any(sign in str(error) for sign in ("Timed out", "timed out", "Timeout")):
            limit = "" if self.timeout is None else f" {self.timeout:g} s"
            return RankError(f"rank {self.rank} waited{limit} for the other ranks in {name}: one of them has failed, "
                             "or runs another program")
        if any(sign in str(error) for sign in LOST):
            return RankError(f"rank {self.rank} was left alone in {name}: {self._gone.sentence(among)}")
        return RankError(f"rank {self.rank} failed in {name}: {_first_line(error)}")


class _Gone:
    """The processes of the ranks of a group, ``every`` one by machine and process number; ``rank``: this one."""

    def __init__(self, rank: int, every: Sequence[tuple[str, int]]) -> None:
        here, _ = every[rank]
        self._near = {other: number for other, (machine, number) in enumerate(every) if machine == here
                      and other != rank}
        self._far = [other for other, (machine, _) in enumerate(every) if machine != here]
        self._processes = Processes(self._near)

    def sentence(self, among: Collection[int] | None = None) -> str:
        """A sentence that names the ended processes among the ranks ``among`` (default: all) that this rank waited for;
        others may have ended normally."""
        near, far = ([other for other in ranks if among is None or other in among]
                     for ranks in (self._near, self._far))
        until = time.monotonic() + _PATIENCE
        while not (gone := [other for other in near if not self._processes.alive(other)]):
            if far or time.monotonic() > until:
                break
            time.sleep(_LOOK)
        if gone:
            return f"{_named(gone)} has ended"
        return ("another rank has closed its connections" if not far else
                f"{_named(far)} on another machine has ended, or cannot be reached")


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}'s process"
    return f"a process of the ranks {', '.join(map(str, ranks))}"


def _first_line(error: BaseException) -> str:
    return f"{(str(error) or type(error).__name__).strip().splitlines()[0]:.300}"
