"""Reading another process's memory: this one's own stands for it."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch
from torch import Tensor

from weft.runtime.plan.buffers import Staging
from weft.runtime.plan.program import StageWork
from weft.runtime.transports.interface import TransportError
from weft.runtime.transports.one_host.reach import OwnHost, can_read
from weft.runtime.transports.tensors import can_go_as_it_lies, layout_of

MESSAGE = Staging(StageWork(0, "F", 0), 1, layout_of({"": ((None,), torch.int32)}), 0, 0, 0)


@pytest.mark.parametrize("readable", [True, False])
def test_what_is_offered_can_be_read(readable: bool) -> None:
    """From where it lies; where that is forbidden, or it is not in one piece, from a file that grows."""
    before = set(os.listdir("/proc/self/fd"))
    reach = OwnHost({1: os.getpid()}, {1} if readable else ())
    files = set()
    for sent in (torch.arange(3, dtype=torch.int32), torch.arange(9000).view(90, 100).T, torch.ones(5, 2).T):
        offer = reach.offer(MESSAGE, [sent, torch.tensor([7])])
        files.add(offer.file)
        assert (offer.tensors[0] is sent) == (readable and sent.is_contiguous())
        found = torch.empty(sent.shape, dtype=sent.dtype)
        reach.read(1, offer.file, offer.tensors[0].data_ptr() - offer.base, found)
        assert torch.equal(found, sent)
        rest = torch.zeros(1, dtype=torch.int64)
        reach.read(1, offer.file, offer.tensors[1].data_ptr() - offer.base, rest)
        assert rest.item() == 7
    assert len(files) == 1 and (files == {-1}) == readable
    reach.close()
    del offer  # a mapping has a handle of its own
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_process_that_has_ended_cannot_be_read() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert not can_read(gone.pid, 4096, b"token")
    reach = OwnHost({1: gone.pid}, {1})
    for file in (-1, 3):
        with pytest.raises(ConnectionError, match="lost rank 1"):
            reach.read(1, file, 4096, torch.empty(4))


@pytest.mark.parametrize("refuses", ["weft.runtime.transports.one_host.reach.os.posix_fallocate",
                                     "weft.runtime.transports.one_host.reach.mmap.mmap"])
def test_a_file_that_cannot_grow_is_said_in_a_sentence(refuses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(12, "no room")

    monkeypatch.setattr(refuses, refuse)
    reach = OwnHost({1: os.getpid()}, ())
    with pytest.raises(TransportError, match=r"cannot have 4096 bytes of shared memory for a message .*: no room"):
        reach.offer(MESSAGE, [torch.ones(3)])
    reach.close()


def test_memory_that_cannot_be_read_any_more_is_said_in_a_sentence() -> None:
    with pytest.raises(TransportError, match="rank 1's memory cannot be read"):
        OwnHost({1: os.getpid()}, {1}).read(1, -1, 1, torch.empty(4))


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("sent", [torch.tensor([1 + 2j, 3 - 1j]).conj(), torch.tensor([1 + 2j]).conj().imag])
def test_views_that_torch_changes_where_it_reads_them_come_as_their_numbers(readable: bool, sent: Tensor) -> None:
    assert sent.is_contiguous() and not can_go_as_it_lies(sent)
    reach = OwnHost({1: os.getpid()}, {1} if readable else ())
    offer = reach.offer(MESSAGE, [sent])
    found = torch.empty(sent.shape, dtype=sent.dtype)
    reach.read(1, offer.file, offer.tensors[0].data_ptr() - offer.base, found)
    assert torch.equal(found, sent)
    reach.close()


def test_a_token_is_looked_for_in_its_place() -> None:
    memory = torch.tensor(list(b"token"), dtype=torch.uint8)
    assert can_read(os.getpid(), memory.data_ptr(), b"token") and not can_read(os.getpid(), memory.data_ptr(), b"other")
