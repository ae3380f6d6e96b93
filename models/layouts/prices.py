"""What the steps of a conversion cost on a cluster: latency and bytes over bandwidth, collectives as rings.

A collective is priced for the ring of one group; the groups of a step run at once, and the slowest sets the pace.
Messages between pairs take as long as the device that sends or receives most. Slices, and what is done on each device
alone, take no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from weft.models.hardware.devices import DeviceType
from weft.models.layers.cluster import AffineLink, Link, Network
from weft.models.layers.collectives import Collective, collective_time, ring_seconds

__all__ = ["DevicePrices", "Prices", "RingPrices", "uniform"]


class Prices(Protocol):
    """Seconds of what devices do together."""

    def collective(self, kind: Collective, size: int, group: Sequence[int]) -> float:
        """One collective of ``group``; ``size``: bytes that each of them holds before."""

    def messages(self, sent: Iterable[tuple[int, int, int]]) -> float:
        """Messages at once: source, target and bytes of each. From a device to itself nothing is sent."""


@dataclass(frozen=True, slots=True)
class RingPrices:
    """Rings over the links of ``network``, at their full rate."""

    network: Network

    def collective(self, kind: Collective, size: int, group: Sequence[int]) -> float:
        """The ring algorithm over the slowest link on the ring."""
        if len(group) < 2 or not size:
            return 0.0
        link = self._link(group)
        if isinstance(link, AffineLink):
            return ring_seconds(kind, size, len(group), link.bandwidth, link.latency, 1.0)
        part = size if kind == "all_gather" else -(-size // len(group))
        return (len(group) - 1) * (2 if kind == "all_reduce" else 1) * link.seconds(part)

    def messages(self, sent: Iterable[tuple[int, int, int]]) -> float:
        """The link's time for the bytes of the busiest end; the slowest pair's link for all of them."""
        return _busiest(sent, self._link)

    def _link(self, group: Iterable[int]) -> Link:
        machines = {device // self.network.size for device in group}
        return self.network.near if len(machines) == 1 else self.network.far


@dataclass(frozen=True, slots=True)
class DevicePrices:
    """Collectives measured or modelled for devices of a kind (:mod:`weft.models.layers.collectives`), of which
    ``per_machine`` stand in each machine."""

    device: DeviceType
    per_machine: int

    def collective(self, kind: Collective, size: int, group: Sequence[int]) -> float:
        """As :func:`~weft.models.layers.collectives.collective_time`; a group that does not stand in machines of equal
        number counts as one device a machine."""
        if len(group) < 2 or not size:
            return 0.0
        counts = Counter(device // self.per_machine for device in group)
        machines = len(counts) if len(set(counts.values())) == 1 else len(group)
        return collective_time(kind, size, len(group), self.device, machines=machines).seconds

    def messages(self, sent: Iterable[tuple[int, int, int]]) -> float:
        """Over the device's link within a machine, over its network otherwise."""
        near = AffineLink(self.device.link_latency, self.device.link)
        far = AffineLink(self.device.network_latency, self.device.network)
        return _busiest(sent, lambda group: near if len({d // self.per_machine for d in group}) == 1 else far)


class _LinkOf(Protocol):
    def __call__(self, group: Iterable[int], /) -> Link: ...


def _busiest(sent: Iterable[tuple[int, int, int]], link_of: _LinkOf) -> float:
    out: Counter[int] = Counter()
    come: Counter[int] = Counter()
    slowest: dict[Link, None] = {}
    for source, target, size in sent:
        if source != target and size:
            out[source] += size
            come[target] += size
            slowest[link_of((source, target))] = None
    most = max((*out.values(), *come.values()), default=0)
    return max((link.seconds(most) for link in slowest), default=0.0)


def uniform(latency: float = 1e-5, bandwidth: float = 1e10) -> RingPrices:
    """Devices that are all joined alike: seconds before a message arrives, bytes per second."""
    link = AffineLink(latency, bandwidth)
    return RingPrices(Network(link, link, 1 << 30))
