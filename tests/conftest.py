"""Hypothesis explores anew on every run at a desk, and repeats itself in CI, where a failure must be the change's.

No example has a deadline: a busy machine is no fault. A fault in a phase of the search is one: what the search would
note and survive fails the test, but for those marked ``faults``, which inject it.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

from weft.solver.step.search import Search

# A shell's background jobs ignore SIGINT, what nohup starts SIGHUP, and all of their children inherit that.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture(autouse=True)
def no_fault_is_survived(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults within a search come out."""
    if request.node.get_closest_marker("faults") is None:
        monkeypatch.setattr(Search, "note", _raised)


def _raised(_: Search, fault: Exception) -> None:
    raise fault
