"""How long collectives take among the devices of one machine or of several: measured where they were, else modelled.

*Measured*: NCCL among 2, 4 and 8 V100s of one machine, from Aceso's artifact (``data/aceso``), with straight lines
between the sizes and, beyond the last, its bandwidth. *Modelled*: the ring algorithm (Patarasuk and Yuan, 2009): n
devices pass n - 1 parts of the tensor around (an all-reduce twice), all at once, over the slowest of the links on the
ring at the share of its peak that V100s reach in the measured curves (:data:`REACHED`), after one latency. That other
devices and networks reach the same share is an assumption.

The ``size`` of a collective is what each device holds before it: its part for an all-gather, all of its tensor for the
others; bytes.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, TypeAlias

from weft.models.hardware.devices import DeviceType
from weft.models.layers.cluster import AffineLink, Link, MeasuredLink
from weft.models.times.operator_times import Origin

__all__ = ["REACHED", "Collective", "CollectiveTime", "collective_time", "measured_curve", "point_to_point"]

Collective: TypeAlias = Literal["all_gather", "all_reduce", "reduce_scatter", "all_to_all"]

#: The share of NVLink's bandwidth of one direction that rings of 2, 4 and 8 devices reach (two of a V100's neighbours
#: are joined by a part of its links only): medians over the measured curves from 16 MiB on, by
#: ``experiments/models/collectives.py``. Rings of other sizes: the next smaller's.
REACHED: Mapping[Collective, Mapping[int, float]] = {
    "all_gather": {2: 0.15, 4: 0.31, 8: 0.41}, "all_reduce": {2: 0.26, 4: 0.51, 8: 0.84},
    "reduce_scatter": {2: 0.15, 4: 0.3, 8: 0.4}, "all_to_all": {2: 0.12, 4: 0.21, 8: 0.25}}

_MIB = 1024**2
_FAILED = 1e6  # milliseconds that the artifact writes for sizes it could not run


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Seconds, and where they come from."""

    seconds: float
    origin: Origin


def collective_time(kind: Collective, size: int, devices: int, device: DeviceType, *,
                    machines: int = 1, network: Link | None = None) -> CollectiveTime:
    """The time of one collective of ``size`` bytes on each of ``devices`` that stand in ``machines`` of equal number.

    ``network``: what joins the machines, by default the device's. A measured one sends each part of the ring in the
    time that was measured for it.

    Raises ``ValueError`` if the machines do not divide the devices.
    """
    if devices < 1 or machines < 1 or devices % machines or size < 0:
        raise ValueError(f"{size} bytes on {devices} devices in {machines} machines: both must be at least 1, the "
                         "machines divide the devices, and the size not be negative")
    if devices == 1 or not size:
        return CollectiveTime(0.0, Origin.MODELLED)
    if machines == 1 and device.name.startswith("v100") and devices in (2, 4, 8):
        points = measured_curve(kind, devices)
        exact = any(size == known for known, _ in points)
        within = points[0][0] <= size <= points[-1][0]
        origin = Origin.MEASURED if exact else Origin.INTERPOLATED if within else Origin.MODELLED
        return CollectiveTime(MeasuredLink(points).seconds(size), origin)
    reached = REACHED[kind][max(n for n in REACHED[kind] if n <= devices)]
    if machines > 1 and isinstance(network, MeasuredLink):
        parts, part = _ring(kind, size, devices)
        seconds = parts * network.seconds(math.ceil(part))
    elif machines > 1 and isinstance(network, AffineLink):
        seconds = ring_seconds(kind, size, devices, network.bandwidth, network.latency, reached)
    else:
        seconds = ring_seconds(kind, size, devices, *_link(device, machines), reached)
    return CollectiveTime(round(seconds, 9), Origin.MODELLED)


def _ring(kind: Collective, size: int, devices: int) -> tuple[int, float]:
    """How many parts each device passes on, one after another, and the bytes of one."""
    return (devices - 1) * (2 if kind == "all_reduce" else 1), size if kind == "all_gather" else size / devices


def ring_seconds(kind: Collective, size: int, devices: int, bandwidth: float, latency: float, reached: float) -> float:
    """The ring algorithm's time over links of ``bandwidth`` bytes a second, of which ``reached`` is used."""
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
    """``(bytes, seconds)`` among 2, 4 or 8 V100s, by rising size; never falling, as noise would have it."""
    file = resources.files("weft.models") / "data" / "aceso" / f"prim_gpt_1_3B_{kind}_{devices}gpus.csv"
    rows = [(float(size), float(time)) for size, time in list(csv.reader(io.StringIO(file.read_text())))[1:]]
    points: list[tuple[int, float]] = []
    for size, milliseconds in sorted(rows):
        if size > 0 and milliseconds < _FAILED:
            points.append((round(size * _MIB), max(milliseconds * 1e-3, points[-1][1] if points else 0.0)))
    return tuple(points)


def _link(device: DeviceType, machines: int) -> tuple[float, float]:
    return (device.link, device.link_latency) if machines == 1 else (device.network, device.network_latency)
