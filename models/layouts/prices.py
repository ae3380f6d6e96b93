"""What the steps of a conversion cost on a cluster: latency and bytes over bandwidth, collectives as rings by tiers.

A collective is priced for one group; the groups of a step run at once, and the slowest sets the pace.
Messages between pairs take as long as the device that sends or receives most. Slices, and what is done on each device
alone, take no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from weft.models.hardware.devices import DeviceType
from weft.models.layers.cluster import AffineLink, Network, two_tiers
from weft.models.layers.collectives import Collective, group_time, network_of

__all__ = ["Prices", "RingPrices", "device_prices", "uniform"]


class Prices(Protocol):
    """Seconds of what devices do together."""

    def collective(self, kind: Collective, size: int, group: Sequence[int]) -> float:
        """One collective of ``group``; ``size``: bytes that each of them holds before."""

    def messages(self, sent: Iterable[tuple[int, int, int]]) -> float:
        """Messages at once: source, target and bytes of each. From a device to itself nothing is sent."""


@dataclass(frozen=True, slots=True)
class RingPrices:
    """Rings over the links of ``network``: at the shares of their rates that a ``device`` reaches, else all of them."""

    network: Network
    device: DeviceType | None = None

    def collective(self, kind: Collective, size: int, group: Sequence[int]) -> float:
        """As :func:`~weft.models.layers.collectives.group_time`."""
        return group_time(kind, size, group, self.network, self.device).seconds

    def messages(self, sent: Iterable[tuple[int, int, int]]) -> float:
        """The link's time for the bytes of the busiest end; the slowest pair's link for all of them."""
        out: Counter[int] = Counter()
        come: Counter[int] = Counter()
        slowest: set[int] = set()
        for source, target, size in sent:
            if source != target and size:
                out[source] += size
                come[target] += size
                slowest.add(self.network.tier((source, target)))
        most = max((*out.values(), *come.values()), default=0)
        return max((self.network.tiers[index].seconds(most, len(out)) for index in slowest), default=0.0)


def device_prices(device: DeviceType, per_machine: int) -> RingPrices:
    """Of devices of a kind, of which ``per_machine`` stand in each machine."""
    return RingPrices(network_of(device, per_machine), device)


def uniform(latency: float = 1e-5, bandwidth: float = 1e10) -> RingPrices:
    """Devices that are all joined alike: seconds before a message arrives, bytes per second."""
    link = AffineLink(latency, bandwidth)
    return RingPrices(two_tiers(link, link, 1 << 30))
