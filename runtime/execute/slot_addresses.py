"""Where the memory of a rank's slots begins: what a stage hands on from there must be copied first."""

from __future__ import annotations

from collections.abc import Mapping

from weft.runtime.plan.buffers import Landing
from weft.runtime.transports.interface import Parcel

__all__ = ["SlotAddresses"]


class SlotAddresses:
    """The addresses of ``slots``: once and for all, but for those that grow."""

    def __init__(self, slots: Mapping[Landing, Parcel]) -> None:
        self._fixed = {slot.untyped_storage().data_ptr() for landing, parcel in slots.items()
                       if landing.layout.is_known for slot in parcel.values()}
        self._growing = [parcel for landing, parcel in slots.items() if not landing.layout.is_known]

    def __contains__(self, address: object) -> bool:
        return address in self._fixed or any(
            slot.untyped_storage().data_ptr() == address for parcel in self._growing for slot in tuple(parcel.values()))
