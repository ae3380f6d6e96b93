"""The GPUs of a spec: their memory, and the transfer time of a tensor between two of them.

GPUs are in nested tiers: machines, then perhaps rails and racks (:class:`Tier`). Two GPUs are connected by the smallest
tier that contains both, so pairs in the same tier are alike, unless the spec lists GPUs of several kinds: then each has
the links of its device, and the slower end of a pair determines the time. A transfer runs beside the computation (it is
a lag, it occupies no GPU). Collectives are in :mod:`weft.models.layers.collectives`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

from weft.models.hardware.devices import DEVICES
from weft.models.spec.cluster import Cluster
from weft.models.times.profiles import load_p2p_curve

#: Names allowed under ``cluster.links``, and the measured curve of each.
_CURVES = {"nvlink-v100": "p2p_intra_node.csv", "network-v100": "p2p_inter_node.csv"}

#: The size of a tier with any number of GPUs.
_ALL = 1 << 30


class GpuLink(Protocol):
    """The link between two GPUs."""

    def seconds(self, size: int) -> float:
        """Transfer time of a tensor of ``size`` bytes, a multiple of 1 ns."""


@dataclass(frozen=True, slots=True)
class AffineLink:
    """A latency (seconds) plus a size over a bandwidth (bytes per second)."""

    latency: float
    bandwidth: float

    def seconds(self, size: int) -> float:
        """``latency + size / bandwidth``; 0 for nothing to send."""
        return round(self.latency + size / self.bandwidth, 9) if size else 0.0


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """Measured ``(bytes, seconds)`` points by rising size, with straight lines between and beyond them.

    Below the first point, the line through the first two determines the latency; above the last, time grows at the last
    point's bandwidth.
    """

    points: Sequence[tuple[int, float]]

    def seconds(self, size: int) -> float:
        """Interpolated time; 0 for nothing to send."""
        if not size:
            return 0.0
        last_size, last_time = self.points[-1]
        if size >= last_size:
            return round(last_time * size / last_size, 9)
        (left, left_time), (right, right_time) = next(pair for pair in pairwise(self.points) if size <= pair[1][0])
        slope = (right_time - left_time) / (right - left)
        return round(max(left_time + slope * (size - left), 0.0), 9)


@dataclass(frozen=True, slots=True)
class SlowestLink:
    """As slow as the slowest of several."""

    links: tuple[GpuLink, ...]

    def seconds(self, size: int) -> float:
        """The longest time of any of the links."""
        return max(link.seconds(size) for link in self.links)


@dataclass(frozen=True, slots=True)
class Tier:
    """``size`` consecutive GPUs, starting at a multiple of it, and the link between those of them that share no smaller
    tier.

    ``sharing``: the number of GPUs that share the ``link`` when they send at once: 8 if eight GPUs have one network
    card, 2 if a switch has half the uplinks that it would need (oversubscription), 1 if each has its own link.
    """

    size: int
    link: GpuLink
    sharing: float = 1.0
    name: str = ""

    def seconds(self, amount: int, flows: int = 1) -> float:
        """Time of ``amount`` bytes from each of ``flows`` GPUs at once."""
        return self.link.seconds(math.ceil(amount * min(self.sharing, max(1, flows))))


@dataclass(frozen=True, slots=True)
class Network:
    """The links between the GPUs: ``tiers`` from the innermost, each a multiple of the previous one; the last contains
    all.

    ``own``: if GPUs have links of different kinds, those of each in its machine and to another one; the slower of the
    two ends determines the time. The tiers' links are then the slowest of all. ``stated``: whether a spec gives each
    tier's rate, which then also applies to its collectives; else collectives in a machine are those of the device.
    """

    tiers: tuple[Tier, ...]
    own: tuple[tuple[GpuLink, GpuLink], ...] = ()
    stated: bool = False

    @property
    def near(self) -> GpuLink:
        """The link between GPUs of one machine."""
        return self.tiers[0].link

    @property
    def far(self) -> GpuLink:
        """The link between GPUs that share only the last tier."""
        return self.tiers[-1].link

    @property
    def size(self) -> int:
        """GPUs in one machine, the innermost tier: GPU g is in machine g // size."""
        return self.tiers[0].size

    def is_filled_by(self, degree: int) -> bool:
        """Whether groups of ``degree`` consecutive GPUs fill tiers evenly, so that none is split over two partially."""
        return all(tier.size % degree == 0 or degree % tier.size == 0 for tier in self.tiers[:-1])

    def tier(self, gpus: Iterable[int]) -> int:
        """The index of the smallest tier that contains all ``gpus``: the slowest that messages among them cross."""
        found = set(gpus)
        return next((index for index, tier in enumerate(self.tiers[:-1])
                     if len({gpu // tier.size for gpu in found}) == 1), len(self.tiers) - 1)

    def levels(self, group: Sequence[int]) -> tuple[tuple[Tier, int], ...]:
        """The tiers that ``group`` crosses, from the innermost: the number of its members (parts of the previous tier)
        in one part of this tier, 2 or more.

        A group with unequal parts counts as one GPU a part: all of them in the slowest tier.
        """
        key = group if isinstance(group, range) else tuple(group)
        return tuple((self.tiers[index], count)
                     for index, count in _levels(tuple(tier.size for tier in self.tiers[:-1]), key))

    def seconds(self, amount: int, source: Sequence[int], target: Sequence[int]) -> float:
        """Time until every GPU of ``target`` has a tensor of ``amount`` bytes that is whole on all of ``source``.

        Each GPU of the source sends to one of the target. For a larger target it is sent in parts that the receivers
        pass on to each other, which takes the time of the tensor once more. GPUs that already have it take no time; the
        slowest tier between any two of the GPUs determines the time.
        """
        if not amount or set(target) <= set(source):
            return 0.0
        gpus = {*source, *target}
        index = self.tier(gpus)
        rounds, flows = 1 if len(target) <= len(source) else 2, max(len(source), len(target))
        if self.own:
            return round(rounds * max(self.own[gpu][index > 0].seconds(amount) for gpu in gpus), 9)
        return round(rounds * self.tiers[index].seconds(amount, flows), 9)


def two_tiers(near: GpuLink, far: GpuLink, size: int, own: tuple[tuple[GpuLink, GpuLink], ...] = ()) -> Network:
    """Machines of ``size`` GPUs, connected by ``near`` inside and ``far`` between them."""
    return Network((Tier(size, near, name="machine"), Tier(_ALL, far, name="network")), own)


@lru_cache(4096)
def _levels(sizes: tuple[int, ...], group: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Index and count of :meth:`Network.levels`; ``sizes``: of all tiers but the last, which holds everything."""
    parts: Mapping[int, int] = dict.fromkeys(group, 1)
    found = []
    for index, size in enumerate((*sizes, max(group) + 1)):
        joined = Counter(gpu // size * size for gpu in parts)
        count = max(joined.values())
        if min(joined.values()) != count:
            far = next((k for k, other in enumerate(sizes) if len({gpu // other for gpu in group}) == 1), len(sizes))
            return ((far, len(group)),)
        if count > 1:
            found.append((index, count))
        parts = joined
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """``memory``: bytes of each GPU. ``reserve``: bytes of each for the framework. ``network``: between them."""

    memory: tuple[int, ...]
    reserve: int
    network: Network

    @property
    def available(self) -> tuple[int, ...]:
        """Bytes of each GPU for weights, their state and activations (0 or more)."""
        return tuple(max(0, memory - self.reserve) for memory in self.memory)


def model_cluster(cluster: Cluster) -> ClusterModel:
    """The cluster of a spec."""
    memory = cluster.memory if len(cluster.memory) == cluster.gpus else cluster.memory * cluster.gpus
    return ClusterModel(memory, cluster.reserve, _stated(cluster) if cluster.tiers is not None else _flat(cluster))


def _stated(cluster: Cluster) -> Network:
    """The tiers listed in a spec, without those more than large enough for all GPUs."""
    device = DEVICES[cluster.devices[0]] if cluster.devices[0] else None
    tiers: list[Tier] = []
    for k, tier in enumerate(cluster.tiers or ()):
        if tiers and tiers[-1].size >= cluster.gpus:
            break
        latencies = (0.0, 0.0) if device is None else (device.link_latency, device.network_latency)
        rate = tier.bandwidth if tier.bandwidth is not None or device is None else device.link
        assert rate is not None  # the section's validator
        tiers.append(Tier(tier.size or max(cluster.gpus, 1), AffineLink(
            latencies[k > 0] if tier.latency is None else tier.latency, rate), tier.sharing, tier.name))
    return Network(tuple(tiers), stated=True)


def _flat(cluster: Cluster) -> Network:
    """One bandwidth within machines, another between them."""
    pairs = {device: _links(cluster, device) for device in dict.fromkeys(cluster.devices)}
    size = cluster.per_machine
    if cluster.machines == 1 and len(set(pairs.values())) == 1:
        return Network((Tier(cluster.gpus, pairs[cluster.devices[0]][0], name="machine"),))
    if len(set(pairs.values())) == 1:
        return two_tiers(*pairs[cluster.devices[0]], size)
    near, far = (SlowestLink(tuple(dict.fromkeys(links))) for links in zip(*pairs.values(), strict=True))
    return two_tiers(near, far, size, tuple(pairs[device] for device in cluster.devices))


def _links(cluster: Cluster, device: str | None) -> tuple[GpuLink, GpuLink]:
    """The links between GPUs of type ``device``, within a machine and between two."""
    near = _near(cluster, device)
    return near, near if cluster.machines == 1 else _far(cluster, device)


def _near(cluster: Cluster, name: str | None) -> GpuLink:
    """The link of two GPUs of one machine; a single GPU may have none, as it sends nothing."""
    if cluster.links is not None:
        return MeasuredLink(load_p2p_curve(_CURVES[cluster.links]))
    if cluster.bandwidth is not None:
        return AffineLink(cluster.latency or 0.0, cluster.bandwidth)
    if name is None:
        return AffineLink(0.0, float("inf"))
    device = DEVICES[name]
    return AffineLink(device.link_latency if cluster.latency is None else cluster.latency, device.link)


def _far(cluster: Cluster, name: str | None) -> GpuLink:
    """The link of GPUs of two machines."""
    if cluster.machine_bandwidth is not None:
        return AffineLink(cluster.machine_latency or 0.0, cluster.machine_bandwidth)
    if cluster.links is not None:
        return MeasuredLink(load_p2p_curve(_CURVES["network-v100"]))
    assert name is not None  # the section's validator
    device = DEVICES[name]
    return AffineLink(device.network_latency if cluster.machine_latency is None else cluster.machine_latency,
                      device.network)
