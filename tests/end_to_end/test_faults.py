"""Faults on real ranks: everyone stops in time, and says what it was."""

from __future__ import annotations

import pytest

from tests.support.faults import FAULTS, provoke
from tests.support.ranks import launch_forked


@pytest.mark.slow
@pytest.mark.parametrize(("name", "transport"), [
    ("killed", "shared"), ("hung", "shared"), ("nan", "gloo"), ("shape", "gloo"), ("plan", "gloo")])
def test_a_fault_stops_all_ranks_in_time_and_is_named(name: str, transport: str) -> None:
    outcome = provoke(next(fault for fault in FAULTS if fault.name == name), transport, launch_forked)
    assert outcome.good, outcome
