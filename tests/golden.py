"""Golden runs: what searches with ``effort`` and ``seed`` find, number by number.

A change that only moves code leaves all of them equal; one that changes a search says which have changed, and why.
``python -m tests.golden`` compares every run with ``golden.json`` beside it, ``--write`` writes that file anew (all
runs take about three CPU minutes), ``--only TEXT`` takes those whose name holds it. The test of this file takes a few.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import weft
from experiments.lib import generated
from experiments.lib.placement_graphs import bert_like, inception_like, nasnet_like
from experiments.period import scale
from tests.support.builders import loop, pipeline, v
from tests.support.paths import DATA, SPECS
from weft.models.spec.spec import Spec, parse_spec
from weft.solver.cpsat.budget import Budget
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.search import find_period
from weft.solver.schedule import Schedule
from weft.solver.step.search import Infeasible, solve
from weft.solver.ticks import TickProblem

__all__ = ["GOLDEN", "RUNS", "differences"]

GOLDEN = DATA / "golden.json"
#: A wall limit that no run comes near: only the effort ends a search, so a busy machine changes nothing.
UNLIMITED = 3600.0

_SPEC = """
name: golden
model: {{family: {family}, {sizes}}}
costs: v100
cluster: {{gpus: 4, memory: {memory}, links: nvlink-v100}}
training: {{micro_batches: 8, micro_batch_size: 2}}
"""


def _digest(schedule: Schedule) -> str:
    """Which operation starts when, in short."""
    rows = sorted((op.block, op.micro_batch, round(op.start, 9)) for op in schedule.operations)
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def _said(schedule: Schedule) -> dict[str, Any]:
    return {"makespan": schedule.makespan, "bound": schedule.makespan_bound, "period": schedule.period,
            "period_bound": schedule.period_bound, "status": schedule.status, "operations": _digest(schedule)}


def _solved(number: int) -> dict[str, Any]:
    problem, micro_batches = generated.problem(generated.suite(540, 1)[number])
    try:
        return _said(solve(problem, micro_batches, time_limit=UNLIMITED, effort=0.3, seed=number))
    except Infeasible as refusal:
        return {"refused": type(refusal).__name__}


def _uniform(devices: list[int], split: bool, memory: int, micro_batches: int) -> dict[str, Any]:
    problem = pipeline(devices, backward=None if split else 2, split=(1, 1) if split else None, memory=memory)
    return _said(solve(problem, micro_batches, time_limit=UNLIMITED, effort=0.5, seed=1))


def _period(shape: str, devices: int, split: bool, cap: float) -> dict[str, Any]:
    instance = TickProblem.of(scale.problem(shape, devices, split, cap, 0))
    found = find_period(instance, one_at_a_time(instance), Budget(seconds=UNLIMITED, deterministic=1.0))
    return {"period": str(found.best.period), "bound": str(found.refuted),
            "starts": hashlib.sha256(repr(found.best.starts).encode()).hexdigest()[:16]}


def _latency(number: int, slower: Fraction) -> dict[str, Any]:
    problem, _ = generated.problem(generated.suite(540, 1)[number])
    instance = TickProblem.of(problem)
    found = find_period(instance, one_at_a_time(instance), Budget(seconds=UNLIMITED, deterministic=0.3))
    floor = found.best.period * instance.tick * slower
    serving = weft.latency(problem, period=float(floor), micro_batches=6, time_limit=UNLIMITED, effort=1.0, seed=2)
    return {"points": [[point.period, point.latency, point.bound, _digest(point.schedule)]
                       for point in serving.points]}


def _placed(graph: Callable[[], Any], **options: Any) -> dict[str, Any]:
    answer = weft.place(graph(), time_limit=UNLIMITED, effort=1.0, seed=3, **options).to_json()
    names = [(stage["device"], sorted(stage["nodes"])) for stage in answer["stages"]]
    kept: dict[str, Any] = {key: answer[key] for key in ("objective", "bound", "status", "depth", "depth_bound")
                            if key in answer}
    return {**kept, "stages": hashlib.sha256(repr(names).encode()).hexdigest()[:16]}


def _planned(spec: str, **options: Any) -> dict[str, Any]:
    return _said(weft.solve(SPECS / spec, time_limit=UNLIMITED, effort=1.0, seed=4, **options))


def _spec(family: str, sizes: str, memory: str) -> Spec:
    return parse_spec(_SPEC.format(family=family, sizes=sizes, memory=memory))


def _family(family: str, sizes: str, memory: str) -> dict[str, Any]:
    return _said(weft.solve(_spec(family, sizes, memory), time_limit=UNLIMITED, effort=1.0, seed=5))


def _runs() -> dict[str, Callable[[], dict[str, Any]]]:
    runs: dict[str, Callable[[], dict[str, Any]]] = {}
    for number in range(72):
        runs[f"generated {number}"] = partial(_solved, number)
    for name, devices in (("chain", [0, 1, 2, 3]), ("V", v(4)), ("loop", loop(4))):
        for split in (False, True):
            for memory in (4, 8):
                runs[f"uniform {name}, {'split' if split else 'whole'}, cap {memory}"] = partial(
                    _uniform, devices, split, memory, 6)
    for shape in scale.SHAPES:
        for split in (False, True):
            runs[f"period {shape}, {'split' if split else 'whole'}"] = partial(_period, shape, 8, split, 1.25)
    runs["period V2 on 32"] = partial(_period, "V2", 32, False, 2.0)
    for number in (0, 3, 5, 8):
        runs[f"latency {number}"] = partial(_latency, number, Fraction(5, 4))
    for name, graph in (("inception", partial(inception_like, 6, blocks=5)), ("bert", partial(bert_like, 6, layers=3)),
                        ("nasnet", partial(nasnet_like, 4, cells=6)),
                        ("tight inception", partial(inception_like, 8, blocks=5, memory=1.2))):
        runs[f"place {name}"] = partial(_placed, graph)
    runs["place inception, latency"] = partial(_placed, partial(inception_like, 4, blocks=3), latency=True)
    uno = "features: [256, 256, 256], tower: [512, 512], joint: [64]"
    runs["place spec"] = partial(_placed, partial(_spec, "uno", uno, "16 GiB"))
    runs["place spec as a graph of stages"] = partial(_placed, partial(_spec, "uno", uno, "16 GiB"), stage_graph=True)
    runs["place spec as replicated stages"] = partial(_placed, partial(_spec, "uno", uno, "16 GiB"), stage_graph=True,
                                                      replicate=True)
    for text in ("tiny.yaml", "gpt-1.3b-v100x4.yaml", "gpt-1.3b-inference.yaml"):
        runs[f"spec {text}"] = partial(_planned, text)
    gpt = "layers: 12, hidden: 1024, heads: 16, vocabulary: 32000, sequence: 1024"
    runs["family gpt"] = partial(_family, "gpt", gpt, "16 GiB")
    runs["family gpt, tight"] = partial(_family, "gpt", gpt, "4 GiB")
    return runs


RUNS: Mapping[str, Callable[[], dict[str, Any]]] = _runs()


def differences(name: str, golden: Mapping[str, Any]) -> list[str]:
    """What run ``name`` says now and did not then, a line an entry."""
    now, then = json.loads(json.dumps(RUNS[name]())), golden.get(name, {})
    return [f"{name}: {key} is {now.get(key)!r}, was {then.get(key)!r}"
            for key in sorted({*now, *then}) if now.get(key) != then.get(key)]


def main() -> int:
    """Compare, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write golden.json anew")
    parser.add_argument("--only", default="", metavar="TEXT", help="the runs whose name holds TEXT")
    options = parser.parse_args()
    names = [name for name in RUNS if options.only in name]
    golden: dict[str, Any] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if options.write:
        golden |= {name: RUNS[name]() for name in names}
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(json.dumps({name: golden[name] for name in RUNS if name in golden}, indent=1) + "\n")
        print(f"{len(names)} runs written to {GOLDEN.name}")
        return 0
    changed = [line for name in names for line in differences(name, golden)]
    print("\n".join([*changed, f"{len(names)} runs, {len({line.split(':')[0] for line in changed})} changed"]))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
