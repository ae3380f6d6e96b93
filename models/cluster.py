"""The GPUs of a spec: their memory, and how long a tensor travels between two of them.

Every pair of GPUs is alike here. A transfer takes its time beside the computation (it is a lag, it occupies no GPU).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from models.profiles import load_p2p_curve
from models.sections import Cluster

__all__ = ["AffineLink", "ClusterModel", "Link", "MeasuredLink", "model_cluster"]

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
class ClusterModel:
    """``memory``: bytes of each GPU. ``reserve``: bytes of each that are the framework's. ``link``: between any two."""

    memory: tuple[int, ...]
    reserve: int
    link: Link

    @property
    def available(self) -> tuple[int, ...]:
        """Bytes of each GPU for weights, their state and activations (0 or more)."""
        return tuple(max(0, memory - self.reserve) for memory in self.memory)


def model_cluster(cluster: Cluster) -> ClusterModel:
    """The cluster of a spec."""
    link: Link
    if cluster.links is not None:
        link = MeasuredLink(load_p2p_curve(_CURVES[cluster.links]))
    else:  # a single GPU may leave the bandwidth out: it sends nothing
        link = AffineLink(cluster.latency, cluster.bandwidth or float("inf"))
    memory = cluster.memory if len(cluster.memory) == cluster.gpus else cluster.memory * cluster.gpus
    return ClusterModel(memory, cluster.reserve, link)
