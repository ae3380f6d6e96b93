"""All contiguous cuts of the layers searched with their orders, against the same effort on the cuts that are listed.

    python -m experiments.models.cut_search [--count 60] [--effort 4]
    python -m experiments.models.cut_search --ablation [--only TEXT] [--parts NAME ...]

Random specs of 4 to 16 GPUs: 2 to 4 layers a GPU whose times differ by up to a half, an embedding that is quick and
holds much, a heavy head, links from fast to slow, memory from hardly enough to ample, whole and split backwards, in
chains, Vs and loops. Every fifth is small: 4 GPUs in a chain, 5 to 7 layers, 2 or 3 micro-batches; there, every cut is
also solved alone, one by one. What is listed are the cuts with the least largest load for one micro-batch in flight and
for as many as 1F1B holds, which were all that was searched once. Writes ``cut_search.json`` after every spec.

``--ablation``: what helps this search, each of its ideas left out in turn, on the spec of ``weft demo`` and three of
these (6 and 8 GPUs, 20 to 29 layers), all with up to three chunks a GPU. Left out are, by name:

* ``cuts not listed``: only the cuts with the least largest loads are searched, which are listed at first. Its bound is
  one over these alone: no measure of the others;
* ``bounds of whole cuts``: cuts keep the bounds of their beginnings, and no cut is bounded side by side with others;
* ``least bounds``: the cut with the least bound of all is neither bounded more closely nor searched, round after round;
* ``carrying``: an order stays on the cut that it was made for;
* ``tries``: no known schedules of cuts to begin with, so nothing to climb from but the placements listed;
* ``climb``: no layer moves to another stage with the order carried along;
* ``third chunk``: at most two stages a GPU. Its bound, too, is one over fewer placements.

Shown are the makespan as a multiple of the whole search's, and the gap to the run's own bound. The same effort is not
the same CPU time. Writes ``cut_ablation.json``.
"""

from __future__ import annotations

import json
import random
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import Any
from unittest.mock import patch

from experiments.lib.provenance import Record, Row
from experiments.lib.script import script
from weft.app.cuts import tries
from weft.app.cuts.search import CutDecision, CutSearch
from weft.app.lib.case import Case, case_of
from weft.app.lib.options import SearchOptions
from weft.app.solving.solve import solve_case
from weft.models.spec.spec import Spec, demo_spec, parse_spec
from weft.solver import Infeasible, solve
from weft.solver.orders.climb import Climb, Decided, judged
from weft.solver.timing import Orders

#: Deterministic seconds for one cut of a small spec.
EACH = 4.0


def is_small(seed: int) -> bool:
    """Whether all cuts of this spec are tried."""
    return seed % 5 == 4


def layers_of(dice: random.Random, count: int) -> list[dict[str, Any]]:
    """Entries of a spec: an embedding, blocks that differ by up to a half, a head of up to two and a half of them."""
    entries = []
    for i in range(count):
        kind = "embedding" if i == 0 else "head" if i == count - 1 else "block"
        work = {"embedding": 0.3, "block": dice.uniform(0.67, 1.5), "head": dice.uniform(1, 2.5)}[kind]
        forward, gradient, weight = (round(work * share * 1e-3, 6) for share in (2, 2.2, 1.8))
        kept = round(dice.uniform(0.5, 2) * 100)
        entries.append({
            "name": f"{kind}{i}", "forward": forward, "weight_grad": weight,
            "input_grad": 0 if kind == "embedding" else gradient,
            "activation_memory": kept * 1000, "weight_grad_memory": round(kept * dice.uniform(0.3, 0.9)) * 1000,
            "weights": round(dice.uniform(0.5, 2) * {"embedding": 300, "block": 100, "head": 200}[kind]) * 1000,
            "output": 20_000})
    return entries


def spec_of(seed: int) -> Spec:
    """Spec ``seed``."""
    dice = random.Random(seed)
    gpus = 4 if is_small(seed) else dice.choice((4, 6, 8, 8, 12, 16))
    count = dice.randint(5, 7) if is_small(seed) else round(gpus * dice.uniform(2, 4)) + 1
    layers = layers_of(dice, count)
    weights, kept = (sum(layer[name] for layer in layers) for name in ("weights", "activation_memory"))
    # From little more than weights and one micro-batch on each GPU to all that 1F1B holds on the first.
    memory = (weights + kept) / gpus * 1.6 + 600_000 + dice.choice((0.15, 0.3, 0.5, 1.0)) * kept
    document = {
        "name": f"random {seed}", "model": {"layers": layers},
        "cluster": {"gpus": gpus, "memory": round(memory), "reserve": 0,
                    "bandwidth": dice.choice((1e8, 4e8, 4e9))},
        "training": {"micro_batches": dice.randint(2, 3) if is_small(seed) else gpus * dice.randint(1, 2),
                     "parameter_bytes": 1, "gradient_bytes": 0, "optimizer_bytes_per_parameter": 0},
        "placement": {"shapes": ["chain"], "chunks": 1} if is_small(seed) else {"shapes": ["chain", "v", "loop"],
                                                                                "chunks": 2}}
    return parse_spec(json.dumps(document), f"random {seed}")


def searched(case: Case, effort: float) -> Row:
    """What comes of so much effort."""
    began = time.process_time()
    found = solve_case(case, SearchOptions(time_limit=900.0, effort=effort))
    return {"makespan": found.makespan, "bound": found.solver.get("bound_over_placements", found.makespan_bound),
            "placement": found.solver["placement"], "cut": list(map(len, found.solver["layers_of_stage"])),
            "cpu_seconds": round(time.process_time() - began, 2)}


def brute_force(case: Case, layers: int) -> float | None:
    """The least makespan over all cuts, each solved alone; None if one of those that may be best stays open."""
    best, least_open = float("inf"), float("inf")
    for space in case.spaces:
        for inner in combinations(range(1, layers), space.ground.layout.stages - 1):
            try:
                found = solve(space.candidate((0, *inner, layers)).problem, case.micro_batches, effort=EACH)
            except (Infeasible, ValueError):  # it does not fit; its weights alone are too much
                continue
            best = min(best, found.makespan)
            if found.makespan > found.makespan_bound * (1 + 1e-9):
                least_open = min(least_open, found.makespan_bound)
    return best if best <= least_open * (1 + 1e-9) else None


def row_of(seed: int, effort: float) -> Row:
    """One spec; nothing but why where nothing fits it."""
    spec = spec_of(seed)
    try:
        case = case_of(spec)
    except Infeasible as refusal:
        return {"seed": seed, "refused": str(refusal)}
    layers = case.spaces[0].ground.layers
    row: Row = {
        "seed": seed, "gpus": spec.cluster.gpus, "layers": layers, "micro_batches": case.micro_batches,
        "memory": spec.cluster.memory[0], "cuts": sum(comb(layers - 1, space.ground.layout.stages - 1)
                                                      for space in case.spaces)}
    row["listed_cuts"] = searched(replace(case, spaces=()), effort)
    row["all_cuts"] = searched(case, effort)
    row["takes_times"] = round(row["listed_cuts"]["makespan"] / row["all_cuts"]["makespan"], 6)
    if is_small(seed):
        row["brute_force"] = brute_force(case_of(spec), layers)
    return row


# -- one idea left out -------------------------------------------------------------------------------------------------


def stays(self: CutSearch, cut: CutDecision, orders: Orders) -> Decided[CutDecision] | None:
    """In place of ``CutSearch.carried``: the order on its own cut, where it fits."""
    found = judged(cut.problem, self.micro_batches, orders)
    return None if found is None else Decided(cut, found)


_LISTED, _CHUNK = "cuts not listed", "third chunk"
#: By what is left out: which method is another.
_OTHERS: dict[str, tuple[object, str, object]] = {
    "bounds of whole cuts": (CutSearch, "raise_some", lambda self, best, time: False),
    "least bounds": (CutSearch, "lowest", lambda self, best, time: None),
    "carrying": (CutSearch, "carried", stays),
    "tries": (tries, "tried", lambda cuts, climb, beside: []),
    "climb": (Climb, "run", lambda self, time: None)}
PARTS = [_LISTED, *_OTHERS, _CHUNK]
#: Of the random specs of the ablation.
SEEDS = (0, 3, 16)


def without(part: str | None, spec: Spec, effort: float) -> Row:
    """What comes of so much effort without ``part``."""
    chunks = spec.placement.model_copy(update={"chunks": 2 if part == _CHUNK else 3})
    case = case_of(spec.model_copy(update={"placement": chunks}))
    with ExitStack() as stack:
        if part in _OTHERS:
            stack.enter_context(patch.object(*_OTHERS[part]))
        found = searched(replace(case, spaces=()) if part == _LISTED else case, effort)
    return {**found, "proven": found["makespan"] <= found["bound"] * (1 + 1e-9),
            "gap": round(found["makespan"] / found["bound"] - 1, 6)}


def ablated(spec: Spec, parts: Sequence[str], effort: float) -> Row:
    """One spec, with everything and without each of ``parts``."""
    whole = without(None, spec, effort)
    row: Row = {"name": spec.name, "gpus": spec.cluster.gpus, "whole": whole}
    for part in parts:
        found = without(part, spec, effort)
        row[part] = {**found, "takes_times": round(found["makespan"] / whole["makespan"], 6)}
    return row


@script(lambda asked: f"cut_{'ablation' if asked.ablation else 'search'}.json", count=60, effort=4.0, ablation=False,
        only="", parts=PARTS)
def main(options: Namespace, record: Record) -> None:
    rows = (row_of(seed, options.effort) for seed in range(options.count))
    if options.ablation:
        rows = (ablated(spec, options.parts, options.effort) for spec in (demo_spec(), *map(spec_of, SEEDS))
                if options.only in spec.name)
    record.rows(rows, effort=options.effort)
