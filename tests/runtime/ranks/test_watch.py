"""The watchdog where the rendezvous store itself is what fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.support.ranks import launch_forked
from weft.runtime.ranks.launch import free_port
from weft.runtime.ranks.session import SessionError, join, told
from weft.runtime.ranks.watch import BEAT, Watch
from weft.runtime.ranks.words import SILENCE, Activity

TIMEOUT = 1.0


#: The process of the store: it writes down its port and waits.
HOST = """
import pathlib, sys, time
from torch.distributed import TCPStore  # type: ignore[attr-defined]
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
pathlib.Path(sys.argv[1] + ".part").write_text(str(store.port))
pathlib.Path(sys.argv[1] + ".part").rename(sys.argv[1])
time.sleep(3600)
"""


def main(port: int, host: int) -> None:
    """Rank 1 of two works under a watch whose store is process ``host``'s, and stops that."""
    with Watch(TCPStore("127.0.0.1", port), 1, 2, TIMEOUT) as watch:
        watch.begin()
        watch.doing("waiting for RECV 0F0<0", [0])
        os.kill(host, signal.SIGSTOP)
        time.sleep(3600)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))


@pytest.mark.slow
def test_a_rank_ends_though_the_process_of_the_store_is_stopped(tmp_path: Path) -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST, str(tmp_path / "port")])
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "port").exists():
            assert time.monotonic() < deadline and host.poll() is None
            time.sleep(0.02)
        ended, = launch_forked(1, [sys.executable, "-m", __name__, (tmp_path / "port").read_text(),
                                   str(host.pid)], timeout=TIMEOUT + SILENCE + 30)
    finally:
        host.kill()
        host.wait()
    assert ended.code == 1 and not ended.late
    assert "rank 1: gave up while waiting for RECV 0F0<0: the rendezvous store has not answered for" in ended.errors


@pytest.mark.slow
def test_a_rank_that_does_not_find_the_first_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    port = str(free_port())
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("weft.runtime.ranks.joining.SLACK", 120.0)  # past it this very process would end
    threads = torch.get_num_threads()
    with pytest.raises(SessionError, match=rf"rank 1 did not find rank 0 at 127.0.0.1:{port} within 1 s"), join(1.0):
        pass
    torch.set_num_threads(threads)


def test_a_store_that_is_lost_while_the_guilty_is_looked_for_ends_the_rank(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost:
        """Answers until something beside its own rank is asked for."""

        def set(self, key: str, value: str) -> None: ...

        def check(self, keys: Sequence[str]) -> bool:
            if keys != ["given up"]:
                raise RuntimeError("connection reset")
            return False

    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise SystemExit(code)

    monkeypatch.setattr("weft.runtime.ranks.watch.os._exit", leave)
    watch = Watch(Lost(), 1, 2, 0.1)  # type: ignore[arg-type]
    watch.begin()
    watch.at(Activity("waiting for RECV 0F0<0", (0,)))
    time.sleep(0.2)
    with pytest.raises(SystemExit):
        watch._look()
    assert codes == [1]
    assert "lost the rendezvous store, so rank 0 is gone, while waiting for RECV 0F0<0" in capsys.readouterr().err


def test_of_several_threads_the_one_that_has_been_at_its_thing_for_longest_counts() -> None:
    watch = Watch(object(), 1, 2, 10.0)  # type: ignore[arg-type]
    watch.doing("running F[0]")
    told, over = threading.Event(), threading.Event()

    def lane() -> None:
        watch.doing("running send[0]")
        told.set()
        over.wait()
        watch.rest()

    thread = threading.Thread(target=lane)
    thread.start()
    told.wait()
    assert watch.text == watch._now[0].text == "running F[0]"
    watch.rest()
    assert watch.text == "running send[0]"
    over.set()
    thread.join()
    assert watch.text == "waiting for its own lanes"


def apart(watch: Watch, now: Activity) -> str | None:
    """What ``watch`` finds of another call than its own."""
    return watch.words.apart(now, *watch._call, watch.ended)


def test_ranks_that_call_other_things_are_told_apart_by_the_number_of_the_call() -> None:
    store = HashStore()
    watches = [Watch(store, rank, 2, 10.0) for rank in (0, 1)]

    def said(rank: int, *calls: str) -> None:
        for name in calls:
            watches[rank].call(name)
        watches[rank].say(Activity("at it"), 0.0)

    waits = Activity("waiting for all ranks to begin", (1,))
    assert apart(watches[0], waits) is None  # nothing was called, nothing heard
    said(1, "step")
    said(0, "step", "step")
    assert apart(watches[0], waits) is None  # rank 1 is late
    said(1, "close")
    found = apart(watches[0], waits)
    assert found is not None and "rank 0 calls step where rank 1 calls close, as call 2 of the pipeline" in found
    assert apart(watches[0], Activity("running 0F0")) is None  # it waits for nobody
    watches[1].ended = True
    watches[1].say(Activity("at it"), 0.0)
    found = apart(watches[0], waits)
    assert found is not None and "rank 1's script has ended, at its last line or by sys.exit, where rank 0" in found
    watches[0].say(Activity("at it"), 0.0)
    assert found == apart(watches[1], Activity("waiting for all ranks to finish", (0,)))


@pytest.mark.parametrize("hours", [0, 1, -1])
def test_who_is_silent_is_told_whatever_the_clocks_say(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 waits for rank 1, which waits for rank 2, which is gone; each has a clock of its own."""
    store, clock = HashStore(), [100.0]
    watches = [Watch(store, rank, 3, 10.0) for rank in range(3)]
    monkeypatch.setattr("weft.runtime.ranks.watch.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("weft.runtime.ranks.watch.time.time", lambda: 3600.0 * hours * clock[0])
    first, second = Activity("waiting for RECV 0F0<1", (1,)), Activity("waiting for RECV 0F0<2", (2,))
    watches[2].say(Activity("running 0F0"), 1.0)
    for _ in range(60):
        clock[0] += BEAT
        watches[1].say(second, 5.0)
        watches[0].say(first, 5.0)
    assert watches[0].words.blame(first, 11.0) == (
        "gave up after 11.0 s of waiting for RECV 0F0<1; rank 2 was last heard of 11.8 s ago, running 0F0")
    assert "rank 2 was last heard of 11.8 s ago" in watches[1].words.blame(second, 11.0)
    watches[2].say(Activity("running 0F0"), 12.0)
    watches[1].say(second, 5.0)
    assert watches[0].words.blame(first, 11.0).endswith("; rank 2 has been running 0F0 for 12.0 s")


def test_a_rank_leaves_when_all_have_come_to_their_end() -> None:
    store = HashStore()
    watches = [Watch(store, rank, 2, 10.0) for rank in (0, 1)]
    thread = threading.Thread(target=watches[1].leave)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    watches[0].leave()
    thread.join(300)
    assert not thread.is_alive()


def test_an_interrupt_that_comes_to_the_main_thread_is_told_too(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    watch = Watch(HashStore(), 1, 2, 10.0)
    watch.doing("planning")
    with pytest.raises(SystemExit, match="130"), told(watch):
        raise KeyboardInterrupt
    assert "weft: rank 1: stopped by SIGINT while planning" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "code"), [
    ({"rank": 0, "why": "stopped", "code": 0}, 1), ({"rank": 0, "why": "stopped", "code": 256}, 1),
    ({"rank": 0, "why": "stopped", "code": -256}, 1), ({"rank": 0, "why": "stopped", "code": 2}, 2),
    ({"rank": 0, "why": "", "code": 2}, None), ({"rank": 7, "why": "stopped", "code": 2}, None),
    ({"rank": 1, "why": "it was me", "code": 2}, None), ({"why": "stopped", "code": 2}, None),
    ({"rank": 0, "why": "stopped"}, None), ([0], None), (0, None), ("not JSON", None),
])
def test_no_word_in_the_store_ends_a_rank_as_if_all_were_well(
        word: object, code: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One key with code 0 ended a training with exit code 0. Only a rank's own word ends others, and as a failure."""
    def leave(ended: int) -> None:
        raise SystemExit(ended)

    monkeypatch.setattr(os, "_exit", leave)
    store = HashStore()
    store.set("given up", word if isinstance(word, str) else json.dumps(word))
    watch = Watch(store, 1, 2, 10.0)
    if code is None:
        assert watch.words.given_up() is None
    else:
        with pytest.raises(SystemExit, match=rf"^{code}$"):
            watch.give_up("")


def test_a_rank_ends_though_nobody_reads_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """``2>&1 | head``: the sentence failed, and the rank, and all others, went on for good."""
    def leave(code: int) -> None:
        raise SystemExit(code)

    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(os, "_exit", leave)
    with os.fdopen(writing, "w", closefd=True) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        with pytest.raises(SystemExit, match=r"^3$"):
            Watch(HashStore(), 1, 2, 10.0).give_up("no reason", 3)
        monkeypatch.undo()
        with contextlib.suppress(BrokenPipeError):
            closed.close()
