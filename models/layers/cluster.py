"""The GPUs of a spec: their memory, and how long a tensor travels between two of them.

Pairs of GPUs of one machine are alike, and so are pairs of two machines, but where the spec lists GPUs of several
kinds: there each has the links of its device, and the slower end of a pair sets the pace. A transfer takes its time
beside the computation (it is a lag, it occupies no GPU).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from weft.models.hardware.devices import DEVICES
from weft.models.spec.sections import Cluster
from weft.models.times.profiles import load_p2p_curve

__all__ = ["AffineLink", "ClusterModel", "Link", "MeasuredLink", "Network", "SlowestLink", "model_cluster"]

#: Names a spec may give under ``cluster.links``, and the measured curve of each.
_CURVES = {"nvlink-v100": "p2p_intra_node.csv", "network-v100": "p2p_inter_node.csv"}


class Link(Protocol):
    """What joins two GPUs."""

    def seconds(self, size: int) -> float:
        """Time that a tensor of ``size`` bytes travels, a multiple of 1 ns."""


@dataclass(frozen=True, slots=True)
class AffineLink:
    """A latency (seconds) plus a size over a bandwidth (bytes per second)."""

    latency: float
    bandwidth: float

    def seconds(self, size: int) -> float:
        """``latency + size / bandwidth``; nothing to send takes no time."""
        return round(self.latency + size / self.bandwidth, 9) if size else 0.0


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """Measured ``(bytes, seconds)`` points by rising size, with straight lines between and beyond them.

    Below the first point, the line through the first two says the latency; above the last, time grows at the last
    point's bandwidth.
    """

    points: Sequence[tuple[int, float]]

    def seconds(self, size: int) -> float:
        """Interpolated time; nothing to send takes no time."""
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

    links: tuple[Link, ...]

    def seconds(self, size: int) -> float:
        """The longest time of any of the links."""
        return max(link.seconds(size) for link in self.links)


@dataclass(frozen=True, slots=True)
class Network:
    """What joins the GPUs: ``near`` those of one machine of ``size`` GPUs, ``far`` those of two machines.

    GPU g stands in machine g // size. ``own``: where GPUs have links of different kinds, both links of each; the slower
    of the two ends sets the pace. ``near`` and ``far`` are the slowest of all then.
    """

    near: Link
    far: Link
    size: int
    own: tuple[tuple[Link, Link], ...] = ()

    def seconds(self, amount: int, source: Sequence[int], target: Sequence[int]) -> float:
        """Time until every GPU of ``target`` has a tensor of ``amount`` bytes that lies whole on all of ``source``.

        Each GPU of the source sends to one of the target. A larger target shares it out: it is sent in parts that
        the receivers pass on to each other, which takes the time of the tensor once more. What is there already takes
        no time; where any two of the GPUs stand in two machines, the link between machines sets the pace.
        """
        if not amount or set(target) <= set(source):
            return 0.0
        gpus = {*source, *target}
        is_far = len({gpu // self.size for gpu in gpus}) > 1
        links = {self.own[gpu] for gpu in gpus} if self.own else {(self.near, self.far)}
        rounds = 1 if len(target) <= len(source) else 2
        return round(rounds * max(link[is_far].seconds(amount) for link in links), 9)


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """``memory``: bytes of each GPU. ``reserve``: bytes of each that are the framework's. ``network``: between them."""

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
    pairs = {device: _links(cluster, device) for device in dict.fromkeys(cluster.devices)}
    size = cluster.gpus_per_machine or cluster.gpus
    if len(set(pairs.values())) == 1:
        network = Network(*pairs[cluster.devices[0]], size)
    else:
        near, far = (SlowestLink(tuple(dict.fromkeys(links))) for links in zip(*pairs.values(), strict=True))
        network = Network(near, far, size, tuple(pairs[device] for device in cluster.devices))
    return ClusterModel(memory, cluster.reserve, network)


def _links(cluster: Cluster, device: str | None) -> tuple[Link, Link]:
    """What joins GPUs that are each a ``device``, in one machine and in two."""
    near = _near(cluster, device)
    return near, near if cluster.machines == 1 else _far(cluster, device)


def _near(cluster: Cluster, name: str | None) -> Link:
    """The link of two GPUs of one machine; a single GPU may have none: it sends nothing."""
    if cluster.links is not None:
        return MeasuredLink(load_p2p_curve(_CURVES[cluster.links]))
    if cluster.bandwidth is not None:
        return AffineLink(cluster.latency or 0.0, cluster.bandwidth)
    if name is None:
        return AffineLink(0.0, float("inf"))
    device = DEVICES[name]
    return AffineLink(device.link_latency if cluster.latency is None else cluster.latency, device.link)


def _far(cluster: Cluster, name: str | None) -> Link:
    """The link of GPUs of two machines."""
    if cluster.machine_bandwidth is not None:
        return AffineLink(cluster.machine_latency or 0.0, cluster.machine_bandwidth)
    if cluster.links is not None:
        return MeasuredLink(load_p2p_curve(_CURVES["network-v100"]))
    assert name is not None  # the section's validator
    device = DEVICES[name]
    return AffineLink(device.network_latency if cluster.machine_latency is None else cluster.machine_latency,
                      device.network)
