"""One-sided transfers of messages whose shapes the plan does not know: the receiver reads them.

The sender writes only the description (:mod:`weft.runtime.transports.tensors`) into the receiver's memory, where each
such RECV of the plan has a *note*. When the receiver needs the message, it allocates memory in a growing buffer, reads
the tensors from the sender's memory, and counts that in the note, which completes the transfer for the sender. A
:class:`RemoteReads` reads another rank's memory (:mod:`weft.runtime.transports.one_host.reach`; tests use threads).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from weft.runtime.plan.buffers import Landing, Staging
from weft.runtime.transports.interface import Parcel
from weft.runtime.transports.tensors import Growing, describe, described, rest_of, words_of

#: Words of a note before the description: the file of the tensors, and its address at the sender.
BEFORE = 2


class Note(Protocol):
    """The description of one message, in the receiver's memory. ``taken`` is written only by the receiver, the words
    only by the sender; writes are seen in their order."""

    taken: int

    def write(self, words: Iterable[int]) -> None:
        """Write ``words``, as many as the note has."""

    def read(self) -> list[int]:
        """The words written last."""


class Offer(NamedTuple):
    """Tensors that a peer can read: in the sender's file of this number, which the sender has mapped at ``base``; or,
    with -1, anywhere in the sender's memory."""

    tensors: Sequence[Tensor]
    file: int = -1
    base: int = 0


class RemoteReads(Protocol):
    """Reads the memory of other ranks."""

    def offer(self, message: Staging, tensors: Sequence[Tensor]) -> Offer:
        """Make the contiguous ``tensors`` readable for the message's peer. They stay readable until the peer has read
        them; only then is this called again for the same staging buffer."""

    def read(self, peer: int, file: int, address: int, into: Tensor) -> None:
        """Fill ``into`` from ``address`` of ``peer``: of its memory, or of its file of that number. Raises
        ``ConnectionError`` if the peer is gone."""

    def close(self) -> None:
        """Unmap everything."""


def note_words(landing: Landing) -> int:
    """The number of words of a note."""
    return BEFORE + words_of(landing.layout)


@dataclass(slots=True)
class _Offered:
    """The offers of one message of the plan: the one kept alive, and their count."""

    kept: Offer | None = None
    count: int = 0


class Reads:
    """The messages of unknown shapes of a rank, by the notes of what it receives and of what it sends.

    Received tensors lie on ``device``.
    """

    def __init__(self, device: torch.device, notes_in: Mapping[Landing, Note],
                 notes_out: Mapping[Staging, Note], reach: RemoteReads) -> None:
        self._in, self._out, self._reach = notes_in, notes_out, reach
        self.slots = {landing.slot: Growing(device) for landing in notes_in}
        self.parcels: Mapping[Landing, dict[str, Tensor]] = {landing: {} for landing in notes_in}
        self._offered = {message: _Offered() for message in notes_out}

    @property
    def offers_any(self) -> bool:
        """Whether this rank sends any: then a sent message is kept until it has been read."""
        return bool(self._out)

    def offer(self, message: Staging, parcel: Parcel) -> int:
        """Publish ``parcel`` for reading; returns its bytes. It must not change until it has been read
        (:meth:`is_taken`).
        """
        rest = torch.tensor(rest_of(message.layout, parcel), dtype=torch.int64)
        names = [part.name for part in message.layout.parts if part.name in parcel]
        offer = self._reach.offer(message, [*(parcel[name] for name in names), rest])
        said = [0] * words_of(message.layout)
        describe(message.layout, dict(zip(names, offer.tensors, strict=False)), said,
                 (len(rest), offer.tensors[-1].data_ptr()))
        self._out[message].write((offer.file, offer.base, *said))
        offered = self._offered[message]
        offered.kept, offered.count = offer, offered.count + 1
        return sum(tensor.nbytes for tensor in offer.tensors)

    def is_taken(self, message: Staging) -> bool:
        """Whether all offers of ``message`` have been read."""
        offered = self._offered[message]
        if self._out[message].taken < offered.count:
            return False
        offered.kept = None
        return True

    def take(self, landing: Landing) -> None:
        """Read the tensors described in the note of ``landing`` into its slot."""
        note = self._in[landing]
        file, base, *said = note.read()
        read = partial(self._reach.read, landing.peer, file)
        rest = torch.empty(said[0], dtype=torch.int64)
        if said[0]:
            read(said[1] - base, rest)
        tensors, parcel = described(landing.layout, said, rest.tolist()), self.parcels[landing]
        self.slots[landing.slot].land(tensors, parcel)
        for tensor in tensors:
            if tensor.size:
                read(tensor.address - base, parcel[tensor.name])
        note.taken += 1

    def close(self) -> None:
        """Release the buffers."""
        self.slots, self.parcels, self._offered, self._in, self._out = {}, {}, {}, {}, {}
        self._reach.close()
