"""Starting the ranks of one machine without ``torchrun``: one way for all, with a guaranteed end.

Every command that starts ranks starts them here: ``weft train`` (:func:`run_ranks`), ``weft profile --ranks`` and
``weft transports`` (:func:`launch_local`), ``weft replay`` of jobs (:mod:`weft.runtime.share.processes`), and
experiments. :func:`rank_environment` sets the ranks' environment; :mod:`weft.runtime.ranks.children` ends them with
this process. All of their traffic stays on the loopback interface.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from weft.runtime.ranks.children import Start, children, end
from weft.runtime.ranks.loopback import loopback_interface

LOOK = 0.02  # seconds between two polls of the processes
GRACE = 5.0  # seconds that ranks have to end by themselves after one has ended, or a signal has come


@dataclass(frozen=True)
class Ended:
    """How one rank's process ended: its exit code (negative: the signal that ended it), what it wrote, and after how
    many seconds. ``late`` says that it had to be killed."""

    code: int
    output: str
    errors: str
    seconds: float
    late: bool


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The environment of ``rank`` of ``ranks`` on this machine, on top of this process's: its rank, rank 0's address,
    one thread, and the loopback interface for all traffic of libraries."""
    lo = loopback_interface()
    return {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1", **({} if lo is None else {"GLOO_SOCKET_IFNAME": lo, "NCCL_SOCKET_IFNAME": lo})}


def launch_local(ranks: int, command: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None,
                 beside: Callable[[Sequence[subprocess.Popen[bytes]]], None] | None = None) -> list[Ended]:
    """Run ``command`` as each of ``ranks`` ranks on 127.0.0.1 and wait for all; one thread a rank.

    Ranks that still run after ``timeout`` seconds are killed. ``beside`` is called with the running processes, in rank
    order (a test may kill one of them).
    """
    begun, port = time.monotonic(), free_port()
    with ExitStack() as files:
        written = [(files.enter_context(tempfile.TemporaryFile()), files.enter_context(tempfile.TemporaryFile()))
                   for _ in range(ranks)]
        seconds: list[float | None] = [None] * ranks
        with children([Start(command, {**rank_environment(rank, ranks, port), **(environment or {})}, output, errors)
                       for rank, (output, errors) in enumerate(written)]) as running:
            if beside is not None:
                beside(running)
            while time.monotonic() - begun < timeout and None in seconds:
                time.sleep(LOOK)
                for rank, process in enumerate(running):
                    if seconds[rank] is None and process.poll() is not None:
                        seconds[rank] = time.monotonic() - begun
        ended = []
        for process, (output, errors), took in zip(running, written, seconds, strict=True):
            output.seek(0)
            errors.seek(0)
            ended.append(Ended(process.returncode, output.read().decode(errors="replace"),
                               errors.read().decode(errors="replace"),
                               time.monotonic() - begun if took is None else took, late=took is None))
        return ended


def run_ranks(ranks: int, command: Sequence[str], patient: bool = False) -> int:
    """Run ``command`` as each of ``ranks`` ranks of this machine, with this process's output; returns the worst exit
    code of those that end by themselves, as a shell reports it (128 and the signal's number).

    Ctrl-C, SIGTERM and SIGHUP are forwarded to the ranks. When one rank ends with an error, or a signal has come, the
    others have :data:`GRACE` seconds; ``patient``: after a signal any length of time.
    """
    port, heard = free_port(), list[int]()
    with answered((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), heard.append), children(
            [Start(command, rank_environment(rank, ranks, port)) for rank in range(ranks)]) as running:
        until = float("inf")
        while any(process.poll() is None for process in running) and time.monotonic() < until:
            came = len(heard)
            for number in heard[:came]:
                _hand_on(running, number)
            del heard[:came]
            if until == float("inf") and ((came and not patient) or any(process.poll() for process in running)):
                until = time.monotonic() + GRACE
            time.sleep(LOOK)
        codes = [process.returncode for process in running if process.returncode is not None]
        late = len(codes) < len(running)
    worst = max((code if code >= 0 else 128 - code for code in codes), default=0)
    return worst or (128 + signal.SIGKILL if late else 0)


def _hand_on(running: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    """Forward the signal ``number``; SIGHUP as SIGTERM: ranks treat a closed terminal like any stop."""
    for process in running:
        process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)


@contextmanager
def answered(numbers: Sequence[signal.Signals], answer: Callable[[int], object]) -> Iterator[None]:
    """Inside, ``answer`` receives these signals in place of their usual handlers. In the main thread only; ignored
    signals stay ignored (``nohup``)."""
    before = {number: handler for number in numbers if threading.current_thread() is threading.main_thread()
              and (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, lambda came, frame: answer(came))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_all_if_one_fails(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for all of ``running``; once one has failed, end the others. For :func:`launch_local`'s ``beside``."""
    while any(process.poll() is None for process in running):
        if any(process.poll() for process in running):
            for process in running:
                end(process)
        time.sleep(LOOK)


#: Below the systems' ephemeral ports: a connection could take one of those between its choice and its use.
_PORTS = range(12_000, 32_000)


def free_port() -> int:
    """A port at which nothing listens now, outside the ephemeral range."""
    draw = random.SystemRandom()  # not the generator that a training has seeded: concurrent launchers would collide
    for port in (*draw.sample(_PORTS, 50), 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise OSError("no port of 127.0.0.1 is free")
