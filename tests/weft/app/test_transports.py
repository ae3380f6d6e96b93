"""What is told of a machine's transports, by what two ranks say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import weft
from tests.support.commands import shows
from weft.app import transports
from weft.runtime.ranks.launch import Ended

GOOD: list[dict[str, Any]] = [
    {"name": "gloo", "wrong": "", "refused": ""}, {"name": "gloo:sockets", "wrong": "", "refused": ""},
    {"name": "shared", "wrong": "", "refused": ""},
    {"size": 4096, "seconds": {"gloo": 1e-4, "gloo?": 2e-4, "gloo:sockets": 3e-4, "shared": 1e-4, "rpc": 5e-4}}]


class Machine:
    """Ranks that say what they are told to, by device; ``asked``: what they were started for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int = 0) -> None:
        self.said: dict[str, list[dict[str, Any]]] = {"cpu": GOOD}
        self.codes: dict[str, tuple[int, str]] = {}
        self.asked: list[list[str]] = []
        monkeypatch.setattr(transports, "launch_local", self.launch)
        monkeypatch.setattr(transports, "can_share", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: True)
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)

    def launch(self, ranks: int, command: Sequence[str], *, timeout: float) -> list[Ended]:
        device, names, _ = command[-3:]
        self.asked.append([device, names])
        key = device if device == "cpu" else names
        default = [{"name": names, "wrong": "", "refused": ""}, {"size": 4096, "seconds": {names: 1e-5}}]
        lines = "\n".join(json.dumps(line) for line in self.said.get(key, default))
        code, errors = self.codes.get(key, (0, ""))
        return [Ended(code, lines, errors, 1.0, False), Ended(0, "", "", 2.0, False)]


def test_without_gpus_it_says_what_was_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    out = shows("transports", "--sizes", "4KiB")
    assert machine.asked == [["cpu", "gloo,gloo:sockets,shared,rpc"]]
    assert "nccl between GPUs was not checked: this machine has no GPU, it needs 2" in out
    assert "symmetric between GPUs was not checked: this machine has no GPU" in out
    assert "gloo (unknown shapes)" in out and "0.1 ms" in out and "0.04 GB/s" in out


@pytest.mark.slow
def test_ranks_of_this_machine_try_what_it_has() -> None:
    told = shows("transports", "--gpus", "0", "--sizes", "4KiB", "--json")
    tried = {row["transport"]: row for row in json.loads(told)["transports"]
             if row["device"] == "cpu"}
    assert all(tried[name]["works"] and tried[name]["seconds"].keys() == {"4096"}
               for name in ("gloo", "gloo:sockets", "shared"))


def test_what_libraries_print_beside_the_ranks_is_passed_over() -> None:
    output = '[Gloo] Rank 0 is connected to 1 peer ranks.\n{"name": "gloo"}\n3\n\n{"size": 4096, "seco'
    assert list(transports._said(output)) == [{"name": "gloo"}]


def test_on_gpus_each_transport_has_ranks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, gpus=2)
    found = weft.transports(sizes=[4096])
    assert machine.asked[1:] == [["cuda", name] for name in ("nccl", "shared", "symmetric", "rpc")]
    assert found.good and not found.unchecked and [tried.works for tried in found.tried] == [True] * 8


@pytest.mark.parametrize(("gpus", "wanted", "unchecked"), [
    (1, 2, ["nccl", "symmetric"]), (2, 1, ["nccl", "symmetric"]), (2, 0, ["nccl", "shared", "symmetric"])])
def test_what_too_few_gpus_cannot_have_is_no_fault(monkeypatch: pytest.MonkeyPatch, gpus: int, wanted: int,
                                                   unchecked: list[str]) -> None:
    Machine(monkeypatch, gpus)
    found = weft.transports(gpus=wanted, sizes=[4096])
    assert found.good and [sentence.split()[0] for sentence in found.unchecked] == unchecked


def test_nccl_may_join_ranks_of_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, 1)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert [sentence.split()[0] for sentence in weft.transports(sizes=[4096]).unchecked] == ["symmetric"]


def test_what_should_work_and_does_not_is_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, gpus=2)
    machine.said["symmetric"] = [{"name": "symmetric", "wrong": "", "refused": "rank 0 cannot have it"}]
    found = json.loads(shows("transports", "--json", "--sizes", "4KiB", status=1))
    assert not found["good"] and found["gpus"] == 2
    assert [(row["transport"], row["device"], row["reason"]) for row in found["transports"] if row["fails"]] == [
        ("symmetric", "cuda", "rank 0 cannot have it")]
    machine.said["cpu"] = [{"name": "gloo", "wrong": "'' came with other numbers", "refused": ""}, *GOOD[1:]]
    told = shows("transports", "--gpus", "0", "--sizes", "4KiB", status=1)
    assert "gloo on the CPU does not work: '' came with other numbers" in told


def test_ranks_that_die_fail_the_transport_that_was_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.said["cpu"], machine.codes["cpu"] = GOOD[:1], (-11, "")
    found = weft.transports(sizes=[4096])
    faults = {tried.name: tried.fault for tried in found.tried if tried.device == "cpu"}
    assert faults["gloo:sockets"] == "a rank ended with exit status -11"
    assert faults["shared"] == "not tried, since gloo:sockets ended the ranks" and not found.good
    machine.said["cpu"], machine.codes["cpu"] = GOOD[:3], (1, "weft: rank 1 was lost\n")
    assert {tried.fault for tried in weft.transports(sizes=[4096]).tried if tried.name == "gloo"} == {
        "while calls were timed: weft: rank 1 was lost"}


def test_rpc_is_there_to_be_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, gpus=2)
    machine.said["rpc"], machine.codes["rpc"] = [], (1, "RuntimeError: no such channel\n")
    found = weft.transports(sizes=[4096])
    assert found.good and "rpc on GPUs does not work: RuntimeError: no such channel" in str(found)


def test_sizes_that_no_message_has_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sizes is \[0\], it must be bytes"):
        weft.transports(sizes=[0])
