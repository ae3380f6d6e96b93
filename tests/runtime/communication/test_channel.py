"""Collectives in the order in which they are started, beside the caller."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from tests.support.one_rank import one_rank
from weft.runtime.communication.channel import Channel, meeting
from weft.runtime.communication.failures import RankError


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    with one_rank():
        yield


def test_what_is_started_runs_in_order_beside_the_caller(alone: None) -> None:
    channel, order, go = Channel(), list[str](), threading.Event()

    def begin(name: str) -> None:
        go.wait(10)
        order.append(name)

    pending = [channel.start(name, lambda name=name: begin(name)) for name in "abc"]  # type: ignore[misc]
    assert not order
    go.set()
    pending[2].wait()
    assert order == ["a", "b", "c"]
    channel.close()


def test_a_failure_is_told_and_nothing_behind_it_runs(alone: None) -> None:
    channel, other = Channel(), list[str]()

    def fail() -> None:
        raise RuntimeError("no room\nand more")

    first, second = channel.start("sum", fail), channel.start("gather", lambda: other.append("ran"))
    for pending in (first, second):
        with pytest.raises(RankError, match=r"^rank 0 failed in sum: no room$"):
            pending.wait()
    assert not other and channel.others.record.read() == "rank 0 failed in sum: no room"
    channel.close()


def test_who_waits_ends_with_what_another_rank_has_told(alone: None) -> None:
    channel, go = Channel(), threading.Event()

    def begin() -> None:
        go.wait(10)

    pending = channel.start("sum", begin)
    channel.others.record.write("rank 1 failed in the matmul: out of memory")
    with pytest.raises(RankError, match="rank 1 failed in the matmul: out of memory"):
        pending.wait()
    go.set()
    channel.close()


def test_errors_inside_are_told_but_those_that_all_have(alone: None) -> None:
    channel = Channel()
    with pytest.raises(RankError), channel.others.reporting("the step"):
        raise RankError("rank 1 has gone")
    assert channel.others.record.read() is None
    with pytest.raises(ZeroDivisionError), channel.others.reporting("the step"):
        raise ZeroDivisionError
    assert channel.others.record.read() == "rank 0 failed in the step: ZeroDivisionError"
    channel.close()


def test_after_a_failure_and_when_it_is_closed_nothing_starts(alone: None) -> None:
    channel = Channel()
    with pytest.raises(ZeroDivisionError), channel.others.reporting("a division"):
        _ = 1 / 0
    with pytest.raises(RankError, match=r"rank 0 failed in a division: .* has to be made anew, on all ranks"):
        channel.start("a sum", lambda: None)
    closed = Channel()
    closed.close()
    with pytest.raises(ValueError, match="a sum cannot start, its collectives are closed"):
        closed.start("a sum", lambda: None)


def test_a_rank_that_does_not_come_is_one_sentence(alone: None) -> None:
    sentence = r"^rank 0 did not meet the other ranks within 3 s .* \(no answer\)$"
    with pytest.raises(RankError, match=sentence), meeting(3):
        raise RuntimeError("no answer\nand more")


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("inf"), float("nan")])
def test_a_timeout_that_cannot_be_is_refused(alone: None, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout is "):
        Channel(timeout=timeout)


def test_without_a_process_group_there_is_a_sentence() -> None:
    if not dist.is_initialized():
        with pytest.raises(ValueError, match="no process group is initialised: call torch"):
            Channel()
