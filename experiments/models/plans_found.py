"""Published plans with their order searched: seconds of a step with a bound, beside orders by hand.

Plans are those of ``experiments/lib/published_plans.py``, on modelled A100s with 20 us and 10 GB/s between them; models
are as small as the virtual devices that compute them and compare the numbers with one device's. Times are of launches
mostly; what counts is the order. One of them stands beside a plain pipeline at a size that is trained. The Evoformer is
a spec: eight blocks that recycle three times on four V100, where 4209.5 ms were called proven once (over ten
placements), and 4024.9 ms were found by hand. Writes ``plans_found.json``.

    python -m experiments.models.plans_found [--only 3f1b ...] [--effort 10]
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from contextlib import suppress
from dataclasses import replace

from experiments.lib.provenance import Record, Row
from experiments.lib.published_plans import PLANS, Schedule, decoder, interlaced, numbers, piped
from experiments.lib.script import script
from weft.app.lib.case import case_of
from weft.app.lib.options import SearchOptions
from weft.app.plans.checking import error
from weft.app.plans.solving import PlanMachine, as_written, solve_plan
from weft.app.solving.solve import solve_case
from weft.models.layouts.conversion import uniform
from weft.models.spec.spec import parse_spec
from weft.solver.baselines import NotApplicable, baseline
from weft.solver.judge.validate import violations

MACHINE = PlanMachine("a100", uniform(2e-5, 1e10))
BY_HAND: tuple[Schedule, ...] = ("1f1b", "gpipe")
DEVICES = {"3f1b": 4}
#: Operators of a block at most, where communications may run beside a part of a device's work.
GRAIN = {"sharded-optimizer": 3}
EVOFORMER = """
name: eight Evoformer blocks that recycle three times, on 4 V100
model: {family: evoformer, blocks: 8, recycles: 3}
costs: roofline
cluster: {gpus: 4, memory: 32 GiB, device: v100, bandwidth: 150 GB/s, latency: 20 us}
training: {micro_batches: 16, recompute: true}
"""


def row(name: str, effort: float) -> Row:
    """One plan, by hand and searched; whether it computes what one device does."""
    published, devices = PLANS[name], {"devices": DEVICES[name]} if name in DEVICES else {}
    plan, machine = published.plan(**devices), replace(MACHINE, grain=GRAIN.get(name))
    found = solve_plan(plan, machine, SearchOptions(600.0, effort))
    hand = {"as listed": found.written}
    if published.pipeline:
        hand = {schedule: as_written(published.plan(schedule, **devices), machine) for schedule in BY_HAND}
    sent = Counter(kind for entry in found.done.communications for kind in entry.kinds)
    return {"plan": name, "title": published.title, "by_hand": hand, "seconds": found.makespan, "bound": found.bound,
            "proven": found.proven, "communications": dict(sent),
            "error": error(found.done, numbers(plan.program)) < 1e-10}


def at_size(effort: float) -> list[Row]:
    """Four layers of width 2048 with a vocabulary of 51200 on four A100, as a plain pipeline and interlaced."""
    program = decoder(batch=8, sequence=1024, width=2048, heads=16, layers=4, vocabulary=51200, itemsize=2)
    machine, rows = PlanMachine("a100"), []
    for name, make in (("plain", piped), ("interlaced", interlaced)):
        found = solve_plan(make("open", 4, program, 8), machine, SearchOptions(600.0, effort))
        rows.append({"plan": name, "seconds": found.makespan, "bound": found.bound, "proven": found.proven,
                     "by_hand": {each: as_written(make(each, 4, program, 8), machine) for each in BY_HAND}})
    return rows


def evoformer(effort: float) -> Row:
    """The spec: all its placements, with the known schedule on each where it fits."""
    case = case_of(parse_spec(EVOFORMER))
    found = solve_case(case, SearchOptions(600.0, effort))
    rivals = []
    for placement in case.placements:
        with suppress(NotApplicable):
            made = baseline("3f1b", placement.problem, case.micro_batches)
            rivals += [(made.makespan, placement.title)] if not violations(made) else []
    seconds, title = min(rivals)
    return {"placement": found.solver["placement"], "seconds": found.makespan,
            "bound_over_placements": found.solver.get("bound_over_placements"), "placements": len(case.placements),
            "rivals": {"3f1b": {"seconds": seconds, "placement": title}}}


@script("plans_found.json", only=[*PLANS, "at size", "evoformer"], effort=10.0)
def main(options: Namespace, record: Record) -> None:
    found = {"rows": [row(name, options.effort) for name in PLANS if name in options.only],
             "at_size": at_size(options.effort) if "at size" in options.only else [],
             "evoformer": evoformer(options.effort) if "evoformer" in options.only else None}
    print(json.dumps(found, indent=1))
    record.write(found)
