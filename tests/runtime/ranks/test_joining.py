"""Ranks that do not come, die or hang while ranks join and save: every other one ends in time and says who it was.

Run as a program (``python -m tests.runtime.ranks.test_joining FAULT MOMENT [FOLDER]``), this file is one rank: the last
one (or rank 0) does what the fault says at that moment.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from tests.support import PATIENCE, ROOT, launch_forked
from tests.support.checkpoints import a_plan, training
from weft.runtime.checkpoint import checkpoint
from weft.runtime.checkpoint.checkpoint import Checkpoints
from weft.runtime.ranks import joining, loopback, session, watch
from weft.runtime.ranks.launch import Ended, free_port, launch_local
from weft.runtime.ranks.session import SessionError, join

RANKS, TIMEOUT = 3, 8.0
JOINING = 9.0  # seconds that ranks which have all come may take to connect


def rank_main() -> None:
    fault, moment = sys.argv[1:3]
    guilty = os.environ["RANK"] == fault.partition("-")[2]

    def befall() -> None:
        if guilty:
            os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[fault.partition("-")[0]])

    made, met = dist.init_process_group, session.clock_offset

    def group(*arguments: Any, **options: Any) -> None:
        if moment == "group":
            befall()
        made(*arguments, **options)

    def offset(rank: int, places: Sequence[int]) -> float:
        if moment == "offset":
            befall()
        return met(rank, places)

    class Writer(FileSystemWriter):
        def write_data(self, *arguments: Any) -> Any:
            if moment == "saving":
                befall()
            return super().write_data(*arguments)

    dist.init_process_group = group
    vars(session).update(clock_offset=offset)
    if moment not in ("again", "never"):
        vars(watch).update(JOINING=JOINING)
    vars(checkpoint).update(FileSystemWriter=Writer)
    for before in range(2 if moment == "again" else 0):
        with join(PATIENCE) as joined:
            told = joined.everywhere((before, joined.rank), "telling")
            assert told == [(before, other) for other in range(joined.world)]
    with join(PATIENCE if moment == "again" else TIMEOUT) as joined:
        if moment == "leaving" and guilty:
            sys.exit(0)
        if moment == "saving":
            plan = a_plan(RANKS)
            part = training(plan, joined.rank)
            joined.common_start()
            Checkpoints(Path(sys.argv[3]), every=1).save(plan, joined, part, 0)
        joined.barrier("to compute")


def launch(*arguments: str, ranks: int = RANKS, **environment: str) -> list[Ended]:
    return launch_forked(ranks, [sys.executable, "-m", "tests.runtime.ranks.test_joining", *arguments],
                         environment=environment)


def sentences(end: Ended) -> list[str]:
    """What a rank wrote, but for torch's own warnings."""
    return [line for line in end.errors.splitlines() if line.startswith("weft: ")]


@pytest.mark.parametrize(("fault", "moment", "says"), [
    ("killed-2", "group", r"rank 2 was (never heard|last heard) of|lost rank 2"),
    ("killed-2", "offset", r"lost rank 2, (last heard of \w+|never heard of).*, while joining the other ranks"),
    ("killed-0", "offset", r"lost rank 0|rank 0 is gone"),
    ("stopped-2", "offset", r"of joining the other ranks; rank 2 was (last heard of .* s ago|never heard)"),
    ("killed-1", "saving", r"lost rank 1, last heard of .*saving .*step-000000001"),
    ("killed-0", "saving", r"lost rank 0|rank 0 is gone"),
    ("stopped-1", "saving", r"of saving .*; rank 1 was last heard of .* s ago"),
    ("left-1", "leaving", r"rank 1( gave up)?: SystemExit while"),
])
@pytest.mark.slow
def test_a_rank_that_is_lost_is_named_by_all_others(tmp_path: Path, fault: str, moment: str, says: str) -> None:
    ends = launch(fault, moment, str(tmp_path / "saved"))
    guilty = int(fault.partition("-")[2])
    for rank, end in enumerate(ends):
        if rank == guilty and moment != "leaving":
            assert end.code == -signal.SIGKILL  # a stopped one is killed by who launched it
            continue
        assert end.code > 0 and not end.late, ends
        said = sentences(end)
        assert len(said) == 1 and said[0].startswith(f"weft: rank {rank}: "), end.errors
        assert re.search(says, said[0]), said
        assert moment == "leaving" or "Traceback" not in end.errors, end.errors


def test_ranks_join_again_and_again() -> None:
    """The second time hung: what the first had written in the store stood for the second."""
    for end in launch("none", "again", ranks=2):
        assert end.code == 0 and not end.late, end.errors


@pytest.mark.slow
def test_the_rank_that_does_not_come_is_named() -> None:
    ends = launch("none", "never", ranks=2, WORLD_SIZE="4")
    for rank, end in enumerate(ends):
        assert end.code == 1 and not end.late
        assert f"SessionError: rank {rank} waited 8 s for ranks 2, 3 of 4 to join, in vain" in end.errors \
            or f"SessionError: rank {rank} did not find rank 0" in end.errors
    assert "waited 8 s for ranks 2, 3 of 4" in ends[0].errors


@pytest.mark.slow
def test_a_port_where_something_listens_that_never_answers_ends_the_rank_in_time() -> None:
    """It hung for as long as the listener ran."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = str(silent.getsockname()[1])
        end, = launch("none", "never", ranks=1, WORLD_SIZE="2", MASTER_PORT=port, WEFT_RANK="1")
    assert end.code == 2 and not end.late
    assert sentences(end) == [
        f"weft: rank 1 did not find rank 0 at 127.0.0.1:{port} within 8 s: what listens there does not answer as rank "
        "0 would; is it another program? start all ranks with one MASTER_ADDR and a MASTER_PORT that is free"]


@pytest.mark.parametrize(("changed", "says"), [
    ({"RANK": "one"}, "RANK is 'one', it must be a number; torchrun sets it for every rank"),
    ({"RANK": "2"}, "RANK is 2 and WORLD_SIZE 2: ranks are numbered from 0"),
    ({"WORLD_SIZE": ""}, "WORLD_SIZE is '', it must be a number"),
    ({"MASTER_PORT": "70000"}, "MASTER_ADDR is '127.0.0.1' and MASTER_PORT 70000: they must name where"),
    ({"MASTER_ADDR": ""}, "MASTER_ADDR is '' and"),
    ({"MASTER_ADDR": "no.such.host.invalid"}, "rank 1 did not find rank 0 at no.such.host.invalid:"),
])
def test_variables_that_mean_nothing_are_named(
        monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], says: str) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in {**variables, **changed}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("weft.runtime.ranks.joining.SLACK", 120.0)  # past it this very process would end
    threads = torch.get_num_threads()
    with pytest.raises(SessionError) as raised, join(1.0):
        pass
    torch.set_num_threads(threads)
    assert says in str(raised.value)


def test_a_port_that_is_taken_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)):
            monkeypatch.setenv(name, value)
        threads = torch.get_num_threads()
        monkeypatch.setattr("weft.runtime.ranks.joining.SLACK", 120.0)
        with pytest.raises(SessionError) as raised, join(1.0):
            pass
        torch.set_num_threads(threads)
    assert f"rank 0 cannot listen at 127.0.0.1:{port} " in str(raised.value)
    assert "give a MASTER_PORT that is free" in str(raised.value)


if __name__ == "__main__":
    if "WEFT_RANK" in os.environ:
        os.environ["RANK"] = os.environ["WEFT_RANK"]
    rank_main()


LISTEN = """
import os
from pathlib import Path
from weft.runtime.ranks.session import join
with join(600.0) as joined:
    joined.barrier("to look")
    own = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
           if os.path.islink(f"/proc/self/fd/{name}")}
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                print(kind, fields[1].partition(":")[0])
    joined.barrier("to end")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_ranks_of_one_machine_listen_on_its_loopback_interface_only() -> None:
    """The store listened on all interfaces, and gloo on that of the machine's name."""
    ends = launch_local(2, [sys.executable, "-c", LISTEN], timeout=PATIENCE,
                        environment={"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": ""})
    assert [end.code for end in ends] == [0, 0], ends
    heard = [line for end in ends for line in end.output.splitlines() if line.startswith("tcp")]
    assert len(heard) >= 3 and set(heard) == {"tcp 0100007F"}  # the store, and gloo of each rank


@pytest.mark.parametrize(("networks", "names", "says"), [
    (("a", "a"), ("one (127.0.1.1)", "one (127.0.1.1)"), None),
    (("a", "b"), (None, None), None),
    (("a", "b"), (None, "two (127.0.1.1)"), r"rank 1's machine is known to itself as two \(127.0.1.1\), where ranks on "
     "other machines cannot reach it: set GLOO_SOCKET_IFNAME there to the network interface between the machines"),
])
def test_a_machine_whose_name_is_a_loopback_address_is_named_with_the_variable_to_set(
        networks: tuple[str, ...], names: tuple[str | None, ...], says: str | None, monkeypatch: pytest.MonkeyPatch
        ) -> None:
    monkeypatch.delenv(joining.INTERFACE, raising=False)
    store = HashStore()
    for rank, said in enumerate(zip(networks, names, strict=True)):
        PrefixStore("weft roll", store).set(str(rank), json.dumps(said))
    if says is None:
        joining._require_reachable(store, 2)
        assert (joining.INTERFACE in os.environ) == (networks == ("a", "a"))
        os.environ.pop(joining.INTERFACE, None)
    else:
        with pytest.raises(joining.NotJoined, match=says):
            joining._require_reachable(store, 2)


@pytest.mark.parametrize(("address", "said"), [("127.0.1.1", "here (127.0.1.1)"), (None, "here (no address at which"),
                                               ("0.0.0.0", None)])
def test_what_this_machine_s_own_name_stands_for(address: str | None, said: str | None,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    found = [] if address is None else [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0))]
    monkeypatch.setattr(loopback, "_addresses", lambda name: found)
    name = loopback.own_name_is_loopback()
    assert name is None if said is None else name is not None and name.startswith(said)
