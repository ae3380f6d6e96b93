"""Messages of unknown shapes that their receiver reads, in plain memory."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.threads import Lane, Note, OneMemory
from weft.runtime.plan.buffers import Landing, Staging
from weft.runtime.plan.program import StageWork
from weft.runtime.transports.one_host.one_sided import OneSided
from weft.runtime.transports.one_host.one_sided_reads import Reads, note_words
from weft.runtime.transports.tensors import allocate, layout_of, view

CPU = torch.device("cpu")
UNKNOWN = layout_of({"a": ((None, None), torch.float32), "b": ((None,), torch.int16)})
KNOWN = layout_of({"": ((3,), torch.int64)})


class Pair:
    """Two ranks: rank 0 sends a message of unknown shapes, one of known ones, and one of unknown ones in the first's
    slot."""

    def __init__(self) -> None:
        layouts = (UNKNOWN, KNOWN, UNKNOWN)
        works = [StageWork(0, "F", m) for m in range(3)]
        self.landings = [Landing(work, 0, layout, step, step, step, slot) for step, (work, layout, slot) in enumerate(
            zip(works, layouts, (0, 1, 0), strict=True))]
        self.messages = [Staging(work, 1, layout, step, step, step) for step, (work, layout) in enumerate(
            zip(works, layouts, strict=True))]
        lane, notes = Lane(), {0: Note(note_words(self.landings[0])), 2: Note(note_words(self.landings[2]))}
        slot = view(allocate([KNOWN.size], CPU)[0], KNOWN)
        self.reads = Reads(CPU, {self.landings[i]: note for i, note in notes.items()}, {}, OneMemory())
        self.writes = Reads(CPU, {}, {self.messages[i]: note for i, note in notes.items()}, OneMemory())
        self.receiver = OneSided({self.landings[1]: slot}, {}, {0: lane}, {}, lambda peer: True, reads=self.reads)
        self.sender = OneSided({}, {self.messages[1]: slot}, {}, {1: lane}, lambda peer: True, reads=self.writes)

    def close(self) -> None:
        self.receiver.close()
        self.sender.close()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5), st.booleans()), min_size=1, max_size=6), st.booleans())
def test_any_sequence_of_shapes_comes_as_it_was_sent(steps: list[tuple[int, int, bool]], early: bool) -> None:
    """Posted before or after it is sent; the slot that two messages share grows to the largest of both."""
    pair = Pair()
    receive = [pair.receiver.receiver(landing) for landing in pair.landings]
    send = [pair.sender.sender(message) for message in pair.messages]
    largest = 0
    for step, (rows, columns, has_b) in enumerate(steps):
        for place in range(3):
            numbers = torch.arange(3) + step + place
            sent = {"": numbers} if place == 1 else {"a": torch.randn(rows + place, columns + 1)[:, :columns]}
            if place != 1 and has_b:
                sent["b"] = torch.arange(rows * place, dtype=torch.int16)
            arriving = receive[place]() if early else None
            leaving = send[place](sent)
            (arriving or receive[place]()).wait()
            leaving.wait()
            found = pair.receiver.slot(pair.landings[place])
            assert found.keys() == sent.keys()
            assert all(torch.equal(found[name], tensor) for name, tensor in sent.items())
            if place != 1:
                need = 64 * -(-sent["a"].nbytes // 64) + sent["b"].nbytes if has_b else sent["a"].nbytes
                largest = max(largest, need)
                assert need <= len(pair.reads.slots[0].memory) <= 2 * max(largest, 64)
    pair.close()


def test_memory_that_is_large_enough_is_used_again() -> None:
    pair = Pair()
    receive, send = pair.receiver.receiver(pair.landings[0]), pair.sender.sender(pair.messages[0])
    places = []
    for rows in (100, 7, 100, 1):
        arriving = receive()
        leaving = send({"a": torch.ones(rows, 2)})
        arriving.wait()
        leaving.wait()
        places.append(pair.receiver.slot(pair.landings[0])["a"].data_ptr())
    assert len(set(places)) == 1
    pair.close()


def test_a_message_is_over_for_its_sender_when_it_has_been_read() -> None:
    pair = Pair()
    receive, send = pair.receiver.receiver(pair.landings[0]), pair.sender.sender(pair.messages[0])
    arriving, leaving = receive(), send({"a": torch.ones(2, 2)})
    assert not pair.writes.is_taken(pair.messages[0])
    arriving.wait()
    assert pair.writes.is_taken(pair.messages[0])
    leaving.wait()
    pair.close()


def test_what_others_read_is_held_until_they_have() -> None:
    pair = Pair()
    assert pair.receiver.sends_at_once and not pair.sender.sends_at_once
    assert OneSided({}, {pair.messages[1]: {}}, {}, {}, lambda peer: True).sends_at_once
    pair.close()
