"""Processes that take turns on one board: ``python -m tests.support.turn_takers FOLDER``, which prints who had them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from weft.runtime.share.turns import FileBoard, JobOver, Turns, cells_of

ORDER = [("a", "F", 0), ("b", "F", 0), ("c", "F", 0), ("a", "F", 1)]
ORDERS = {0: ORDER, 1: ORDER[::-1]}
COUNTS = {"a": 2, "b": 1, "c": 1}
LAPS = 5


def turns(folder: Path, patience: float = 60.0) -> tuple[Turns, FileBoard]:
    board = FileBoard(folder / "rank0.turns", cells_of(ORDERS, list(COUNTS)), "a plan", list(COUNTS), patience)
    return Turns(ORDERS, COUNTS, board), board


def take(folder: Path, job: str, killed_at: int | None, patience: float) -> None:
    """Be the process of ``job``: all its turns on device 0, then as many on 1; each is written down."""
    own, board = turns(folder, patience)
    board.hold(list(COUNTS).index(job))
    own.come(job)
    try:
        for number in range(LAPS * COUNTS[job]):
            own.take((job, "F", number), [0])
            with (folder / "taken").open("a") as file:
                file.write(f"{job}{number} ")
            if number == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            own.give([0])
    except JobOver:
        with (folder / "taken").open("a") as file:
            file.write(f"{job}- ")
    own.leave(job)


def main(folder: Path, takers: Sequence[tuple[str, int | None]]) -> None:
    """Fork them, wait, and print what they wrote."""
    children = []
    for job, killed_at in takers:
        child = os.fork()
        if not child:
            take(folder, job, killed_at, 60.0 if len(takers) == len(COUNTS) else 3.0)
            os._exit(0)
        children.append(child)
    until = time.monotonic() + 300
    codes = []
    for child in children:
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.005)
        codes.append(os.waitstatus_to_exitcode(ended[1]))
    print(json.dumps([codes, (folder / "taken").read_text().split()]))


if __name__ == "__main__":
    for case in json.loads(sys.argv[2]):
        where = Path(sys.argv[1]) / "-".join(f"{job}{at}" for job, at in case)
        where.mkdir()
        main(where, case)
