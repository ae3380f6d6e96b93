"""Prices of stages on a type of device: rates that kernels and rings reach on it."""

from __future__ import annotations

from collections.abc import Mapping

from weft.models.communication.prices import Prices
from weft.models.communication.program import CommunicationError
from weft.models.hardware.devices import DEVICES, DeviceType
from weft.models.layers.collectives import collective_time

__all__ = ["prices_on"]

#: Bytes of an all-reduce whose rate is that of its links.
_LARGE = 1 << 40


def prices_on(device: DeviceType | str, ranks: int, *, machines: int = 1, dtype: str = "float16",
              compute: Mapping[str, float] | None = None) -> Prices:
    """Prices of a program on ``ranks`` devices of a type, by name or as it is, which stand in so many ``machines``.

    Collectives go at the rate of a large all-reduce among so many
    (:func:`~weft.models.layers.collectives.collective_time`), sends at the network's, pointwise stages at the memory's
    share, matmuls of ``dtype`` at the share of the peak that forwards reach. ``compute``: seconds of stages by name,
    instead.
    Raises :class:`~weft.models.communication.program.CommunicationError` for machines that do not divide the ranks, and
    for a device and a dtype that are not known.
    """
    if isinstance(device, str) and device not in DEVICES:
        raise CommunicationError(f"prices: there is no device {device!r}; there are {', '.join(DEVICES)}")
    found = DEVICES[device] if isinstance(device, str) else device
    if ranks < 1 or machines < 1 or ranks % machines:
        raise CommunicationError(f"prices: {machines} machines do not divide {ranks} ranks")
    if dtype not in found.flops:
        raise CommunicationError(f"prices: {found.name} has no peak of {dtype}, only of {', '.join(found.flops)}")
    latency = collective_time("all_reduce", 1, ranks, found, machines=machines).seconds
    seconds = collective_time("all_reduce", _LARGE, ranks, found, machines=machines).seconds - latency
    rate = 2 * (ranks - 1) / ranks * _LARGE / seconds if ranks > 1 else found.link
    return Prices(bandwidth=rate, link=found.network,
                  memory=found.bandwidth * found.reach["pointwise", "forward"].memory, launch=latency,
                  kernel=found.launch["forward"], flops=found.flops[dtype] * found.reach["gemm", "forward"].compute,
                  compute=compute or {})
