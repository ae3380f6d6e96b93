"""Times of collectives among GPUs of one or several machines: measured if available, else modelled.

:func:`group_time` prices a collective of any group of GPUs, :func:`collective_time` of consecutive ones. *Measured*:
NCCL among 2, 4 and 8 V100s of one machine, from Aceso's artifact (``data/aceso``), with straight lines between the
sizes and, beyond the last, its bandwidth. *Modelled*: the ring algorithm (Patarasuk and Yuan, 2009) in each tier: n
members pass n - 1 parts of the tensor around (an all-reduce twice), concurrently, at the share of the links' peak
attained by V100s in the measured curves (:data:`REACHED`), or by network cards (:data:`NETWORK_REACHED`), after one
latency. The same share on other devices is an assumption.

The ``size`` of a collective is the bytes on each device before it: its part for an all-gather, all of its tensor for
the others.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, TypeAlias

from weft.models.hardware.devices import DeviceType
from weft.models.layers.cluster import AffineLink, MeasuredLink, Network, Tier, two_tiers
from weft.models.times.operator_times import Origin

Collective: TypeAlias = Literal["all_gather", "all_reduce", "reduce_scatter", "all_to_all"]

#: The share of NVLink's bandwidth of one direction attained by rings of 2, 4 and 8 devices (two of a V100's neighbours
#: are connected by only a part of its links): medians over the measured curves from 16 MiB on, by
#: ``experiments/models/collectives.py``. Rings of other sizes: the next smaller's.
REACHED: Mapping[Collective, Mapping[int, float]] = {
    "all_gather": {2: 0.15, 4: 0.31, 8: 0.41}, "all_reduce": {2: 0.26, 4: 0.51, 8: 0.84},
    "reduce_scatter": {2: 0.15, 4: 0.3, 8: 0.4}, "all_to_all": {2: 0.12, 4: 0.21, 8: 0.25}}

#: The share of network cards' bandwidth attained by NCCL's rings: 91 of 100 GB/s among 16 A100 of two machines with
#: four cards each (github.com/NVIDIA/nccl-tests, issue 100), 86 of 100 (issue 175), 24 of 25 over one (nccl, issue
#: 1048).
NETWORK_REACHED = 0.9

_MIB = 1024**2
_FAILED = 1e6  # milliseconds recorded in the artifact for sizes that it could not run


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Seconds, and their origin."""

    seconds: float
    origin: Origin


def group_time(kind: Collective, size: int, group: Sequence[int], network: Network,
               device: DeviceType | None = None) -> CollectiveTime:
    """The time of one collective of ``size`` bytes on each GPU of ``group``, GPUs in the order of the cluster.

    ``group`` is any of them: ``range(8)`` are eight consecutive ones, ``range(0, 64, 8)`` eight at a stride of 8, as
    for data parallelism across machines; only the tiers of ``network`` that they share matter. Other groups of the same
    kind run concurrently: a tier's link is shared by its stated number of GPUs. ``device``: the device whose attained
    shares of the links' rates, and measured collectives, apply; ``None``: links are used at their full rate.

    Across tiers a collective runs in each tier in sequence (BlueConnect: Cho, Finkler, Serrano, Kung and Hunter,
    MLSys 2019; NCCL's rings over one network card a GPU move as much). With n_i members in the rings of tier i and S
    bytes on each GPU before:

    - reduce-scatter: from the innermost tier out, each passes on (n_i - 1) / n_i of the inner tiers' result, S /
      (n_0 ... n_(i - 1));
    - all-gather: the same in reverse: (n_i - 1) parts of S n_(i + 1) n_(i + 2) ... bytes;
    - all-reduce: a reduce-scatter inside, an all-reduce of the rest in the outermost tier, an all-gather inside;
    - all-to-all: (n_i - 1) / n_i of S in every tier.

    Each tier takes the link's latency once and these bytes at its rate. A group with unequal parts is one ring over the
    slowest tier that it crosses. Raises ``ValueError`` for no GPUs or negative sizes.
    """
    if size < 0 or not group:
        raise ValueError(f"{size} bytes on {len(group)} devices: there must be one, and the size not be negative")
    levels = network.levels(group)
    if not levels or not size:
        return CollectiveTime(0.0, Origin.MODELLED)
    prices = _TierPrices(network, device)
    if len(levels) == 1:
        return prices.time(kind, size, *levels[0])
    seconds, current = 0.0, float(size)
    for tier, count in reversed(levels) if kind == "all_gather" else levels:
        if kind == "all_reduce" and tier is not levels[-1][0]:
            seconds += prices.time("reduce_scatter", current, tier, count).seconds
            current /= count
            seconds += prices.time("all_gather", current, tier, count).seconds
        else:
            seconds += prices.time(kind, current, tier, count).seconds
            current *= count if kind == "all_gather" else 1 if kind == "all_to_all" else 1 / count
    return CollectiveTime(seconds, Origin.MODELLED)


@dataclass(frozen=True, slots=True)
class _TierPrices:
    """Prices of rings in single tiers."""

    network: Network
    device: DeviceType | None

    def time(self, kind: Collective, size: float, tier: Tier, count: int) -> CollectiveTime:
        """One ring of ``count`` members, ``size`` bytes on each before."""
        inside = tier is self.network.tiers[0]
        link, reached = tier.link, 1.0
        if self.device is not None:
            if inside and not self.network.stated:
                found = _measured(kind, size, count, self.device)
                if found is not None:
                    return found
                link = AffineLink(self.device.link_latency, self.device.link)
            shares = self.device.rings.get(kind) or REACHED[kind]
            reached = shares[max((n for n in shares if n <= count), default=min(shares))] if inside else NETWORK_REACHED
        if isinstance(link, AffineLink):
            seconds = ring_seconds(kind, size * tier.sharing, count, link.bandwidth, link.latency, reached)
        else:
            parts, part = _ring(kind, size * tier.sharing, count)
            seconds = parts * link.seconds(math.ceil(part))
        return CollectiveTime(seconds, Origin.MODELLED)


def collective_time(kind: Collective, size: int, devices: int, device: DeviceType, *,
                    machines: int = 1) -> CollectiveTime:
    """:func:`group_time` of ``devices`` in ``machines`` of equal size, with the links of ``device``; a multiple
    of 1 ns.

    Raises ``ValueError`` if the machines do not divide the devices.
    """
    if devices < 1 or machines < 1 or devices % machines or size < 0:
        raise ValueError(f"{size} bytes on {devices} devices in {machines} machines: both must be at least 1, the "
                         "machines divide the devices, and the size not be negative")
    found = group_time(kind, size, range(devices), network_of(device, devices // machines), device)
    return CollectiveTime(round(found.seconds, 9), found.origin)


def network_of(device: DeviceType, per_machine: int) -> Network:
    """Machines of ``per_machine`` devices of a kind, with its links."""
    return two_tiers(AffineLink(device.link_latency, device.link),
                     AffineLink(device.network_latency, device.network), per_machine)


def _measured(kind: Collective, size: float, devices: int, device: DeviceType) -> CollectiveTime | None:
    """The measured time among this many of one machine."""
    points, whole = device.collectives.get((kind, devices), ()), math.ceil(size)
    if device.name.startswith("v100") and devices in (2, 4, 8):
        points = measured_curve(kind, devices)
    if not points:
        return None
    exact = any(whole == known for known, _ in points)
    within = points[0][0] <= whole <= points[-1][0]
    origin = Origin.MEASURED if exact else Origin.INTERPOLATED if within else Origin.MODELLED
    return CollectiveTime(MeasuredLink(points).seconds(whole), origin)


def _ring(kind: Collective, size: float, devices: int) -> tuple[int, float]:
    """The number of parts that each device passes on in sequence, and the bytes of one."""
    return (devices - 1) * (2 if kind == "all_reduce" else 1), size if kind == "all_gather" else size / devices


def ring_seconds(kind: Collective, size: float, devices: int, bandwidth: float, latency: float,
                 reached: float) -> float:
    """The ring algorithm's time over links of ``bandwidth`` bytes a second, of which the share ``reached`` is used."""
    parts, part = _ring(kind, size, devices)
    return latency + parts * part / (bandwidth * reached)


def point_to_point(size: int, device: DeviceType, *, between_machines: bool = False) -> CollectiveTime:
    """The modelled time of one tensor of ``size`` bytes to a neighbour, at the link's full rate after its latency.

    Measured curves between V100s are :class:`~weft.models.layers.cluster.MeasuredLink` (``links`` in a spec).
    """
    bandwidth, latency = _link(device, 2 if between_machines else 1)
    return CollectiveTime(round(latency + size / bandwidth, 9) if size else 0.0, Origin.MODELLED)


@cache
def measured_curve(kind: Collective, devices: int) -> tuple[tuple[int, float], ...]:
    """``(bytes, seconds)`` among 2, 4 or 8 V100s, by rising size; made monotone against noise."""
    file = resources.files("weft.models") / "data" / "aceso" / f"prim_gpt_1_3B_{kind}_{devices}gpus.csv"
    rows = [(float(size), float(time)) for size, time in list(csv.reader(io.StringIO(file.read_text())))[1:]]
    points: list[tuple[int, float]] = []
    for size, milliseconds in sorted(rows):
        if size > 0 and milliseconds < _FAILED:
            points.append((round(size * _MIB), max(milliseconds * 1e-3, points[-1][1] if points else 0.0)))
    return tuple(points)


def _link(device: DeviceType, machines: int) -> tuple[float, float]:
    return (device.link, device.link_latency) if machines == 1 else (device.network, device.network_latency)
