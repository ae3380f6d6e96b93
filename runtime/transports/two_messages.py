"""Messages of unknown shapes over process groups: the description, then the tensors.

The description goes where a message of known shape would go, in its order. The tensors follow under a tag of their own,
so that a receive which was posted early, of another message of the same pair, cannot take them. A backend without tags
(NCCL) has to post the receives of the tensors where the description has come, before anything else: there posting
such a receive waits for the description, at the RECV's place in the program, where every checked program may wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable, Landing, Staging
from weft.runtime.transports.buffer_tensors import can_go_as_it_lies, whole
from weft.runtime.transports.description import Growing, describe, described, rest_of, words_of
from weft.runtime.transports.interface import Parcel, Transfer

__all__ = ["TwoMessages"]

#: Starts an operation with a peer on one tensor under a tag.
Begin = Callable[[Tensor, int], dist.Work]
#: Waits for operations that have been started, and keeps what they send until then.
Finish = Callable[[Sequence[dist.Work], object], Transfer]


class TwoMessages:
    """The messages of unknown shapes of a rank with ``table``, whose stages run on ``device``.

    ``has_tags``: whether the backend tells messages of one pair apart by a tag.
    """

    def __init__(self, table: BufferTable, device: torch.device, has_tags: bool) -> None:
        self._device, self._has_tags = device, has_tags
        landings = [landing for landing in table.receives if not landing.layout.is_known]
        messages = [message for message in table.sends if not message.layout.is_known]
        self._tags: dict[Landing | Staging, int] = {**_tags(landings), **_tags(messages)}
        self.slots = {landing.slot: Growing(device) for landing in landings}
        self.staging = {message.slot: Growing(device) for message in messages}
        self.parcels: Mapping[Landing, dict[str, Tensor]] = {landing: {} for landing in landings}

    def receiver(self, landing: Landing, begin: Begin, finish: Finish) -> Callable[[], Transfer]:
        """A function that posts a receive of ``landing``."""
        words = torch.zeros(words_of(landing.layout), dtype=torch.int64, device=self._device)
        tag, slot, parcel = self._tags[landing], self.slots[landing.slot], self.parcels[landing]

        def receive() -> Transfer:
            heading = finish([begin(words, 0)], None)

            def take() -> Transfer:
                heading.wait()
                said, rest = words.tolist(), torch.empty(0, dtype=torch.int64, device=self._device)
                if said[0]:
                    rest = rest.new_empty(said[0])
                    finish([begin(rest, tag)], None).wait()
                slot.land(described(landing.layout, said, rest.tolist()), parcel)
                return finish([begin(_bytes(tensor), tag) for tensor in parcel.values() if tensor.numel()], None)

            return _Taken(take) if self._has_tags else take()

        return receive

    def sender(self, message: Staging, begin: Begin, finish: Finish) -> Callable[[Parcel], Transfer]:
        """A function that starts sending a parcel as ``message``."""
        tag, staging = self._tags[message], self.staging[message.slot]

        def send(parcel: Parcel) -> Transfer:
            parcel = contiguous(parcel, staging)
            rest = rest_of(message.layout, parcel)
            said = [0] * words_of(message.layout)
            describe(message.layout, parcel, said, (len(rest), 0))
            heading, *behind = (torch.tensor(numbers, device=self._device) for numbers in (said, rest) if numbers)
            behind += [_bytes(tensor) for part in message.layout.parts
                       if (tensor := parcel.get(part.name)) is not None and tensor.numel()]
            handles = [begin(heading, 0), *(begin(tensor, tag) for tensor in behind)]
            return finish(handles, (heading, behind))

        return send

    def close(self) -> None:
        """Give the buffers back."""
        self.slots, self.staging, self.parcels = {}, {}, {}


class _Taken:
    """A receive whose tensors are asked for where it is waited for."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[], Transfer]) -> None:
        self._take = take

    def wait(self) -> None:
        self._take().wait()


def contiguous(parcel: Parcel, staging: Growing) -> Parcel:
    """``parcel``, or where one of its tensors does not lie in one piece, a copy in ``staging``."""
    if all(map(can_go_as_it_lies, parcel.values())):
        return parcel
    memory, start, found = staging.room(sum(whole(tensor.nbytes) for tensor in parcel.values())), 0, {}
    for name, tensor in parcel.items():
        place = memory[start:start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        found[name], start = place.copy_(tensor), start + whole(tensor.nbytes)
    return found


def _bytes(tensor: Tensor) -> Tensor:
    """``tensor``, which is contiguous, as process groups carry every type."""
    return tensor.view(-1).view(torch.uint8)


def _tags(entries: Sequence[Landing | Staging]) -> dict[Landing | Staging, int]:
    """A tag for each of the messages with a peer in one direction, by their order: the same on both ends."""
    counts: dict[int, int] = {}
    found: dict[Landing | Staging, int] = {}
    for entry in sorted(entries, key=lambda e: e.step):
        found[entry] = counts[entry.peer] = counts.get(entry.peer, 0) + 1
    return found
