"""Layers cut for GPUs of unequal speed and memory, against the same cut as if the GPUs were alike: random models.

Each case has 2 to 12 GPUs, each 1, 1.5, 2 or 3 times as fast as the slowest kind and with its own memory, 2 to 5 layers
a GPU for each stage it runs, times that differ by layer (an embedding and a head among them), and a shape. The least
bottleneck (the largest load of a GPU) is that of the cut made for these GPUs; beside it stand that of the cut made as
if all had the mean speed and memory, the bound from work over the sum of the speeds, and, of small cases, the least
over all cuts, tried one by one. Writes ``unequal_gpus.json``.

    python -m experiments.models.unequal_gpus [--count 120]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from weft.models.candidates.stage_split import NoSplit, StageSplit, split_at, split_layers
from weft.models.candidates.stages import SHAPES, MemoryRule, Shape, stage_device
from weft.models.layers.costs import LayerCost

#: Cuts of a case of which all are tried.
MOST_CUTS = 20_000
RULE = MemoryRule("full", 16)
SPEEDS = (1.0, 1.5, 2.0, 3.0)


def layers_of(rng: random.Random, count: int) -> list[LayerCost]:
    """Layers that differ by up to a tenth, an embedding that takes little and holds much, and a heavy head."""
    layers = []
    for i in range(count):
        time_ns = rng.randint(900_000, 1_100_000) * {0: 1, count - 1: 9}.get(i, 6) // 3
        parameters = rng.randint(90, 110) * (5 if i in (0, count - 1) else 1)
        layers.append(LayerCost(f"l{i}", time_ns * 1e-9, 2 * time_ns * 1e-9, time_ns * 1e-9, time_ns * 1e-9, parameters,
                                2 * parameters, rng.randint(100, 400), 50, 10))
    return layers


def at_speed(layer: LayerCost, speed: float) -> LayerCost:
    """The layer on a GPU ``speed`` times as fast, in whole nanoseconds."""
    half = round(layer.backward / 2 / speed, 9)
    return replace(layer, forward=round(layer.forward / speed, 9), backward=2 * half, input_grad=half,
                   weight_grad=half)


def brute_force(shape: Shape, layers: Sequence[Sequence[LayerCost]], memory: Sequence[int],
                in_flight: Sequence[int]) -> float | None:
    """The least bottleneck of all cuts that fit."""
    count, best = len(layers[0]), None
    for inner in combinations(range(1, count), len(in_flight) - 1):
        split = split_at(shape, layers, (0, *inner, count), memory, in_flight, RULE)
        if fits(split, memory) and (best is None or max(split.loads) < best):
            best = max(split.loads)
    return best


def fits(split: StageSplit, memory: Sequence[int]) -> bool:
    """Whether the split needs no more than there is."""
    return all(need <= has for need, has in zip(split.memory, memory, strict=True))


def case(seed: int) -> dict[str, Any] | None:
    """One random case, ``None`` where nothing fits it."""
    rng = random.Random(seed)
    shape, gpus = SHAPES[seed % len(SHAPES)], rng.choice((2, 2, 3, 3, 4, 6, 8, 12))
    stages = len(stage_device(shape, gpus))
    layers = layers_of(rng, stages * rng.randint(2, 5 if shape == "chain" else 3) + rng.randrange(3))
    speeds = sorted(rng.choices(SPEEDS, k=gpus)) if rng.random() < 0.5 else rng.choices(SPEEDS, k=gpus)
    by_kind = {speed: [at_speed(layer, speed) for layer in layers] for speed in set(speeds)}
    by_gpu = [by_kind[speed] for speed in speeds]
    in_flight = [stages - s for s in range(stages)]
    need = sum(16 * layer.parameters + layer.activation_bytes * stages for layer in layers)
    memory = [round(need / gpus * rng.uniform(1.2, 3.0)) for _ in range(gpus)]
    began = time.process_time()
    try:
        split = split_layers(shape, by_gpu, memory, in_flight, RULE)
    except NoSplit:
        return None
    seconds = time.process_time() - began
    row: dict[str, Any] = {"seed": seed, "shape": shape, "gpus": gpus, "layers": len(layers), "speeds": speeds,
           "bottleneck": max(split.loads), "cpu_seconds": round(seconds, 4),
           "bound": max(sum(layer.forward + layer.backward for layer in layers) / sum(speeds),
                        max(layer.forward + layer.backward for layer in by_kind[max(speeds)]))}
    try:
        alike = split_layers(shape, layers, [sum(memory) // gpus] * gpus, in_flight, RULE)
        there = split_at(shape, by_gpu, alike.cuts, memory, in_flight, RULE)
        row["as_if_alike"] = max(there.loads) if fits(there, memory) else None
    except NoSplit:
        row["as_if_alike"] = None
    if comb(len(layers) - 1, stages - 1) <= MOST_CUTS:
        row["brute_force"] = brute_force(shape, by_gpu, memory, in_flight)
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Cut, print and write all cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--output", type=Path, default=RESULTS / "unequal_gpus.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows = [row for row in map(case, range(options.count)) if row is not None]
    gains = sorted(row["as_if_alike"] / row["bottleneck"] for row in rows if row["as_if_alike"] is not None)
    tried = [row for row in rows if "brute_force" in row]
    summary = {
        "cases": options.count, "fit": len(rows), "against_all_cuts": len(tried),
        "equal_to_the_best_of_all_cuts": sum(abs(row["bottleneck"] - row["brute_force"]) < 1e-12 for row in tried),
        "as_if_alike_does_not_fit": sum(row["as_if_alike"] is None for row in rows),
        "as_if_alike_takes_times": {"least": gains[0], "median": gains[len(gains) // 2], "most": gains[-1]}
        if gains else None,
        "most_above_bound": max((row["bottleneck"] / row["bound"] - 1 for row in rows), default=None),
        "most_cpu_seconds": max((row["cpu_seconds"] for row in rows), default=None)}
    for key, value in summary.items():
        print(f"{key:32} {value}")
    record.write({"summary": summary, "rows": rows})
    return 0


if __name__ == "__main__":
    main()
