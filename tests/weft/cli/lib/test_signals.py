"""Stops: where KeyboardInterrupt is raised and where it waits, what a signal leaves of a command's answer."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import weft
from tests.support import pipeline, shows, slow, v
from weft.cli.lib.signals import listening
from weft.cli.main import main
from weft.solver import Budget, Schedule, load_schedule, save_problem
from weft.solver.control.stopping import STOP, breakable, shielded
from weft.solver.diagnose.sensitivity import what_if


@pytest.fixture(autouse=True)
def _clear() -> Iterator[None]:
    yield
    STOP.clear()


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A problem whose search goes on until its time is up."""
    path = tmp_path / "problem.json"
    save_problem(pipeline(v(4), memory=4, forward=1.37, split=(1.11, 0.73)), path)
    return path


def stop(number: int = signal.SIGTERM) -> None:
    signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_before_there_is_an_answer_a_stop_is_raised_anywhere(number: int) -> None:
    with pytest.raises(KeyboardInterrupt), listening():
        stop(number)
    assert not STOP.requested  # nothing of it is left for the next command


def test_an_answer_is_broken_off_only_where_somebody_keeps_it() -> None:
    with listening():
        STOP.hold()
        stop()
        assert STOP.requested and Budget(seconds=100).spent
        with breakable():  # nothing is raised that came before: what is inside sees the request
            assert not Budget(seconds=100).left
    with listening():
        STOP.hold()
        with pytest.raises(KeyboardInterrupt), breakable():
            stop()
        with breakable():
            pass  # once only


def test_what_is_shielded_ends_first() -> None:
    done = []
    with listening():
        STOP.hold()
        with pytest.raises(KeyboardInterrupt), breakable():
            with shielded():
                stop()
                done.append("written")
            done.append("never")
    assert done == ["written"]


def test_regions_of_other_threads_mean_nothing() -> None:
    with listening():
        STOP.hold()
        thread = threading.Thread(target=lambda: breakable().__enter__())
        thread.start()
        thread.join()
        assert STOP.region is None
        stop()


def test_an_import_is_not_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weft_slow_module.py").write_text(
        "import signal, time\nsignal.raise_signal(signal.SIGTERM)\ntime.sleep(0.1)\nVALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KeyboardInterrupt), listening():
        assert importlib.import_module("weft_slow_module").VALUE == 1
        for _ in range(100):
            time.sleep(0.02)
    assert "weft_slow_module" in sys.modules


def test_a_stop_that_python_would_drop_is_raised_again() -> None:
    class Dropping:
        def __del__(self) -> None:
            stop()
            time.sleep(0)  # the handler runs here, inside a finaliser

    with pytest.raises(KeyboardInterrupt), listening():
        dropping = Dropping()
        del dropping
        for _ in range(100):
            time.sleep(0.02)


def test_what_was_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listening():
            stop(signal.SIGHUP)
            assert not STOP.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_that_waits_in_native_code_leaves_signals_as_they_are(monkeypatch: pytest.MonkeyPatch,
                                                                        tmp_path: Path) -> None:
    seen: list[object] = []
    before = signal.getsignal(signal.SIGTERM)

    def run(*_: object) -> int:
        seen.append(signal.getsignal(signal.SIGTERM))
        return 0

    monkeypatch.setattr("weft.cli.lib.command.Command.run", run)
    assert main(["replay", str(tmp_path / "plan.json"), "--emulate"]) == 0
    assert main(["schema"]) == 0
    assert seen[0] is before and seen[1] is not before
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_best_so_far(number: int, endless: Path, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    sent = signal_after_an_answer(monkeypatch, number)
    output = tmp_path / "out.json"
    told = shows("solve", endless, "-n", "40", "-o", output, "--time-limit", "250")
    assert sent and "interrupted: the best so far" in told
    assert load_schedule(output).solver["interrupted"] is True


@pytest.mark.parametrize("command", [["compare"], slow(["explain", "--what-if"]), ["latency"]])
def test_every_search_ends_with_its_answer(command: list[str], endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = signal_after_an_answer(monkeypatch, signal.SIGTERM)
    name, *further = command
    printed = shows(name, endless, "-n", "40", "--time-limit", "250", *further)
    assert sent and ("bound" in printed or "critical path" in printed.lower())
    if further:
        assert "not tried" in printed


def signal_after_an_answer(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Send ``number`` a moment after the first answer is held."""
    sent: list[int] = []

    def hold() -> None:
        STOP.held = True
        if not sent:
            sent.append(number)
            threading.Timer(0.1, os.kill, (os.getpid(), number)).start()

    monkeypatch.setattr(STOP, "hold", hold)
    return sent


def test_ctrl_c_in_python_ends_what_if_figures_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def interrupted(start: Schedule, effort: float, seed: int) -> Schedule:
        asked.append(seed)
        return start.with_solver(interrupted=len(asked) == 3)

    monkeypatch.setattr("weft.solver.diagnose.sensitivity._searched", interrupted)
    schedule = weft.solve(pipeline(v(2), memory=4, forward=1.37, split=(1.11, 0.73)), micro_batches=6, effort=0.01)
    found = what_if(replace(schedule, makespan_bound=0.0).with_solver(interrupted=True))
    assert len(asked) == 3 and len(found.figures) == 2 and found.untried
