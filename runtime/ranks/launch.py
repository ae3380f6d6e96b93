"""Starting the ranks of one machine without ``torchrun``, for tests and experiments, with an end sure to come."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

__all__ = ["Ended", "free_port", "launch_local"]


@dataclass(frozen=True)
class Ended:
    """How one rank's process ended: its exit code (negative: the signal that ended it), what it wrote, and after how
    many seconds. ``late`` says that it had to be killed."""

    code: int
    output: str
    errors: str
    seconds: float
    late: bool


def launch_local(ranks: int, command: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None,
                 beside: Callable[[Sequence[subprocess.Popen[bytes]]], None] | None = None) -> list[Ended]:
    """Run ``command`` as each of ``ranks`` ranks on 127.0.0.1 and wait for all; one thread a rank.

    Whoever still runs after ``timeout`` seconds is killed. ``beside`` is called with the running processes, in rank
    order (what a test needs to kill one of them).
    """
    begun = time.monotonic()
    with ExitStack() as files:
        written = [(files.enter_context(tempfile.TemporaryFile()), files.enter_context(tempfile.TemporaryFile()))
                   for _ in range(ranks)]
        common = {**os.environ, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                  "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", **(environment or {})}
        running = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                                    env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                   for rank, (output, errors) in enumerate(written)]
        seconds: list[float | None] = [None] * ranks
        try:
            if beside is not None:
                beside(running)
            while time.monotonic() - begun < timeout and None in seconds:
                time.sleep(0.02)
                for rank, process in enumerate(running):
                    if seconds[rank] is None and process.poll() is not None:
                        seconds[rank] = time.monotonic() - begun
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
        ended = []
        for process, (output, errors), end in zip(running, written, seconds, strict=True):
            code = process.wait()
            output.seek(0)
            errors.seek(0)
            ended.append(Ended(code, output.read().decode(errors="replace"), errors.read().decode(errors="replace"),
                               time.monotonic() - begun if end is None else end, late=end is None))
        return ended


#: Below the ports that systems give to connections, which would take one between its choice and its use.
_PORTS = range(12_000, 32_000)


def free_port() -> int:
    """A port at which nobody listens now, and which no connection is given."""
    draw = random.SystemRandom()  # not the one that a training has seeded: launchers beside each other would meet
    for port in (*draw.sample(_PORTS, 50), 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise OSError("no port of 127.0.0.1 is free")
