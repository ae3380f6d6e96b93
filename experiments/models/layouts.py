"""Conversions of layouts against exhaustive searches, random plans against one device, and plans that are published.

*Pairs*: all layouts of a two-dimensional tensor over 2 to 8 virtual devices: how many of the conversions cost what a
search over all vectors finds, and the largest error of the numbers that come out. *Groups*: random pairs of groups of
different sizes. *Plans*: random plans of small models run part by part on virtual devices in numpy, gradients included,
against one device; circles planted in orders, and how many are refused. *Published*: what a few lines derive. Writes
``layouts.json``.

    python -m experiments.models.layouts [--devices 2 3 4 5 6 7 8] [--plans 100]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lib.provenance import RESULTS, Record
from tests.oracles.layouts import cheapest_vectors
from tests.support.programs import attention, convolutions, experts, mlp, numbers, random_plan, transformer
from weft.models.layouts.conversion import Conversion, convert
from weft.models.layouts.layout import Layout, Placed, layouts_over
from weft.models.layouts.prices import uniform
from weft.models.layouts.values import applied, lay_out, put_together
from weft.models.transform.annotation import PlanError
from weft.models.transform.plan import Plan
from weft.models.transform.program import Program

MODELS: dict[str, Callable[[], Program]] = {
    "MLP": mlp, "transformer": transformer, "attention": attention, "convolutions": convolutions, "experts": experts}
LATENCY, BANDWIDTH = 1e-7, 1e9


def price(kind: str, held: float, group: Sequence[int]) -> float:
    """A ring of devices that are joined alike."""
    if kind in ("slice", "term"):
        return 0.0
    k = len(group)
    sent = {"all_gather": (k - 1) * held, "all_reduce": 2 * (k - 1) * held / k}.get(kind, (k - 1) * held / k)
    return LATENCY + sent / BANDWIDTH


def error(found: Conversion, shape: Sequence[int]) -> float:
    """The largest error of the numbers that a conversion brings."""
    whole = np.random.default_rng(1).standard_normal(shape)
    held = lay_out(whole, found.source, 2)
    for step in found.steps:
        held = applied(step, held, shape)
    return float(np.abs(put_together(held, found.target, shape) - whole).max())


def pairs(devices: int) -> dict[str, Any]:
    """All pairs of layouts over so many devices."""
    side = {5: 15, 6: 12, 7: 14}.get(devices, 24 if devices == 3 else 16)
    shape, started = (side, side), time.process_time()
    least = cheapest_vectors(devices, shape, 8, price)
    equal, largest, ways, longest = 0, 0.0, Counter[str](), 0
    asked = [(one, other) for one, other in least if one != other]
    for one, other in asked:
        source, target = (Layout(vector[0], vector[1], vector[2:]) for vector in (one, other))
        found = convert(Placed.of(source, range(devices)), target, shape, 8, uniform(LATENCY, BANDWIDTH))
        equal += abs(found.seconds - least[one, other]) < 1e-12
        placed = convert(Placed.of(source, range(devices)), Placed.of(target, range(devices)), shape, 8,
                         uniform(LATENCY, BANDWIDTH))
        largest = max(largest, error(found, shape), error(placed, shape))
        ways[" + ".join(found.kinds)] += 1
        longest = max(longest, len(found.steps))
    return {"devices": devices, "pairs": len(asked), "equal_to_exhaustive": equal, "largest_error": largest,
            "longest_way": longest, "ways": len(ways), "cpu_seconds": round(time.process_time() - started, 1)}


def groups(count: int) -> dict[str, Any]:
    """Random pairs of layouts on groups of 1 to 8 of 12 devices."""
    draw, shape, largest, kinds = random.Random(3), (12, 24), 0.0, Counter[str]()
    for _ in range(count):
        placed = []
        for size in (draw.randint(1, 8), draw.randint(1, 8)):
            fitting = [entry for entry in layouts_over(size, 2)
                       if all(length % k == 0 for length, k in zip(shape, entry.splits, strict=True))]
            placed.append(Placed.of(draw.choice(fitting), draw.sample(range(12), size)))
        found = convert(placed[0], placed[1], shape, 8, uniform(LATENCY, BANDWIDTH))
        largest = max(largest, error(found, shape))
        kinds[" + ".join(found.kinds)] += 1
    return {"pairs": count, "largest_error": largest, "ways": dict(kinds.most_common(6))}


def plans(name: str, count: int) -> dict[str, Any]:
    """Random plans of one model, and circles planted in them."""
    program, draw = MODELS[name](), random.Random(name)
    given = numbers(program)
    largest, sent, kinds, planted, refused = 0.0, 0, Counter[str](), 0, 0
    for _ in range(count):
        plan = random_plan(program, draw)
        done = plan.preserve()
        largest = max(largest, done.error(given))
        sent += len(done.communications)
        kinds.update(kind for entry in done.communications for kind in entry.kinds)
        entry = draw.choice([entry for entry in done.joined if not entry.next_step])
        maker, reader = entry.producers[0].part.operation, entry.readers[0].part.operation
        planted += 1
        try:
            plan.order(reader, maker).preserve()
        except PlanError as problem:
            refused += "in a circle" in str(problem)
    return {"model": name, "operators": len(program.operations), "plans": count, "largest_error": largest,
            "communications": sent, "steps": dict(sorted(kinds.items())), "circles_planted": planted,
            "circles_refused": refused}


def published() -> dict[str, Any]:
    """What plans of a few lines derive: the steps of a training step by kind, and the error against one device."""
    tensor = "*.q *.k *.v *.attend *.out", "*.up *.act *.down"
    block, small, wide, gates = transformer(layers=2), mlp(update=True), mlp(64, 8, 256), experts()
    everything = "up bias act down residual loss"
    written = {
        "Megatron tensor parallelism": (block, Plan(block).split(tensor[0], "h", 4).split(tensor[1], "f", 4)
                                        .assign("*", range(4))),
        "Megatron with sequence parallelism": (block, Plan(block).split(tensor[0], "h", 4).split(tensor[1], "f", 4)
                                               .split("*.ln? *.add?", "s", 4).assign("*", range(4))),
        "data parallel": (small, Plan(small).split(everything, "b", 4).assign("*", range(4))),
        "sharded optimizer": (small, Plan(small).split(everything, "b", 4).split("update(w1)", "m", 4)
                              .split("update(w2) update(b1)", "f", 4).assign("*", range(4))),
        "one device": (wide, Plan(wide).assign("*", 0)),
        "co-shard": (wide, Plan(wide).co_shard("up bias act down", "f", 4).assign("*", 0)),
        "1F1B": (block, Plan(block).pipeline(["embed l0.*", "l1.* head entropy loss"], [0, 1], "b", 4)),
        "interlaced embedding": (block, Plan(block).split("embed head", "v", 2).assign("embed head", (0, 1))
                                 .split("embed head", "b", 2, in_turn=True)
                                 .pipeline(["l0.*", "l1.* entropy loss"], [0, 1], "b", 2)),
        "expert parallel": (gates, Plan(gates).split("scores gates dispatch combine loss", "g", 2)
                            .split("up act down", "e", 2).assign("*", range(2)))}
    found = {}
    for name, (program, plan) in written.items():
        done = plan.preserve()
        steps = Counter(kind for entry in done.communications for kind in entry.kinds)
        found[name] = {"steps": dict(sorted(steps.items())), "bytes": done.bytes,
                       "peak_bytes": max(done.peaks.values()), "error": done.error(numbers(program))}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write all parts; fails where a mark is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", type=int, nargs="*", default=[2, 3, 4, 5, 6, 7, 8])
    parser.add_argument("--plans", type=int, default=100, help="random plans of each model")
    parser.add_argument("--output", type=Path, default=RESULTS / "layouts.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    report: dict[str, Any] = {
        "pairs": [pairs(devices) for devices in options.devices], "groups": groups(3 * options.plans),
        "plans": [plans(name, options.plans) for name in MODELS], "published": published()}
    record.write(report)
    print(json.dumps(report, indent=1))
    exact = all(row["largest_error"] < 1e-12 and row["equal_to_exhaustive"] == row["pairs"] for row in report["pairs"])
    right = all(row["largest_error"] < 1e-10 and row["circles_refused"] == row["circles_planted"]
                for row in report["plans"])
    return 0 if exact and right and report["groups"]["largest_error"] < 1e-12 else 1


if __name__ == "__main__":
    raise SystemExit(main())
