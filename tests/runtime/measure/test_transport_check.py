"""The check of what transports carry: on ranks, and what it sends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from tests.support.check_ranks import NAMES
from tests.support.ranks import finished
from weft.runtime.measure.transport_check import CASES, STEPS, case_parcel, start_rpc
from weft.runtime.ranks.session import Session

CPU = torch.device("cpu")


@pytest.mark.slow
def test_what_arrives_is_compared_and_calls_are_timed() -> None:
    ended = finished(2, "tests.support.check_ranks")
    found = json.loads(ended[0].output)
    assert [found[name] for name in NAMES] == [""] * len(NAMES)
    assert found["damaged"].startswith("of a message of 64 bytes") and "came with other numbers" in found["damaged"]
    assert "symmetric needs a GPU for each rank" in found["symmetric"]
    assert found["timed"] == sorted([*NAMES, *(f"{name}?" for name in NAMES)]) and found["all positive"]


def test_messages_are_of_known_shapes_and_of_unknown_ones_that_change() -> None:
    known = []
    for case in range(CASES):
        found = [case_parcel(case, 4096, step, CPU) for step in range(STEPS)]
        layout, parcels = found[0][0], [parcel for _, parcel in found]
        known.append(layout.is_known)
        shapes = {tuple(tuple(tensor.shape) for tensor in parcel.values()) for parcel in parcels}
        assert len(shapes) == (1 if layout.is_known else STEPS)
        first, second = (next(iter(parcel.values())).flatten()[:8] for parcel in parcels[:2])
        assert not torch.equal(first, second) or (case == 4 and not len(first))
    assert known == [True, True, False, False, True]
    all_types, in_pieces = (case_parcel(case, 4096, 0, CPU)[1] for case in range(2))
    assert len({tensor.dtype for tensor in all_types.values()}) == len(all_types) == 8
    assert not in_pieces[""].is_contiguous() and in_pieces["conjugated"].is_conj() and in_pieces["negated"].is_neg()


def test_rpc_that_cannot_be_had_leaves_the_transports() -> None:
    """Also where it is another rank that cannot have it."""
    def told(others: list[str]) -> Session:
        return cast(Session, SimpleNamespace(exchange=lambda said, text: [said, *others]))

    @contextmanager
    def calls(fault: str = "") -> Iterator[None]:
        if fault:
            raise RuntimeError(fault)
        yield

    with ExitStack() as stack:
        assert start_rpc(told([""]), stack, calls("no\nchannel")) == "no channel"
        assert start_rpc(told(["none there"]), stack, calls()) == "none there"
        assert start_rpc(told([""]), stack, calls()) == ""
