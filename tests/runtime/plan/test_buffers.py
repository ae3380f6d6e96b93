"""Where messages land, and when receives are posted."""

from __future__ import annotations

import torch

from weft.runtime.plan.buffers import OPEN_SENDS, Landing, buffer_table, send_done
from weft.runtime.plan.program import Instruction, Recv, Send, StageWork, Work
from weft.runtime.transports.tensors import layout_of


def test_a_receive_is_posted_when_its_slot_is_free_and_its_peers_messages_before_it_have_started() -> None:
    def work(letter: str, micro_batch: int) -> StageWork:
        return StageWork(1, letter, micro_batch)

    a, b, c = (StageWork(0, "F", m) for m in range(3))
    row: list[Instruction] = [Recv(a, 0), work("F", 0), Recv(b, 0), work("F", 1), work("B", 0), Send(work("B", 0), 0),
                              work("B", 1), Recv(c, 0), work("F", 2), work("B", 2)]
    layout = layout_of({"": ((4,), torch.float32)})

    def reads(work: Work) -> list[Work]:
        return [StageWork(0, "F", work.micro_batch)] if isinstance(work, StageWork) and work.letter == "F" else []

    table = buffer_table(row, {i: layout for i in row if isinstance(i, (Send, Recv))}, reads,
                         lambda w: StageWork(1, "B", w.micro_batch))
    assert table.slots == (16, 16) and table.size == 32
    assert table.receives == (Landing(a, 0, layout, 0, 0, 4, 0), Landing(b, 0, layout, 2, 0, 6, 1),
                              Landing(c, 0, layout, 7, 6, 9, 0))  # not before SEND at 5, though slot 0 is free then
    late = buffer_table(row, {i: layout for i in row if isinstance(i, (Send, Recv))}, reads,
                        lambda w: StageWork(1, "B", w.micro_batch), early=False)
    assert [landing.posted for landing in late.receives] == [0, 2, 7]


def test_a_send_is_over_when_the_eighth_after_it_starts() -> None:
    row: list[Instruction] = [Send(StageWork(0, "F", m), 1) for m in range(OPEN_SENDS + 2)]
    done = send_done(row)
    assert (done[0], done[1], done[2]) == (OPEN_SENDS - 1, OPEN_SENDS, len(row) - 1)
