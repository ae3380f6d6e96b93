"""The interfaces of transports.

A :class:`TransportKind` is a value of ``--transport``: it determines where the stages run and opens one rank's
:class:`Transport`, which starts every :class:`Transfer` of that rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from weft.runtime.plan.buffers import BufferTable, Landing, Staging

if TYPE_CHECKING:
    from torch import Tensor

    from weft.runtime.ranks.session import Session


#: The content of a message: tensors by name.
Parcel: TypeAlias = "Mapping[str, Tensor]"


class TransportError(ValueError):
    """A transport is unknown, or cannot carry a message; the message is one sentence."""


class RunsOn(Enum):
    """Where the stages of a rank run under a transport."""

    CPU = "the CPU"
    OWN_GPU = "a GPU of its own if each rank of this machine has one, else the CPU"
    ANY_GPU = "a GPU, which several ranks may share, if there is one, else the CPU"


class Transfer(Protocol):
    """A pending transfer. Keep it until :meth:`wait` returns."""

    def wait(self) -> None:
        """Block the host until the transfer is complete. Raises ``ConnectionError`` if the peer has ended.

        For a GPU, too, the host waits, not only the stream, so that the watchdog can report the transfer that a hanging
        program waits for.
        """


class Transport(Protocol):
    """One rank's side of all its messages. It must start its transfers with one peer in the program's order."""

    @property
    def sends_at_once(self) -> bool:
        """Whether a SEND writes to the receiver at once if its slot is posted, so that a result is kept only until then
        (:func:`~weft.runtime.plan.buffers.waiting_bytes`)."""

    @property
    def staging(self) -> Sequence[Tensor]:
        """The allocated staging buffers."""

    def slot(self, landing: Landing) -> Parcel:
        """The received tensors of ``landing``: the same tensors in every step.

        For an unknown shape only the mapping is the same in every step; it has the tensors of the last message that was
        waited for.
        """

    def receiver(self, landing: Landing) -> Callable[[], Transfer]:
        """A function that posts one receive per call, and raises ``ConnectionError`` if the peer has ended. Called
        before the first step.

        A message of unknown shape must be waited for at its RECV at the latest, as its SEND may complete only then.
        """

    def sender(self, message: Staging) -> Callable[[Parcel], Transfer]:
        """A function that starts sending a parcel, which must not change until the transfer is complete; it raises
        ``ConnectionError`` if the peer has ended. Called before the first step."""

    def close(self) -> None:
        """Release all buffers and connections. No transfer may be pending."""


@dataclass(frozen=True)
class TransportKind:
    """One value of ``--transport``.

    ``name``: the text before the colon of the option. ``usage``: the option's syntax, for error messages. ``runs_on``:
    where the stages run. ``open``: returns this rank's transport, with buffers allocated and ranks connected; all ranks
    call it together with the parameters, the text after the colon (``None``: no colon); it raises
    :class:`TransportError` if this transport cannot be used. ``takes``: whether parameters are valid. ``posts_early``:
    whether receives are posted as soon as their slot is free, instead of at their RECV.
    """

    name: str
    usage: str
    runs_on: RunsOn
    open: Callable[[Session, Sequence[BufferTable], str | None], Transport]
    takes: Callable[[str | None], bool]
    posts_early: bool = True
