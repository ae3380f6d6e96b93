"""What share of a link rings of V100s reach, and how far the ring model is from the measured collectives.

For every measured collective (Aceso's artifact, 2, 4 and 8 V100s of one machine) of 16 MiB and more: the share of
NVLink's bandwidth of one direction with which the ring model gives the measured time. The medians are
:data:`weft.models.layers.collectives.REACHED`. The errors are the model's with those. Writes ``collectives.json``.

    python -m experiments.models.collectives
"""

from __future__ import annotations

import json
import math
import statistics
from argparse import Namespace

from experiments.lib.provenance import Record
from experiments.lib.script import script
from weft.models.hardware.devices import DEVICES
from weft.models.layers.collectives import REACHED, Collective, measured_curve, ring_seconds

V100 = DEVICES["v100"]
KINDS: tuple[Collective, ...] = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
LEAST = 16 * 1024**2


@script("collectives.json")
def main(options: Namespace, record: Record) -> None:
    report: dict[str, dict[str, object]] = {}
    for kind in KINDS:
        shares: dict[int, list[float]] = {}
        errors: dict[int, list[float]] = {}
        for devices in (2, 4, 8):
            for size, seconds in measured_curve(kind, devices):
                if size < LEAST:
                    continue
                whole = ring_seconds(kind, size, devices, V100.link, 0.0, 1.0)
                shares.setdefault(devices, []).append(whole / max(seconds - V100.link_latency, 1e-9))
                ours = ring_seconds(kind, size, devices, V100.link, V100.link_latency, REACHED[kind][devices])
                errors.setdefault(devices, []).append(ours / seconds - 1)
        spread = sorted(abs(error) for found in errors.values() for error in found)
        report[kind] = {
            "reached": {devices: round(statistics.median(found), 2) for devices, found in shares.items()},
            "shipped": REACHED[kind], "points": len(spread),
            "median_absolute_error": round(statistics.median(spread), 3),
            "p90_absolute_error": round(spread[math.ceil(0.9 * len(spread)) - 1], 3),
            "mean_error": {f"{devices} GPUs": round(statistics.mean(found), 3) for devices, found in errors.items()}}
    record.write(report)
    print(json.dumps(report, indent=1))
