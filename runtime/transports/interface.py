"""The interfaces that every entry of the transport registry implements.

A *transport* (:class:`TransportKind`) is a value of ``--transport``: it determines where the stages run and opens one
rank's :class:`Transport`, which starts every :class:`Transfer` of that rank.
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
    """An unknown transport, or one that cannot carry this: one sentence."""


class RunsOn(Enum):
    """Where the stages of a rank run under a transport."""

    CPU = "the CPU"
    OWN_GPU = "a GPU of its own if each rank of this machine has one, else the CPU"
    ANY_GPU = "a GPU, which several ranks may share, if there is one, else the CPU"


class Transfer(Protocol):
    """A transfer under way. Keep it until :meth:`wait` returns."""

    def wait(self) -> None:
        """Block the host until it is over. Raises ``ConnectionError`` if the peer is gone.

        On a GPU too the wait is on the host, not only in the stream, so that the watchdog can name the transfer that a
        hanging program waits for.
        """


class Transport(Protocol):
    """One rank's side of all its messages. It must start its transfers with one peer in the program's order."""

    @property
    def sends_at_once(self) -> bool:
        """Whether every message is written to its receiver when it is sent, if a slot is free: then a result is kept
        only until one is posted (:func:`~weft.runtime.plan.buffers.waiting_bytes`)."""

    @property
    def staging(self) -> Sequence[Tensor]:
        """The buffers beside the slots that messages have been copied to, as far as allocated."""

    def slot(self, landing: Landing) -> Parcel:
        """The received tensors of ``landing``, in its shapes; the same tensors in every step.

        Where the plan does not know a length, the mapping is the same in every step, and has the tensors of the last
        message that was waited for.
        """

    def receiver(self, landing: Landing) -> Callable[[], Transfer]:
        """A function that posts one receive a call. Called before the first step. The function raises
        ``ConnectionError`` if the peer is gone.

        A message whose shape the plan does not know must be waited for at its RECV at the latest: its SEND may complete
        only then.
        """

    def sender(self, message: Staging) -> Callable[[Parcel], Transfer]:
        """A function that starts sending a parcel, which must not change until the transfer is over. Called before the
        first step. The function raises ``ConnectionError`` if the peer is gone."""

    def close(self) -> None:
        """Release all buffers and connections. No transfer may be under way."""


@dataclass(frozen=True)
class TransportKind:
    """One value of ``--transport``.

    ``name`` stands before the colon of the option. ``usage`` is the option's syntax, for error messages. ``runs_on``
    says where the stages run. ``open`` returns this rank's transport, with buffers allocated and ranks connected in
    pairs: all ranks must call it together, with the parameters, the text after the colon (``None``: no colon); it
    raises :class:`TransportError` where this transport cannot work. ``takes``: whether parameters are valid.
    ``posts_early``: whether receives are posted as soon as their buffer is free, rather than at their place in the
    program.
    """

    name: str
    usage: str
    runs_on: RunsOn
    open: Callable[[Session, Sequence[BufferTable], str | None], Transport]
    takes: Callable[[str | None], bool]
    posts_early: bool = True
