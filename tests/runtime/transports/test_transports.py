"""Counts of what a planned transfer takes, by the experiment that takes them."""

from __future__ import annotations

import pytest

from experiments.runtime.transports import PLANNED, Counts, compare


@pytest.mark.slow
def test_a_planned_transfer_is_one_message_without_allocation_or_copy() -> None:
    results = compare(1, (4096, 2**20))
    assert {(r.method, r.size): r.counts for r in results if r.method in PLANNED} == {
        (method, size): Counts(1, 0, 0) for method in PLANNED for size in (4096, 2**20)}
    pickled = next(r.counts for r in results if r.method == "send_object_list" and r.size == 2**20)
    assert pickled.messages == 2 and (pickled.allocations or 0) > 0 and (pickled.copies or 0) > 0
