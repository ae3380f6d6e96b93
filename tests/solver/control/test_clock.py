"""When a process began, and that no watch outlives what it was for."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from weft.solver.control.clock import checkpoint, watching
from weft.solver.control.stopping import breakable
from weft.solver.cpsat.budget import Budget

#: Shorter than the shell's sleep by more than Python takes to start.
_SLEEP, _LESS = 3, 2.5

_SAID = "import time; from weft.solver.control.clock import process_start; print(time.monotonic() - process_start())"


@pytest.mark.slow
def test_a_shell_that_became_the_process_is_not_counted() -> None:
    """``sh -c "pip install . && weft demo"`` runs its last command in its own place: the install took no limit."""
    ended = subprocess.run(["sh", "-c", f'sleep {_SLEEP}; exec "$0" -c "$1"', sys.executable, _SAID],
                           capture_output=True, text=True, timeout=600, check=True)
    assert 0 < float(ended.stdout) < _LESS


def test_wherever_a_stop_breaks_off_no_watch_stays() -> None:
    """At each instruction with which a watch begins or ends."""
    files = {watching.__code__.co_filename, contextlib.__file__,
             inspect.unwrap(Budget.limited).__code__.co_filename}
    before = sys.gettrace()
    for number in itertools.count(1):
        budget, steps = Budget(), itertools.count(1)

        def broken(frame: FrameType, event: str, _: object, steps: Iterator[int] = steps, number: int = number) -> Any:
            frame.f_trace_opcodes = frame.f_code.co_filename in files
            if event == "opcode" and next(steps) == number:
                sys.settrace(None)
                raise KeyboardInterrupt
            return broken

        with budget.kept(lambda: True):
            sys.settrace(broken)
            with budget.limited(0.5), watching(lambda: True):
                pass
            sys.settrace(before)
        sys.settrace(before)
        checkpoint()  # nothing is left to stop it
        if not budget.interrupted:
            break
    assert number > 100


def test_a_stop_before_the_work_begins_is_no_fault() -> None:
    budget = Budget()
    with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
        patch.setattr(breakable, "__enter__", lambda _: _stops())
        with budget.kept(lambda: True):
            raise AssertionError
    assert budget.interrupted


def _stops() -> None:
    raise KeyboardInterrupt
