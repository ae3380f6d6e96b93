"""Messages of unknown shapes over what carries tensors by tags, or without any."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable, Landing, Staging
from weft.runtime.plan.program import StageWork
from weft.runtime.transports.process_groups import PeerChannel, TwoMessages
from weft.runtime.transports.tensors import layout_of

CPU = torch.device("cpu")
LAYOUT = layout_of({"a": ((None, None), torch.float64), "b": ((None,), torch.complex64)})
WORKS = [StageWork(0, "F", m) for m in range(2)]
LANDINGS = [Landing(work, 0, LAYOUT, step, 0, 3, step) for step, work in enumerate(WORKS)]
MESSAGES = [Staging(work, 1, LAYOUT, step, 3, step) for step, work in enumerate(WORKS)]


class Wire:
    """Carries tensors from one side to the other, in order under each tag; a receive takes what comes by when it is
    waited for, in the order of the receives under its tag."""

    def __init__(self) -> None:
        self.sent: dict[int, deque[Tensor]] = defaultdict(deque)
        self.posted: dict[int, deque[Tensor]] = defaultdict(deque)

    def send(self, tensors: list[Tensor], number: int, tag: int) -> Any:
        self.sent[tag].append(tensors[0].clone())
        return SimpleNamespace(wait=lambda: None)

    def recv(self, tensors: list[Tensor], number: int, tag: int) -> Any:
        self.posted[tag].append(tensors[0])

        def wait() -> None:
            while self.posted[tag] and self.sent[tag]:
                self.posted[tag].popleft().copy_(self.sent[tag].popleft())

        return SimpleNamespace(wait=wait)


def both(has_tags: bool) -> tuple[TwoMessages, list[Callable[..., Any]], list[Callable[[], Any]]]:
    channel = PeerChannel(1, cast(Any, Wire()), 1, on_gpu=False)
    sends = TwoMessages(BufferTable((), (), (0, 0), tuple(MESSAGES)), CPU, has_tags)
    receives = TwoMessages(BufferTable((0, 0), tuple(LANDINGS), (), ()), CPU, has_tags)
    return (receives, [sends.sender(message, channel) for message in MESSAGES],
            [receives.receiver(landing, channel) for landing in LANDINGS])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6), st.booleans())
def test_any_sequence_of_shapes_comes_as_it_was_sent(shapes: list[tuple[int, int]], swapped: bool) -> None:
    """Both receives are posted before anything is sent, and waited for in either order."""
    receives, send, receive = both(True)
    for rows, columns in shapes:
        posted = [post() for post in receive]
        parcels = [{"a": torch.randn(columns + place, rows, dtype=torch.float64).T,
                    "b": torch.randn(rows, dtype=torch.complex64)} for place in range(2)]
        for begin, parcel in zip(send, parcels, strict=True):
            begin(parcel).wait()
        for place in (1, 0) if swapped else (0, 1):
            posted[place].wait()
        for landing, parcel in zip(LANDINGS, parcels, strict=True):
            found = receives.parcels[landing]
            assert found.keys() == parcel.keys()
            assert all(torch.equal(found[name], tensor) for name, tensor in parcel.items())


def test_without_tags_the_tensors_are_asked_for_where_the_receive_is_posted() -> None:
    receives, send, receive = both(False)
    for place in range(2):
        send[place]({"a": torch.full((2, place), 1.5, dtype=torch.float64), "b": torch.ones(1, dtype=torch.complex64)})
        receive[place]().wait()
    assert [tuple(receives.parcels[landing]["a"].shape) for landing in LANDINGS] == [(2, 0), (2, 1)]


@pytest.mark.parametrize("dims", [8, 9, 12])
def test_lengths_past_the_eighth_come_behind(dims: int) -> None:
    receives, send, receive = both(True)
    arriving = receive[0]()
    sent = torch.randn(*[1 + dim % 2 for dim in range(dims)], dtype=torch.float64)
    send[0]({"a": sent}).wait()
    arriving.wait()
    assert torch.equal(receives.parcels[LANDINGS[0]]["a"], sent)
    assert "b" not in receives.parcels[LANDINGS[0]]
