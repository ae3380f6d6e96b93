"""``weft demo``: what it finds comes from work, not from the clock; what it shows while it works."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import weft
from tests.support.builders import pipeline, v
from weft.app import demo
from weft.app.compare.result import Comparison
from weft.app.demo import Demonstration
from weft.app.lib.placements import SEARCHES
from weft.cli.main import main
from weft.solver.control.stopping import STOP

#: The demo's search on a clock that runs so many times as fast as ours: a machine that is as many times slower.
_ON_A_CLOCK = """
import json, sys, time
real = time.monotonic
time.monotonic = lambda: {speed} * real()
import weft, weft.app.demo
weft.app.demo.FORMATS = ()
found = weft.demo(sys.argv[1], effort=1.0)
assert not found.cut_short
print(json.dumps([found.comparison.to_json(), str(found.comparison), found.comparison.weft.orders]))
"""


class _TakenError(Exception):
    pass


@pytest.mark.slow
def test_rows_and_bounds_are_the_same_on_a_slower_machine(tmp_path: Path) -> None:
    runs = [subprocess.Popen([sys.executable, "-c", _ON_A_CLOCK.format(speed=speed), str(tmp_path / str(speed))],
                             stdout=subprocess.PIPE, text=True) for speed in (1, 4)]
    (fast, _), (slow, _) = (run.communicate() for run in runs)
    assert all(run.returncode == 0 for run in runs)
    assert json.loads(fast) == json.loads(slow) and len(json.loads(fast)[0]["rows"]) > 10


@pytest.mark.parametrize("call", ["python", "command"])
def test_it_ends_by_its_work(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[weft.SearchOptions] = []

    def compared(source: Any, count: Any, options: weft.SearchOptions, listener: Any) -> Comparison:
        taken.append(options)
        raise _TakenError

    monkeypatch.setattr(demo, "compare_source", compared)
    with contextlib.suppress(_TakenError):
        if call == "python":
            weft.demo(tmp_path)
        else:
            main(["demo", "-o", str(tmp_path), "--quiet"])
    [options] = taken
    assert options.effort == demo.DEMO_EFFORT and options.time_limit == demo.DEMO_LIMIT >= 10 * demo.DEMO_EFFORT
    assert options.pace is not None and options.budget().pace is options.pace and options.workers == 1


def test_what_ended_it_before_its_work_was_done_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, stopped = (cast(Comparison, SimpleNamespace(weft=SimpleNamespace(solver=solver)))
                      for solver in ({}, {"interrupted": True}))
    options = weft.SearchOptions(time_limit=100.0, effort=1.0)
    assert demo._cut_short(whole, options) == ""
    assert demo._cut_short(stopped, options).startswith("stopped before its work was done")
    late = weft.SearchOptions(time_limit=100.0, effort=1.0, started=time.monotonic() - 101)
    assert demo._cut_short(whole, late).startswith("the time limit of 100 s ended the search before its work was done")
    monkeypatch.setattr(STOP, "requested", True)
    assert demo._cut_short(whole, options).startswith("stopped")


def test_the_rows_that_matter_are_shown() -> None:
    whole = weft.compare(pipeline(v(3), memory=5), micro_batches=6, effort=0.1)
    brief = Demonstration(whole, ()).brief
    shown = {row.name for row in brief.rows}
    searches = {row.name: row.value for row in whole.rows if row.name in SEARCHES and row.fits}
    assert "weft" in shown and whole.best_fixed in shown
    assert shown & SEARCHES.keys() == {min(searches, key=lambda name: searches[name])}
    assert shown <= {row.name for row in whole.rows} and len(shown) < len(whole.rows)
    assert brief.best_fixed == whole.best_fixed and not brief.left_out
    assert str(Demonstration(whole, ())) == str(brief)
