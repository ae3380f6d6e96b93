"""Processes end with the one that started them, however that ends, with what they started and what they shared."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from weft.runtime.ranks.children import end_with_parent
from weft.runtime.ranks.launch import run_ranks
from weft.runtime.ranks.leftovers import beginning

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
LATE = 60.0  # seconds: what is not there by then never comes
#: A rank: it starts a process of its own, says both numbers, and hears no signal but one that nobody can refuse.
RANK = """
import os, signal, subprocess, sys, time
folder, hears = sys.argv[1:]
if hears == "deaf":
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
own = subprocess.Popen(["sleep", "1000"])
with open(f"{folder}/{os.environ['RANK']}.part", "w") as file:
    file.write(f"{os.getpid()} {own.pid}")
os.rename(file.name, f"{folder}/{os.environ['RANK']}.numbers")
time.sleep(1000)
"""
#: The process that starts them; what sees to their end is left out as it is told.
STARTER = """
import contextlib, sys
from pathlib import Path
from weft.runtime.ranks import children, launch, leftovers
folder, without, hears, rank = sys.argv[1:]
launch.GRACE = 0.5
if without == "the system":
    children._binding = lambda *parent: None
if without == "the keeper":
    children._KEEPER = "exit 0"
command = [sys.executable, "-c", rank, folder, hears]
with leftovers.shared_folder("weft-test", Path(folder)) as shared:
    starts = [children.Start(command, launch.rank_environment(r, 2, 1)) for r in range(2)]
    if hears == "folder":
        with children.children(starts, [shared]) as running:
            running[0].wait()
    else:
        sys.exit(launch.run_ranks(2, command))
"""


class Started:
    """A process that has started two ranks, and all of theirs."""

    def __init__(self, folder: Path, without: str, hears: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", STARTER, str(folder), without, hears, RANK],
                                        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True)
        assert reached(lambda: len(list(folder.glob("*.numbers"))) == 2)
        said = [path.read_text().split() for path in sorted(folder.glob("*.numbers"))]
        self.ranks, self.theirs = ([int(numbers[place]) for numbers in said] for place in (0, 1))
        self.begun = {number: beginning(number) for number in (*self.ranks, *self.theirs)}

    def left(self) -> list[int]:
        return [number for number, begun in self.begun.items() if begun is not None and beginning(number) == begun]


def reached(what: Callable[[], bool]) -> bool:
    until = time.monotonic() + LATE
    while not (found := what()) and time.monotonic() < until:
        time.sleep(0.02)
    return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, str], Started]]:
    made: list[Started] = []

    def started(without: str, hears: str) -> Started:
        made.append(Started(tmp_path, without, hears))
        return made[0]

    yield started
    for each in made:
        for number in (*each.left(), each.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        each.process.wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("hears", ["all", "deaf"])
def test_a_signal_to_the_one_that_starts_leaves_no_process(
        start: Callable[[str, str], Started], number: signal.Signals, hears: str) -> None:
    """Of ranks that hear none of them too."""
    found = start("nothing", hears)
    found.process.send_signal(number)
    code = found.process.wait(LATE)
    own = found.ranks if number != signal.SIGKILL and hears == "all" else list(found.begun)
    assert reached(lambda: not set(own) & set(found.left())), (found.left(), found.begun)
    if hears == "deaf":
        assert code == (-9 if number == signal.SIGKILL else 137)
    elif number != signal.SIGKILL:
        assert code == 128 + (signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)


@pytest.mark.parametrize("without", ["the system", "the keeper"])
def test_one_of_the_two_ways_is_enough(start: Callable[[str, str], Started], without: str) -> None:
    found = start(without, "deaf")
    found.process.kill()
    own = found.ranks if without == "the keeper" else list(found.begun)
    assert reached(lambda: not set(own) & set(found.left())), (found.left(), found.begun)


def test_the_folder_goes_at_once_where_the_starting_process_is_killed(
        start: Callable[[str, str], Started], tmp_path: Path) -> None:
    found = start("nothing", "folder")
    assert list(tmp_path.glob("weft-test-*"))
    found.process.kill()
    assert reached(lambda: not list(tmp_path.glob("weft-test-*")) and not found.left())


def test_a_parent_that_ended_before_the_child_was_bound_to_it_is_noticed() -> None:
    child = os.fork()
    if not child:
        end_with_parent(os.getpid())  # not the parent's number, as once it has ended
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGKILL


def test_nothing_stays_where_ranks_end_by_themselves() -> None:
    before = set(_children())
    assert run_ranks(2, [sys.executable, "-c", "pass"]) == 0
    assert set(_children()) <= before


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
