"""The Tessel evaluation's end-to-end cases planned again: training of GPT and mT5, inference of Flava, on V100s.

    python -m experiments.weft.tessel_evaluation [--only TEXT] [--effort SECONDS] [--sizes 1 2 4 8 16]

Lin et al., "Tessel", HPCA 2024, section 6: models grow with the GPUs (``experiments/data/tessel.yaml``); fp16, Adam,
every layer recomputed, a global batch of 128. Nothing is run here: all times are the costs of
``models/hardware/devices.py`` and ``models/layers/collectives.py``, the same for every row, so the ratios say what
placement and order give on these costs. Compared are, each on the best placement that it allows and that fits and in
the micro-batches that suit it best (1 to 16 sequences; weft is searched where the best of the others is): tensor
parallelism alone; 1F1B on a chain of stages on groups of GPUs; 1F1B+ with embeddings on all GPUs; Chimera with two
replicas; weft, which chooses among all of these shapes, those with embeddings on all GPUs also in two chunks a group,
and any order. A step of the optimizer and sums of gradients of replicas are left out everywhere.

Assumed where the case does not say: 8 bytes a parameter (fp16 weights, gradients and both moments of Adam); machines
of 8 GPUs with 12.5 GB/s between them; mT5 with the vocabulary of the GPT beside it and learned positions; Flava's texts
of 512 or 197 tokens beside images of 197 patches.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.lib.provenance import Record, Row, given
from experiments.lib.script import script
from weft.app.lib.case import Case, CasePlacement, case_of, shape_placement
from weft.app.lib.options import SearchOptions
from weft.app.solving.solve import solve_case
from weft.models.candidates.gpu_costs import family_costs
from weft.models.spec.sections import Spec
from weft.models.spec.spec import parse_spec
from weft.models.tensor_parallel.group_rows import CHUNKS
from weft.models.tensor_parallel.shapes import shape_candidates
from weft.models.tensor_parallel.space import space_of
from weft.solver.baselines import NotApplicable, baseline
from weft.solver.judge.validate import violations
from weft.solver.step.search import Infeasible

BATCH = 128
#: Sequences of a micro-batch, in training.
SIZES = (1, 2, 4, 8, 16)
#: Two stages a GPU alone (v, loop) hold as much as one does, and no table fits on one GPU: they are left out.
SHAPES = ("chain", "groups", "tensor", "m", "nn", "k")
TRAINED: Row = given("tessel.yaml")
FLAVA_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
#: Tokens of a text: the most that Flava takes, and as many as an image has patches, which makes the towers equal.
TEXTS = (512, 197)
#: What each known schedule is given: its name, and the shapes it can run on.
RIVALS = {"tensor parallel": ("1f1b", ("tensor",)), "1F1B": ("1f1b", ("chain", "groups")),
          "1F1B+": ("1f1b+", ("m", "nn")), "Chimera": ("chimera", ("x",))}


def spec_of(name: str, gpus: int, model: Row, **run: Row) -> Spec:
    """The spec of a case; ``run`` is its section of that name."""
    return parse_spec(json.dumps({
        "name": name, "model": model, "costs": "roofline", **run,
        "cluster": {"gpus": gpus, "memory": "32 GiB", "device": "v100", "bandwidth": "150 GB/s", "latency": "20 us",
                    "gpus_per_machine": 8},
        "placement": {"backward": ["full"], "shapes": SHAPES}}))


def flava(batch: int, text: int, size: int) -> Spec:
    """``batch`` pairs with texts of ``text`` tokens, in micro-batches of ``size``."""
    return spec_of(f"Flava, batch {batch}", 4, {
        "family": "flava", "text_layers": 24, "image_layers": 24, "fusion_layers": 12, "hidden": 4096, "heads": 32,
        "sequence": text}, inference={"micro_batches": batch // size, "micro_batch_size": size})


@dataclass(frozen=True)
class Sized:
    """A training case at one size of micro-batch: what weft chooses from, and what the known schedules can run on."""

    case: Case
    everything: Sequence[CasePlacement]
    refused: Mapping[str, str]


def sized(name: str, size: int) -> Sized:
    """A case in micro-batches of ``size`` sequences; raises ``Infeasible`` where nothing fits."""
    spec = spec_of(name, **TRAINED[name], training={
        "micro_batches": BATCH // size, "micro_batch_size": size, "recompute": True, "gradient_bytes": 2,
        "optimizer_bytes_per_parameter": 4})
    space = space_of(spec, family_costs(spec))
    assert space is not None
    both_ways, refused = shape_candidates(space, ("x",), ("full",))
    chunked = [candidate for candidate in shape_candidates(space, ("m", "nn"), ("full",), CHUNKS)[0]
               if candidate.chunks is not None]
    case = case_of(spec)
    case = replace(case, placements=(*case.placements, *(shape_placement(one, space) for one in chunked)))
    return Sized(case, [*case.placements, *(shape_placement(candidate, space) for candidate in both_ways)],
                 dict(case.refused) | {entry.shape: entry.reason for entry in refused})


def plan(name: str, effort: float, sizes: Sequence[int]) -> Row:
    """One training case: every rival on its best placement and size of micro-batch, and weft."""
    began = time.process_time()
    at: dict[int, Sized] = {}
    gpus = TRAINED[name]["gpus"]
    why = ""
    for size in sizes:
        try:
            at[size] = sized(name, size)
        except Infeasible as refusal:
            why = why or str(refusal)
    if not at:
        return {"gpus": gpus, "refused": why}
    rivals: dict[str, Row] = {}
    for title, (known, shapes) in RIVALS.items():
        found = {size: _best(known, shapes, one.everything, one.case, one.refused) for size, one in at.items()}
        size = min(found, key=lambda size: found[size].get("seconds", math.inf))
        rivals[title] = found[size] | ({"micro_batch_size": size} if "seconds" in found[size] else {})
    times = {title: row["seconds"] for title, row in rivals.items() if "seconds" in row}
    size = rivals[min(times, key=lambda title: times[title])]["micro_batch_size"] if times else min(at)
    best = solve_case(at[size].case, SearchOptions(3600.0, effort))
    return {
        "gpus": gpus, "batch": BATCH, "effort": effort, "sizes": sorted(at), "rivals": rivals,
        "weft": {"seconds": best.makespan, "placement": best.solver["placement"], "micro_batch_size": size,
                 "bound_over_placements": best.solver.get("bound_over_placements", best.makespan_bound)},
        "speedup": {title: value / best.makespan for title, value in times.items()},
        "cpu_seconds": round(time.process_time() - began, 1)}


def _best(name: str, shapes: tuple[str, ...], placements: Sequence[CasePlacement], case: Case,
          why: Mapping[str, str]) -> Row:
    """The fastest that fits of known schedule ``name`` on all placements of ``shapes``; else why there is none."""
    found: list[tuple[bool, float, str]] = []
    for placement in placements:
        if _shape(placement) in shapes:
            try:
                schedule = baseline(name, placement.problem, case.micro_batches // placement.replicas)
            except NotApplicable:
                continue
            found.append((bool(violations(schedule, limit=1)), schedule.makespan, placement.title))
    if not found:
        reasons = [why[shape] for shape in shapes if shape in why]
        return {"none": reasons[-1] if reasons else "it can run on no placement"}
    out, seconds, title = min(found)
    return {"none": f"out of memory on {title}"} if out else {"seconds": seconds, "placement": title}


def _shape(placement: CasePlacement) -> str:
    """The shape of a placement, from the name of its problem."""
    return placement.problem.name.rpartition("(")[2].partition(",")[0].rstrip(")")


def infer(batch: int, text: int, effort: float) -> Row:
    """One batch through Flava: tensor parallelism and a chain of stages against weft, each with its best size of
    micro-batches."""
    began = time.process_time()
    best: dict[str, Row] = {}
    least: float | None = None
    for size in (2**k for k in range(batch.bit_length())):
        if batch // size > 16:
            continue
        case = case_of(flava(batch, text, size))
        found: dict[str, tuple[float, str]] = {}
        for title, shapes in (("tensor parallel", ("tensor",)), ("pipeline", ("chain", "groups"))):
            row = _best("gpipe", shapes, case.placements, case, {})
            if "seconds" in row:
                found[title] = (row["seconds"], row["placement"])
        own = solve_case(case, SearchOptions(600.0, effort))
        found["weft"] = (own.makespan, str(own.solver["placement"]))
        bound = float(own.solver.get("bound_over_placements", own.makespan_bound))
        least = bound if least is None else min(least, bound)
        for title, (seconds, placement) in found.items():
            if title not in best or seconds < best[title]["seconds"]:
                best[title] = {"seconds": seconds, "placement": placement, "micro_batch_size": size}
    return {"batch": batch, "text": text, **best, "bound_over_placements": least,
            "less_latency": {title: 1 - best["weft"]["seconds"] / best[title]["seconds"]
                             for title in ("tensor parallel", "pipeline") if title in best},
            "cpu_seconds": round(time.process_time() - began, 1)}


@script("tessel_evaluation.json", only="", effort=10.0, sizes=SIZES, batches=FLAVA_BATCHES)
def main(options: Namespace, record: Record) -> None:
    report: dict[str, Row] = {"training": {}, "inference": {}}
    for name in TRAINED:
        if re.search(options.only, name):
            report["training"][name] = plan(name, options.effort, options.sizes)
            print(name, report["training"][name].get("cpu_seconds"), flush=True)
            record.write(report)
    for text, batch in itertools.product(TEXTS, options.batches):
        name = f"Flava, texts of {text}, batch {batch}"
        if re.search(options.only, name):
            report["inference"][name] = infer(batch, text, options.effort / 50)
            print(name, report["inference"][name]["cpu_seconds"], flush=True)
            record.write(report)
