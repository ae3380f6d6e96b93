"""Hypothesis tries a tenth of its examples by default, all with ``--hypothesis-profile all``, as ``.ci/run`` does.

It explores anew on every run at a desk, and repeats itself in CI, where a failure must be the change's.

No example has a deadline: a busy machine is no fault. A fault in a phase of the search is one: what the search would
note and survive fails the test, but for those marked ``faults``, which inject it.
"""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import is_hypothesis_test, settings

from weft.solver.step.search import Search

# A shell's background jobs ignore SIGINT, what nohup starts SIGHUP, and all of their children inherit that.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# Workers share the cores: threads of torch and numpy, on tensors this small, would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

in_ci = bool(os.environ.get("CI"))
settings.register_profile("few", max_examples=10, deadline=None, derandomize=in_ci)
settings.register_profile("all", max_examples=100, deadline=None, derandomize=in_ci)
settings.load_profile("few")

# What is imported and collected stays: nothing of it is looked at for garbage, then or later.
gc.disable()


def pytest_collection_finish() -> None:
    """From now on tests make garbage."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What Hypothesis draws for is ``random``: ``.ci/run`` runs it again, with all examples."""
    for item in items:
        if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj):
            item.add_marker("random")


@pytest.fixture(autouse=True)
def no_fault_is_survived(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults within a search come out."""
    if request.node.get_closest_marker("faults") is None:
        monkeypatch.setattr(Search, "note", _raised)


def _raised(_: Search, fault: Exception) -> None:
    raise fault
