"""Whether the peers' processes still run."""

from __future__ import annotations

import os
import subprocess

import pytest

from weft.runtime.ranks.leftovers import beginning
from weft.runtime.transports.one_host.peers import Processes


@pytest.mark.parametrize("has_handles", [True, False])
def test_a_peers_process_is_watched_until_it_ends(has_handles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a handle that is given back; where the system has none, by the moment at which it began."""
    before = set(os.listdir("/proc/self/fd"))
    if not has_handles:
        monkeypatch.setattr(os, "pidfd_open", lambda number: os.open("/nowhere", os.O_RDONLY))
    child, gone = subprocess.Popen(["sleep", "60"]), subprocess.Popen(["true"])
    gone.wait()
    processes = Processes({3: child.pid, 4: os.getpid(), 5: gone.pid})
    assert processes.alive(3) and processes.alive(4) and not processes.alive(5)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # nobody has asked yet how it ended
    assert not processes.alive(3) and processes.alive(4) and beginning(child.pid) is None
    child.wait()
    assert not processes.alive(3)
    processes.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_process_of_the_same_number_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    processes = Processes({1: os.getpid()})
    assert processes.alive(1)
    monkeypatch.setattr("weft.runtime.transports.one_host.peers.beginning", lambda number: "later")
    assert not processes.alive(1)
