"""How long groups of a uniform grid take to pass tensors around, by where their GPUs stand.

A group is every ``stride``-th GPU of so many; machines have a number of GPUs each. Within one machine collectives take
what :mod:`weft.models.layers.collectives` says, of the device's links or of those that the cluster gives. Between
machines each GPU has a link of its own to the network, and a ring passes a machine by all of its GPUs, each with a
part: the links of those that are in the group add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from weft.models.hardware.devices import DeviceType
from weft.models.layers.cluster import AffineLink, Link, Network
from weft.models.layers.collectives import Collective, collective_time, ring_seconds

__all__ = ["GridLinks"]

#: The share of the network's bandwidth that collectives between machines reach: rings what rings of 8 reach of NVLink
#: in the measured curves (:data:`weft.models.layers.collectives.REACHED`), all-to-alls, in many small messages, less.
#: Assumptions: no curve between machines is at hand.
_REACHED: dict[Collective, float] = {"all_reduce": 0.84, "all_gather": 0.84, "reduce_scatter": 0.84, "all_to_all": 0.6}


@dataclass(frozen=True, slots=True)
class GridLinks:
    """GPUs of ``device`` in machines that ``network`` joins."""

    device: DeviceType
    network: Network

    def collective(self, kind: Collective, size: int, count: int, stride: int = 1) -> float:
        """Seconds of a collective among ``count`` GPUs, each ``stride`` from the next, that hold ``size`` bytes each
        before it."""
        if count == 1 or not size:
            return 0.0
        within = self.within(count, stride)
        if within == count:
            near, device = self.network.near, self.device
            if near == AffineLink(device.link_latency, device.link):
                return collective_time(kind, size, count, device).seconds
            return collective_time(kind, size, count, device, machines=count, network=near).seconds
        far = self.network.far
        if not isinstance(far, AffineLink):
            return collective_time(kind, size, count, self.device, machines=count // within, network=far).seconds
        if kind == "all_to_all":  # what stays in the machine goes beside the rest
            leaving = size * (count - within) / count
            return far.latency + leaving / (far.bandwidth * _REACHED[kind])
        return ring_seconds(kind, size, count, within * far.bandwidth, far.latency, _REACHED[kind])

    def to_next(self, size: int, stride: int) -> float:
        """Seconds until a GPU has sent ``size`` bytes to the one ``stride`` behind it. Where any two such GPUs stand in
        two machines, the link between machines sets the pace."""
        return self.next_link(stride).seconds(size)

    def next_link(self, stride: int) -> Link:
        """What joins GPUs that are ``stride`` apart."""
        return self.network.near if stride < self.network.size else self.network.far

    def within(self, count: int, stride: int) -> int:
        """How many of a group stand in one machine."""
        return gcd(count, max(1, self.network.size // stride))
