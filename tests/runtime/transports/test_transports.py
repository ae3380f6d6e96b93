"""Counts of what a planned transfer takes, message by message."""

from __future__ import annotations

import json

import pytest

from tests.support.count_ranks import PICKLED, PLANNED
from tests.support.ranks import finished


@pytest.mark.slow
def test_a_planned_transfer_is_one_message_without_allocation_or_copy() -> None:
    wanted = {(name, size): [1, 0, 0] for name in PLANNED for size in ("4096", str(2**20))}
    for pause in ("0.02", "0.2", "2"):  # as long as a busy machine needs until the receiver waits
        ended = finished(2, "tests.support.count_ranks", "4096", str(2**20), environment={"WEFT_PAUSE": pause})
        found = json.loads(ended[0].output)
        planned = {(name, size): found[size][name] for size in found for name in PLANNED}
        if planned == wanted:
            break
    assert planned == wanted
    messages, allocations, copies = found[str(2**20)][PICKLED]
    assert messages == 2 and allocations > 0 and copies > 0
