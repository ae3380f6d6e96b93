"""Hypothesis tries a quarter of its examples by default, half of them with ``--hypothesis-profile half``, as
``.ci/run`` does, and all with ``--hypothesis-profile all``.

It explores anew on every run at a desk, and repeats itself in CI, where a failure must be the change's.

No example has a deadline, and none is too slow to draw: a busy machine is no fault. Nor is a seed with which many are
given up, as long as some are tried; and what a fixture made may serve all examples of a test. A fault in a phase of the
search is one: what the search would note and survive fails the test, but for those marked ``faults``, which inject it.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from weft.solver.step.search import Search

# A shell's background jobs ignore SIGINT, what nohup starts SIGHUP, and all of their children inherit that.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# Workers share the cores: threads of torch and numpy, on tensors this small, would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What tests keep is theirs.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="weft-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

in_ci = bool(os.environ.get("CI"))
for name, most in (("few", 10), ("half", 20), ("all", 40)):
    settings.register_profile(name, max_examples=most, deadline=None, derandomize=in_ci, suppress_health_check=[
        HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture])
settings.load_profile("few")

# What is imported and collected stays: nothing of it is looked at for garbage, then or later.
gc.disable()


#: Files of many cases that share little: what follows the first "-" of a name may run in any worker.
SPREAD = ("tests/end_to_end/test_grid.py", "tests/end_to_end/test_golden.py", "tests/end_to_end/test_signals.py",
          "tests/experiments/test_experiments.py", "tests/runtime/graph_network/test_training.py",
          "tests/weft/app/train/test_train.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All tests of a file run in one worker, so that what its fixtures make, ranks above all, is made once."""
    from xdist.scheduler import LoadScopeScheduling

    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = lambda name: name.partition("-" if name.startswith(SPREAD) else "::")[0]
    return scheduling


def pytest_collection_finish() -> None:
    """From now on tests make garbage."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What Hypothesis draws for is ``random``: ``.ci/run`` runs it again, with more examples."""
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
