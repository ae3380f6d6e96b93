"""What deciding memory buys in whole schedules, and offloading beside it: GPT-1.3B on four V100s of 32 GB.

    python -m experiments.placement.offload [--sizes 1 2 4 8] [--samples 64] [--effort 2] [--output offload.json]

A step is 64 samples. Every way to spend memory is searched at each size of micro-batch, and counts at its own best: on
a chain of stages with a whole backward, whole layers with everything kept, whole layers with every layer recomputed,
operators kept or recomputed as decided, and the same with copies to the host at 12 GB/s each way; and over every
placement that weft considers, whole layers kept, and decided with offload. Costs are measured. Given are a step's
time, a bound on it over the placements of that way, and samples a second; ``1F1B`` is the published schedule on whole
layers that are kept, where it fits.
"""

from __future__ import annotations

from argparse import Namespace

import weft
from experiments.lib.provenance import Record, Row
from experiments.lib.script import script
from weft.app.lib.case import case_of
from weft.models.spec.spec import Spec, parse_spec
from weft.solver.baselines import baseline
from weft.solver.judge.validate import violations
from weft.solver.step.search import Infeasible

SIZES = (1, 2, 4, 8)
SPEC = """
name: GPT-1.3B on 4 V100
model: {{family: gpt, layers: 24, hidden: 2048, heads: 32, vocabulary: 51200, sequence: 2048}}
costs: gpt-1.3b-v100
cluster: {{gpus: 4, memory: 32 GiB, links: nvlink-v100{host}}}
training: {{micro_batches: {count}, micro_batch_size: {size}{recompute}}}
placement: {{{shapes}{memory}}}
"""
CHAIN, ANY = "shapes: [chain], backward: [full]", "backward: [full, split]"
#: What each way adds to the spec.
WAYS: dict[str, dict[str, str]] = {
    "kept": {},
    "layers recomputed": {"recompute": ", recompute: true"},
    "decided": {"memory": ", memory: decide"},
    "decided, with offload": {"memory": ", memory: decide", "host": ", host_bandwidth: 12 GB/s"},
    "kept, any placement": {"shapes": ANY},
    "decided with offload, any placement": {"shapes": ANY, "memory": ", memory: decide",
                                            "host": ", host_bandwidth: 12 GB/s"},
}
PUBLISHED = "1F1B"


def _spec(size: int, way: str, samples: int) -> Spec:
    usual = {"host": "", "recompute": "", "memory": "", "shapes": CHAIN}
    return parse_spec(SPEC.format(size=size, count=samples // size, **{**usual, **WAYS[way]}))


def _published(spec: Spec, samples: int) -> Row | None:
    """1F1B on the chain that suits it best; ``None`` where it fits on none."""
    try:
        case = case_of(spec)
    except Infeasible:
        return None
    found = [baseline("1f1b", placement.problem, case.micro_batches) for placement in case.placements]
    steps = [schedule.makespan for schedule in found if not violations(schedule, limit=1)]
    return {"step": min(steps), "samples_per_second": samples / min(steps)} if steps else None


def _searched(spec: Spec, samples: int, effort: float) -> Row | None:
    """The best schedule's figures; ``None`` where nothing fits."""
    try:
        found = weft.solve(spec, effort=effort, time_limit=60 * effort)
    except Infeasible:
        return None
    return {"step": found.makespan, "bound": found.solver.get("bound_over_placements", found.makespan_bound),
            "samples_per_second": samples / found.makespan, "placement": found.solver["placement"]}


def _best(rows: dict[str, Row], way: str) -> Row | None:
    """The size at which ``way`` is fastest."""
    speeds = {size: row[way]["samples_per_second"] for size, row in rows.items() if row[way] is not None}
    if not speeds:
        return None
    size = max(speeds, key=lambda key: speeds[key])
    return {"micro_batch_size": int(size), "samples_per_second": speeds[size]}


@script("offload.json", sizes=SIZES, samples=64, effort=2.0)
def main(options: Namespace, record: Record) -> None:
    rows: dict[str, Row] = {}
    for size in options.sizes:
        specs = {way: _spec(size, way, options.samples) for way in WAYS}
        rows[str(size)] = {PUBLISHED: _published(specs["kept"], options.samples), **{
            way: _searched(spec, options.samples, options.effort) for way, spec in specs.items()}}
        print(size, rows[str(size)], flush=True)
    best = {way: _best(rows, way) for way in (PUBLISHED, *WAYS)}
    record.write({"samples_per_step": options.samples, "effort": options.effort, "best": best, "sizes": rows})
