"""Asynchronous collectives: started in the same order on all ranks, and waited for just before the result is read.

On a CPU a channel is a thread with a queue, which runs the collectives in sequence, like a network lane, while the
caller computes. On CUDA it is a stream: a collective waits for the earlier work on the caller's stream, and the
reader's stream waits for the collective. The tests cover CPUs only; the CUDA code has not been run on a GPU.

A channel has its own process group, so that its collectives do not mix with the caller's. A rank that fails publishes
the reason in the rendezvous store; ranks that wait for it poll the store, and fail with the same sentence. A rank that
dies without a report is detected by a lost connection, or after ``timeout``.
"""

from __future__ import annotations

import datetime
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.communication.failures import Failure, PeerRanks, RankError

_Begin: TypeAlias = Callable[..., dist.Work | None]

#: Renamed in 2.13, where the old ones warn.
_REDUCE_SCATTER: _Begin = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_ALL_GATHER: _Begin = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reduce_scatter(mine: Tensor, every: Tensor, group: dist.ProcessGroup) -> dist.Work | None:
    """Start summing ``every`` over the ranks; rank i's ``mine`` becomes part i of the sum along the first axis."""
    return _REDUCE_SCATTER(mine, every, group=group, async_op=True)


def all_gather(every: Tensor, mine: Tensor, group: dist.ProcessGroup) -> dist.Work | None:
    """Start gathering: part i of ``every`` along the first axis becomes rank i's ``mine``."""
    return _ALL_GATHER(every, mine, group=group, async_op=True)


def all_reduce(tensor: Tensor, group: dist.ProcessGroup) -> dist.Work | None:
    """Start summing ``tensor`` over the ranks, in place."""
    work: dist.Work | None = dist.all_reduce(tensor, group=group, async_op=True)
    return work


_NOTHING = "not there"
PATIENCE = 2.0  # seconds for a pending collective when its channel is closed
LOOK = 0.2  # seconds between two checks whether another rank has failed


class _ThreadState:
    """The state of a channel's thread: its queue, and whether a collective has failed."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Pending | None] = SimpleQueue()
        self.failed: BaseException | None = None

    def serve(self) -> None:
        """Run started collectives, until the channel is closed."""
        while (pending := self.queue.get()) is not None:
            pending.run(self)


class Pending:
    """A started collective; call :meth:`wait` before reading its result."""

    def __init__(self, channel: Channel, name: str, begin: Callable[[], dist.Work | None]) -> None:
        self._channel, self._name, self._begin = channel, name, begin
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._event: torch.cuda.Event | None = None

    def run(self, lane: _ThreadState) -> None:
        """Run the collective from start to end, on the channel's thread."""
        try:
            if lane.failed is not None:
                raise lane.failed
            with torch.no_grad():
                work = self._begin()
                if work is not None:
                    work.wait()
        except BaseException as error:
            if lane.failed is None:
                self._channel.others.record.write(str(self._channel.others.error(self._name, error)))
            lane.failed = self._error = error
        finally:
            del self._begin  # and its tensors
            self._done.set()

    def run_on(self, stream: torch.cuda.Stream, tensors: Sequence[Tensor]) -> None:
        """Launch the collective on the channel's stream, after the current work of the caller's stream."""
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            work = self._begin()
            if work is not None:
                work.wait()
            self._event = stream.record_event()
        for tensor in tensors:
            tensor.record_stream(stream)
        del self._begin

    def wait(self) -> None:
        """Wait until the result is available. Raises :class:`RankError` if the collective has failed."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)
            return
        while not self._done.wait(LOOK):
            reason = self._channel.others.record.read()
            if reason is not None:
                raise RankError(reason)
        if self._error is not None:
            raise self._channel.others.error(self._name, self._error) from self._error


class Channel:
    """The collectives of the ranks of ``group`` (default: all), which must create it together.

    ``timeout``: seconds that a collective waits for the other ranks. ``only``: the ranks of the group that make it, by
    their numbers there. ``record``: the common failure record of several channels of one program.

    Raises ``ValueError`` where no process group has been initialised, or this rank is not in the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu",
                 timeout: float = 60.0, *, only: Sequence[int] | None = None, record: Failure | None = None) -> None:
        require_group(group)
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout is {timeout}, it must be a number of seconds greater than 0")
        self.device, self.timeout = torch.device(device), timeout
        self.group = own_group(group, timeout, only)
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        with meeting(timeout):
            self.others = PeerRanks(self.group, timeout, record)
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._lane = _ThreadState()
        self._end = weakref.finalize(self, _ended, self._lane, self._started())

    def _started(self) -> threading.Thread | None:
        if self._stream is not None:
            return None
        thread = threading.Thread(target=self._lane.serve, name="weft collectives", daemon=True)
        thread.start()
        return thread

    def start(self, name: str, begin: Callable[[], dist.Work | None], tensors: Sequence[Tensor] = ()) -> Pending:
        """Start a collective after the earlier ones; ``begin`` calls it with ``async_op=True``.

        ``tensors``: those that it reads and writes. Raises ``ValueError`` if the channel is closed, and
        :class:`RankError` if this rank has reported a failure.
        """
        if self.others.failed is not None:
            raise RankError(f"{self.others.failed}; what uses these collectives has to be made anew, on all ranks")
        if not self._end.alive:
            raise ValueError(f"{name} cannot start, its collectives are closed: make the optimizer or the program anew")
        pending = Pending(self, name, begin)
        if self._stream is not None:
            pending.run_on(self._stream, tensors)
        else:
            self._lane.queue.put(pending)
        return pending

    def agree(self, values: Mapping[str, object]) -> None:
        """Raise ``ValueError``, on all ranks, unless all have the same ``values`` by name."""
        gathered: list[Any] = [None] * self.size
        with meeting(self.timeout):
            dist.all_gather_object(gathered, dict(values), group=self.group)
        for rank, others in enumerate(gathered):
            for what in (*gathered[0], *others):
                one, other = gathered[0].get(what, _NOTHING), others.get(what, _NOTHING)
                if one != other:
                    raise ValueError(f"{what} must be the same on all ranks, but it is {one!s:.200} on rank 0 and "
                                     f"{other!s:.200} on rank {rank}")

    def close(self) -> None:
        """End the thread after the started collectives."""
        self._end()


def _ended(lane: _ThreadState, thread: threading.Thread | None) -> None:
    """End the thread: one that still runs at the interpreter's exit would crash the process."""
    lane.queue.put(None)
    if thread is not None and thread is not threading.current_thread():
        thread.join(PATIENCE)


def require_group(group: dist.ProcessGroup | None) -> None:
    """Raise ``ValueError`` where no process group has been initialised, or this rank is not in ``group``."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("no process group is initialised: call torch.distributed.init_process_group first, on every "
                         "rank")
    if dist.get_rank(group) < 0:
        raise ValueError(f"rank {dist.get_rank()} is not of the process group: it takes no part in its collectives")


@contextmanager
def meeting(timeout: float) -> Iterator[None]:
    """Inside, ranks synchronise: a rank that does not arrive within ``timeout`` seconds raises :class:`RankError`."""
    try:
        yield
    except RuntimeError as error:
        raise RankError(f"rank {dist.get_rank()} did not meet the other ranks within {timeout:g} s to make a program "
                        "or an optimizer together: one of them has failed, or does not make it "
                        f"({(str(error) or type(error).__name__).splitlines()[0]:.200})") from None


def own_group(group: dist.ProcessGroup | None, timeout: float, only: Sequence[int] | None = None) -> dist.ProcessGroup:
    """A new group of the ranks of ``group``, or only of ``only``; all of them must call it together."""
    ranks = list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)
    ranks = ranks if only is None else [ranks[i] for i in only]
    with meeting(timeout):
        made = dist.new_group(ranks, timeout=datetime.timedelta(seconds=timeout),
                              use_local_synchronization=len(ranks) < dist.get_world_size())
    assert isinstance(made, dist.ProcessGroup)
    return made
