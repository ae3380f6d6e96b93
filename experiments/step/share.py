"""Jobs on the same GPUs: how much faster together than in turn, and whether every rank sees their sums in one order.

    python -m experiments.step.share [--sets N] [--effort SECONDS]

*Worked out by hand*: two jobs that compute and then use the network, whose least periods are known. *Modelled*: a GPT
of 760 million parameters and one of BERT-large's sizes on four V100, data parallel over a network and inside one
machine, and as pipelines; against running in turn with each job's own overlap, and without. *One order*: random jobs
whose collectives are on some of the ranks each, scheduled and lowered; each rank's list is held against the others',
and a list with two neighbours swapped must be found. Writes results/share.json.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from tests.support.sharing import one_gpu, random_jobs
from weft.app.lib.options import SearchOptions
from weft.app.share.result import Sharing
from weft.app.share.search import Question, share_jobs, share_sources
from weft.models.share.compose import composed
from weft.models.spec.spec import parse_spec
from weft.runtime.plan.collectives import collective_rows
from weft.runtime.plan.plan import plan_of
from weft.solver.baselines import baseline
from weft.solver.judge.collective_order import collective_order_faults
from weft.solver.wide.rounds import Rounds
from weft.solver.wide.run import Run

#: Computation and network of two jobs, and their least period.
KNOWN = (((8, 2), (8, 2), 16), ((6, 4), (6, 4), 12), ((5, 5), (5, 5), 10), ((4, 6), (8, 2), 12), ((6, 4), (9, 3), 15))
_MODEL = """
name: {name}
model: {{family: gpt, layers: 24, hidden: {hidden}, heads: 16, vocabulary: {vocabulary}, sequence: {sequence}}}
costs: roofline
cluster: {{gpus: 4, memory: 32 GiB, device: v100, gpus_per_machine: {machine}}}
training: {{micro_batches: {count}, micro_batch_size: {size}}}
"""
_GPT = {"name": "GPT-760M", "hidden": 1536, "vocabulary": 51200, "sequence": 1024, "size": 1}
_BERT = {"name": "BERT-large's sizes", "hidden": 1024, "vocabulary": 30592, "sequence": 512, "size": 8}
#: By name: GPUs of a machine, how the jobs run, and their micro-batches a step.
PAIRS: dict[str, tuple[int, str, int]] = {
    "data parallel, four machines": (1, "data", 4), "data parallel, one machine": (4, "data", 4),
    "pipelines, one machine": (4, "pipeline", 16)}
#: Random job sets that are searched, not only scheduled by a known rule.
SEARCHED = 20


def known(effort: float) -> list[dict[str, Any]]:
    """The periods that can be worked out by hand."""
    rows = []
    for first, second, period in KNOWN:
        found = share_jobs([one_gpu("a", *first), one_gpu("b", *second)], Question("1:1"), _options(effort))
        rows.append({"least": period, **told(found)})
    return rows


def modelled(name: str, effort: float) -> dict[str, Any]:
    """A pair of specs on one cluster, at the best small ratio."""
    machine, parallel, count = PAIRS[name]
    specs = [parse_spec(_MODEL.format(machine=machine, count=count, **model)) for model in (_GPT, _BERT)]
    found = share_sources(specs, Question(None, parallel=parallel), _options(effort))
    print(found)
    return {"pair": name, **told(found)}


def told(found: Sharing) -> dict[str, Any]:
    """What is kept of an answer."""
    kept = found.to_json()
    return {key: kept[key] for key in ("ratio", "period", "period_bound", "proven", "speedup", "speedup_bound",
                                       "speedup_without_overlap", "jobs", "tried")}


def one_order(sets: int, effort: float) -> dict[str, Any]:
    """Random job sets: faults of the order of collectives, and swaps that were not found."""
    faults = missed = swaps = collectives = 0
    for seed in range(sets):
        if seed < SEARCHED:
            jobs = random_jobs(seed)
            schedule = share_jobs(jobs, Question([1] * len(jobs)), _options(effort)).schedule
        else:
            problem = composed(random_jobs(seed))
            rounds = Rounds(problem, Run.of(problem, 3))
            schedule = replace(baseline("greedy", rounds.problem, 3), rounds=rounds)
        rows = collective_rows(plan_of(schedule))
        faults += bool(collective_order_faults(rows))
        collectives += len({item for row in rows.values() for item in row})
        swapped = _swapped(rows, random.Random(seed))
        if swapped is not None:
            swaps += 1
            missed += not collective_order_faults(swapped)
    return {"sets": sets, "searched": min(sets, SEARCHED), "collectives": collectives, "faults": faults,
            "swaps": swaps, "swaps_missed": missed}


def _swapped(rows: dict[int, list[str]], draw: random.Random) -> dict[int, list[str]] | None:
    """``rows`` with two neighbours of one rank swapped that another rank has too; ``None`` where there are none."""
    places = [(rank, at) for rank, row in rows.items() for at in range(len(row) - 1)
              if any(other != rank and {row[at], row[at + 1]} <= set(own) for other, own in rows.items())]
    if not places:
        return None
    rank, at = draw.choice(places)
    row = list(rows[rank])
    row[at], row[at + 1] = row[at + 1], row[at]
    return {**rows, rank: row}


def _options(effort: float) -> SearchOptions:
    return SearchOptions(time_limit=600.0, effort=effort)


def main(arguments: Sequence[str] | None = None) -> int:
    """Search all, print and write; 1 if a period is not the one known, or an order is not one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sets", type=int, default=1000, help="random job sets")
    parser.add_argument("--effort", type=float, default=10.0, help="deterministic seconds of each modelled pair")
    parser.add_argument("--only", default="", help="pairs whose name contains this")
    parser.add_argument("--output", type=Path, default=RESULTS / "share.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows, order = known(2.0), one_order(options.sets, 0.2)
    print(json.dumps({"known": [[row["least"], row["period"], row["proven"]] for row in rows], "one_order": order}))
    pairs = [modelled(name, options.effort) for name in PAIRS if options.only in name]
    record.write({"known": rows, "modelled": pairs, "one_order": order})
    bad = [row for row in rows if row["period"] != row["least"] or not row["proven"]]
    return int(bool(bad) or bool(order["faults"]) or bool(order["swaps_missed"]))


if __name__ == "__main__":
    raise SystemExit(main())
