"""Time and memory of a function on one device: the median of repeated runs, and the change and peak of allocated bytes.

On a CPU, memory is counted from the allocations and frees that torch's profiler records in the calling thread,
temporary buffers of kernels included. On a GPU it is the caching allocator's count. Time and memory are measured in
separate runs, because recording allocations takes time.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, UntypedStorage
from torch._C import _autograd, _profiler
from torch.autograd.profiler import profile  # torch.profiler's imports what compiles, which takes over a second

from weft.runtime.ranks.allocator import keep_freed_memory

T = TypeVar("T")
#: From this version of torch on, private functions record allocations without operators, which is several times faster.
_LEAN = "2.13"


@dataclass(frozen=True, slots=True)
class Sample:
    """``seconds``: the median of ``repeats`` laps. ``spread``: their interquartile range over the median."""

    seconds: float
    spread: float
    repeats: int

    @classmethod
    def of(cls, laps: list[float]) -> Sample:
        """The sample of at least one lap, in seconds."""
        middle = statistics.median(laps)
        low, _, high = statistics.quantiles(laps, n=4, method="inclusive") if len(laps) > 1 else (middle,) * 3
        return cls(middle, (high - low) / middle if middle else 0.0, len(laps))


@dataclass(frozen=True, slots=True)
class Memory:
    """Allocated bytes after a run (``change``) and its ``peak``, both relative to the level before."""

    change: int
    peak: int


def memory_of(run: Callable[[], T], device: torch.device,
              elsewhere: Sequence[tuple[int, int]] = ()) -> tuple[T, Memory]:
    """The result of ``run()``, and its memory; the result counts as allocated. ``elsewhere``: bytes that other threads
    released during the run, each with its time by ``time.time_ns``; it is read after the run."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        result = run()
        torch.cuda.synchronize(device)
        return result, Memory(torch.cuda.memory_allocated(device) - before,
                              torch.cuda.max_memory_allocated(device) - before)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise the profiler writes to standard error
    result, events = (_recorded if torch.__version__ >= _LEAN else _recorded_with_operators)(run)
    blocks = [(event.start_ns(), i, event.nbytes()) for i, event in enumerate(events) if event.name() == "[memory]"]
    level = peak = 0
    for _, _, size in sorted([*blocks, *((moment, -1, -size) for moment, size in elsewhere)]):
        level += size
        peak = max(peak, level)
    return result, Memory(level, peak)


def _recorded(run: Callable[[], T]) -> tuple[T, Iterable[Any]]:
    """The result of ``run()``, and the profiler's events."""
    kinds = {_profiler.ProfilerActivity.CPU}
    config = _profiler.ProfilerConfig(_profiler.ProfilerState.KINETO, False, True, False, False, False,
                                      _profiler._ExperimentalConfig())
    _autograd._prepare_profiler(config, kinds)
    _autograd._enable_profiler(config, kinds, {_profiler.RecordScope.USER_SCOPE})  # type: ignore[call-arg]
    try:
        result = run()
    finally:
        events: Any = _autograd._disable_profiler()
    return result, events.events()


def _recorded_with_operators(run: Callable[[], T]) -> tuple[T, Iterable[Any]]:
    with profile(profile_memory=True, use_kineto=True) as watched:
        result = run()
    assert watched.kineto_results is not None
    return result, watched.kineto_results.events()


def memories(tensor: Tensor) -> list[UntypedStorage]:
    """The storages of ``tensor``; a sparse tensor has several, for indices and values."""
    names = {torch.sparse_coo: ("_indices", "_values"), torch.sparse_csr: ("crow_indices", "col_indices", "values"),
             torch.sparse_csc: ("ccol_indices", "row_indices", "values")}.get(tensor.layout)
    return [part.untyped_storage() for part in ([getattr(tensor, name)() for name in names] if names else [tensor])]


class Timer:
    """Times laps on ``device``: a lap starts when the device is idle and ends when its work is complete."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device, self._clock = device, clock

    @classmethod
    def of_work(cls, device: torch.device) -> Timer:
        """A timer that on a CPU counts the CPU time of the process, which other load affects least."""
        return cls(device, time.process_time if device.type == "cpu" else time.perf_counter)

    def lap(self, run: Callable[[], T]) -> tuple[T, float]:
        """The result of ``run()``, and its time in seconds."""
        self._wait()
        start = self._clock()
        result = run()
        self._wait()
        return result, self._clock() - start

    def sample(self, run: Callable[[], object], repeats: int, least: float = 0.0) -> Sample:
        """The sample of ``run()``, in seconds per run, after one warm-up: each lap has enough consecutive runs to take
        ``least`` seconds."""
        run()
        count = max(1, min(1000, math.ceil(least / max(self.lap(run)[1], 1e-9))))

        def runs() -> None:
            for _ in range(count):
                run()

        return Sample.of([self.lap(runs)[1] / count for _ in range(repeats)])

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def available_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on ``device`` without evicting other processes."""
    if device.type == "cuda":  # the driver counts memory reserved by torch as used
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    table = Path("/proc/meminfo")
    if table.exists():
        entries = dict(line.split(":", 1) for line in table.read_text().splitlines())
        return int(entries["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # unknown: half of the physical memory


@contextmanager
def single_threaded() -> Iterator[None]:
    """Inside, torch's kernels use one thread and the allocator keeps freed memory, as on a CPU rank of the executor."""
    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
