"""The GPUs of a spec: their memory, and how long a tensor travels between two of them.

Pairs of GPUs of one machine are alike, and so are pairs of two machines. A transfer takes its time beside the
computation (it is a lag, it occupies no GPU).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from weft.models.hardware.devices import DEVICES
from weft.models.spec.sections import Cluster
from weft.models.times.profiles import load_p2p_curve

__all__ = ["AffineLink", "ClusterModel", "Link", "MeasuredLink", "Network", "model_cluster"]

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
class Network:
    """What joins the GPUs: ``near`` those of one machine of ``size`` GPUs, ``far`` those of two machines.

    GPU g stands in machine g // size.
    """

    near: Link
    far: Link
    size: int

    def seconds(self, amount: int, source: Sequence[int], target: Sequence[int]) -> float:
        """Time until every GPU of ``target`` has a tensor of ``amount`` bytes that lies whole on all of ``source``.

        Each GPU of the source sends to one of the target. A larger target shares it out: it is sent in parts that
        the receivers pass on to each other, which takes the time of the tensor once more. What is there already takes
        no time; where any two of the GPUs stand in two machines, the link between machines sets the pace.
        """
        if not amount or set(target) <= set(source):
            return 0.0
        machines = {gpu // self.size for gpu in (*source, *target)}
        link = self.near if len(machines) == 1 else self.far
        rounds = 1 if len(target) <= len(source) else 2
        return round(rounds * link.seconds(amount), 9)


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
    near = _near(cluster)
    far = near if cluster.machines == 1 else _far(cluster)
    memory = cluster.memory if len(cluster.memory) == cluster.gpus else cluster.memory * cluster.gpus
    return ClusterModel(memory, cluster.reserve, Network(near, far, cluster.gpus_per_machine or cluster.gpus))


def _near(cluster: Cluster) -> Link:
    """The link of two GPUs of one machine; a single GPU may have none: it sends nothing."""
    if cluster.links is not None:
        return MeasuredLink(load_p2p_curve(_CURVES[cluster.links]))
    if cluster.bandwidth is not None:
        return AffineLink(cluster.latency or 0.0, cluster.bandwidth)
    if cluster.device is None:
        return AffineLink(0.0, float("inf"))
    device = DEVICES[cluster.device]
    return AffineLink(device.link_latency if cluster.latency is None else cluster.latency, device.link)


def _far(cluster: Cluster) -> Link:
    """The link of GPUs of two machines."""
    if cluster.machine_bandwidth is not None:
        return AffineLink(cluster.machine_latency or 0.0, cluster.machine_bandwidth)
    if cluster.links is not None:
        return MeasuredLink(load_p2p_curve(_CURVES["network-v100"]))
    assert cluster.device is not None  # the section's validator
    device = DEVICES[cluster.device]
    return AffineLink(device.network_latency if cluster.machine_latency is None else cluster.machine_latency,
                      device.network)
