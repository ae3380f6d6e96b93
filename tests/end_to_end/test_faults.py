"""Faults on real ranks: everyone stops in time, and says what it was."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from tests.support.faults import FAULTS, MICRO_BATCHES, RANKS, TIMEOUT, chain
from tests.support.ranks import launch_forked
from weft.runtime.plan.plan import save_plan

BUSY = 60.0  # seconds by which a busy machine may make all of them late


@pytest.mark.slow
@pytest.mark.parametrize(("name", "transport"), [
    ("killed", "shared"), ("hung", "shared"), ("nan", "gloo"), ("shape", "gloo"), ("plan", "gloo")])
def test_a_fault_stops_all_ranks_in_time_and_is_named(name: str, transport: str, tmp_path: Path) -> None:
    save_plan(chain(), tmp_path / "plan.json")
    save_plan(chain(MICRO_BATCHES + 1), tmp_path / "other.json")
    ended = launch_forked(RANKS, [sys.executable, "-m", "tests.support.faults", str(tmp_path)], environment={
        "WEFT_FAULT": name, "WEFT_FAULT_FOLDER": str(tmp_path), "WEFT_TRANSPORT": transport})
    stopped, moment = time.time(), tmp_path / "moment"
    assert [end.code > 0 for end in ended] == [name != "killed" or rank != 1 for rank in range(RANKS)], ended
    assert not any(end.late for end in ended)
    assert any(line.startswith("weft: ") and re.search(FAULTS[name], line)
               for end in ended for line in end.errors.splitlines()), ended
    assert moment.exists() == (name != "plan")
    assert name == "plan" or stopped - float(moment.read_text()) <= 2 * TIMEOUT + BUSY
