"""Communication times of groups of a uniform grid, by the positions of their GPUs.

A group is every ``stride``-th GPU of a range. Its collectives are priced by
:func:`weft.models.layers.collectives.group_time` for the tiers that it crosses.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.models.hardware.devices import DeviceType
from weft.models.layers.cluster import GpuLink, Network
from weft.models.layers.collectives import Collective, group_time


@dataclass(frozen=True, slots=True)
class GridLinks:
    """GPUs of ``device`` connected by ``network``."""

    device: DeviceType
    network: Network

    def collective(self, kind: Collective, size: int, count: int, stride: int = 1) -> float:
        """Seconds of a collective among ``count`` GPUs, each ``stride`` from the next, with ``size`` bytes on each
        before it."""
        return group_time(kind, size, range(0, count * stride, stride), self.network, self.device).seconds

    def to_next(self, size: int, stride: int) -> float:
        """Seconds until a GPU has sent ``size`` bytes to the one ``stride`` after it."""
        return self.next_link(stride).seconds(size)

    def next_link(self, stride: int) -> GpuLink:
        """The link between GPUs that are ``stride`` apart, within the smallest tier that can contain both."""
        return next((tier.link for tier in self.network.tiers if stride < tier.size), self.network.far)
