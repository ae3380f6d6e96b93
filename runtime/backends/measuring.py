"""Measurement of candidates: each in a separate process with a time limit, once for equal parts, cached in a folder.

A figure's key has all that determines it: the part's operators, shapes and dtypes, the backend with its version and
source, torch, and the machine. A trial that exceeded its limit is not cached, as it may succeed next time.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import torch

from weft.runtime.backends.build import Choice
from weft.runtime.backends.registry import Backend, BackendError
from weft.runtime.backends.server import Opening, TrialJob
from weft.runtime.backends.trial import TrialResult
from weft.runtime.ranks.children import Start, children
from weft.solver.io.kept import read_kept, write_kept

#: Wall seconds allowed for loading torch and the model in the measuring process.
_OPENING = 300.0
_FORMAT = "weft.backend-figure/2"
#: The sizes of the two tensors with which a boundary is measured; its cost is linear in the size.
_NUMBERS = (1024, 1024 * 1024)
#: Seconds after a trial's limit until the measuring process counts as hung.
_GRACE = 60.0


@dataclass
class Measuring:
    """A process that measures one model's parts, and the folder of cached figures (``None``: no cache).

    ``limit``: wall seconds for one trial, building included. ``tried``: the number of trials run, cached ones not
    included.
    """

    connection: Connection
    folder: Path | None
    limit: float
    trains: bool
    repeats: int
    tried: int = 0
    known: dict[str, TrialResult] = field(default_factory=dict)

    def kept(self, backend: Backend, key: str) -> TrialResult | None:
        """The cached figure of a part with this key, or ``None``."""
        return self._load(self._name("part", (backend,), key))

    def part(self, backend: Backend, key: str, units: Sequence[int], limit: float = math.inf) -> TrialResult:
        """The time of ``backend`` for ``units``, a part with this ``key``, measured within ``limit`` seconds."""
        return self._found(self._name("part", (backend,), key), TrialJob("part", ((backend.name, tuple(units)),),
                                                                         min(limit, self.limit)))

    def eager(self, backend: Backend, key: str) -> TrialResult:
        """The time of eager torch for each unit of the model, whose digest is ``key``."""
        found = self._found(self._name("eager", (backend,), key), TrialJob("eager", (), 10 * self.limit))
        if found.refused is not None:
            raise BackendError(f"the model by itself {found.refused}, without any backend")
        return found

    def boundary(self, first: Backend, second: Backend) -> tuple[float, float]:
        """Seconds per value that ``first`` produces and ``second`` reads, and per byte of it; 0 if one of them cannot
        compute the operators used for the measurement."""
        small, large = (self._found(
            self._name("boundary", (first, second), str(numbers)),
            TrialJob("boundary", ((first.name, ()), (second.name, ())), self.limit, numbers)) for numbers in _NUMBERS)
        if small.refused is not None or large.refused is not None:
            return 0.0, 0.0
        per_byte = max(0.0, (large.seconds - small.seconds) / (4 * (_NUMBERS[1] - _NUMBERS[0])))
        return max(0.0, small.seconds - 4 * _NUMBERS[0] * per_byte), per_byte

    def whole(self, choice: Choice, beside: Choice = ()) -> TrialResult:
        """The time of the whole model by ``choice``, measured in turn with the choice ``beside`` (empty: eager); not
        cached."""
        own, other = (tuple((name, tuple(units)) for name, units in each) for each in (choice, beside))
        return self._try(TrialJob("whole", own, 10 * self.limit, beside=other))

    def _found(self, name: str, job: TrialJob) -> TrialResult:
        if (found := self._load(name)) is None:
            found = self.known[name] = self._try(job)
            late = found.refused is not None and found.refused.startswith("did not end")
            if self.folder is not None and not late:
                write_kept(self.folder / f"{name}.json", _FORMAT, name, "figure",
                           {**asdict(found), "error": str(found.error)})  # which may be infinite
        return found

    def _try(self, job: TrialJob) -> TrialResult:
        self.tried += 1
        self.connection.send(job)
        if not self.connection.poll(job.limit + _GRACE):
            raise BackendError("the process that measures backends does not answer")
        try:
            found: TrialResult = self.connection.recv()
        except EOFError:
            raise BackendError("the process that measures backends has ended by itself: is there enough memory for the "
                               "model twice?") from None
        return found

    def _name(self, what: str, backends: Sequence[Backend], key: str) -> str:
        facts = [_FORMAT, what, key, torch.__version__, machine_name(), str(self.trains), str(self.repeats)]
        facts += [f"{backend.name} {backend.version()} {_source(backend.source)}" for backend in backends]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()

    def _load(self, name: str) -> TrialResult | None:
        if name not in self.known and self.folder is not None:
            kept = read_kept(self.folder / f"{name}.json", _FORMAT, name, "figure")
            if kept is not None:
                self.known[name] = TrialResult(**{**kept, "error": float(kept["error"]), "units": tuple(kept["units"])})
        return self.known.get(name)


@contextmanager
def measuring(path: str | os.PathLike[str], backends: Sequence[Backend], *, folder: Path | None, limit: float,
              trains: bool = False, repeats: int = 15, shared: bool = False) -> Iterator[Measuring]:
    """A process that measures parts of the ``.pt2`` file ``path``; it ends with the block. ``shared``: trials share one
    process until one fails, which a GPU requires.

    Raises :class:`~weft.runtime.backends.registry.BackendError` if it does not start or cannot load the file.
    """
    shipped = str(Path(__file__).parent / "shipped")
    sources = tuple(dict.fromkeys(backend.source for backend in backends
                                  if backend.source and not backend.source.startswith(shipped)))
    key = secrets.token_bytes(16)
    with tempfile.TemporaryDirectory(prefix="weft-backends-") as place:
        address = str(Path(place) / "socket")
        environment = {**os.environ, "WEFT_BACKENDS_KEY": key.hex(), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
                       "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # a check for GPUs must not initialize them
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "weft.runtime.backends.server", address, str(os.getpid())]
        with Listener(address, authkey=key) as listener, open(Path(place) / "output", "w+b") as output, children(
                [Start(command, environment, output, output)], [Path(place)]) as (process,):
            def is_alive() -> bool:
                return process.poll() is None

            connection = _accept(listener, is_alive, output.name)
            with connection:
                connection.send(Opening(os.fspath(path), sources, trains, repeats, shared, _OPENING))
                if not connection.poll(_OPENING + _GRACE):
                    raise BackendError(f"{path}: the process that measures backends did not load it within "
                                       f"{_OPENING:g} s")
                if (why := connection.recv()) is not None:
                    raise BackendError(f"{path}: cannot be measured: {why}")
                yield Measuring(connection, folder, limit, trains, repeats)
                connection.send(None)


def _accept(listener: Listener, is_alive: Callable[[], bool], output: str) -> Connection:
    """The connection of the started process."""
    import threading

    accepted: list[Connection] = []
    waiting = threading.Thread(target=lambda: accepted.append(listener.accept()), daemon=True)
    waiting.start()
    while waiting.is_alive():
        waiting.join(0.1)
        if waiting.is_alive() and not is_alive():
            lines = Path(output).read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise BackendError(f"the process that measures backends did not start: {lines[-1]:.200}")
    return accepted[0]


@cache
def _source(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


@cache
def machine_name() -> str:
    """The name of the GPU; without one, that of the CPU, which runs one thread."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, one thread"


def boundaries_of(measuring: Measuring, backends: Sequence[Backend]) -> Mapping[tuple[str, str], tuple[float, float]]:
    """The result of :meth:`Measuring.boundary` for each ordered pair of different backends."""
    return {(a.name, b.name): measuring.boundary(a, b) for a in backends for b in backends if a is not b}
