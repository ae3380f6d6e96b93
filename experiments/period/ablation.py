"""What helps the period search: each idea left out in turn, on the same instances in one run.

    python -m experiments.period.ablation [--effort 2] [--only TEXT] [--output ablation.json]

Each row is one instance of :mod:`experiments.period.scale`; a column is the search without one idea. Shown are CPU
seconds, without what a published seed takes, as a multiple of the whole search's, and the gap that was left where the
search did not end within ``--effort`` deterministic seconds of CP-SAT and 10 seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from experiments.lib.provenance import RESULTS, Record
from experiments.period.scale import problem
from weft.solver.baselines import BASELINES
from weft.solver.cpsat.solve import Attempt, Budget, race
from weft.solver.period import decide as fixed_period
from weft.solver.period import search as repetend
from weft.solver.period.improvers.starts import one_at_a_time, periodic_seed
from weft.solver.period.modulo_model import ModuloModel
from weft.solver.period.periodic import Periodic
from weft.solver.period.reductions.barriers import Contraction
from weft.solver.relations import min_dist as closure_module
from weft.solver.ticks import TickProblem

INSTANCES = [("V", 16, False, 1.5), ("M", 8, True, 1.5), ("NN", 8, True, 1.5), ("K", 8, True, 1.25),
             ("V2", 8, False, 1.5), ("V2", 8, True, 1.25), ("loop2", 8, True, 1.25), ("loop2", 32, True, 1.0),
             ("loop2", 32, True, 2.0), ("V2", 32, False, 1.25)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--effort", default=2.0, type=float)
    parser.add_argument("--only", default="", help="instances whose name contains this")
    parser.add_argument("--output", default=RESULTS / "ablation.json", type=Path)
    options = parser.parse_args(arguments)
    record, rows = Record(options.output), []
    for shape, devices, split, cap in INSTANCES:
        case = problem(shape, devices, split, cap, seed=0)
        if options.only not in case.name:
            continue
        row: dict[str, Any] = {"name": case.name, "blocks": len(case.blocks)}
        for name in VARIANTS:
            with without(name):
                row[name] = _measure(TickProblem.of(case), name, options.effort)
        rows.append(row)
        whole = row["whole"]["cpu_seconds"]
        print(f"{case.name:28} {whole:6.2f} s" + "".join(
            f"  {name} x{row[name]['cpu_seconds'] / whole:.1f}"
            + ("" if row[name]["proven"] else f" ({row[name]['gap']:.1%})") for name in VARIANTS[1:]), flush=True)
    record.write({"effort": options.effort, "rows": rows})
    return 0


VARIANTS = ("whole", "no contraction", "no closure", "no average memory", "no presolve", "relaxation",
            "first configuration only", "no neighbourhoods", "no published seed", "no list schedule")


@contextmanager
def without(name: str) -> Iterator[None]:
    """The search without one idea."""
    def raced(change: Callable[[Attempt], Attempt]) -> Callable[..., Any]:
        return lambda attempts, *args: race([change(attempt) for attempt in attempts], *args)

    def dependencies_only(instance: TickProblem, period: int) -> Any:
        if period < instance.heaviest_load:
            return None
        widest = -(closure_module.lag_range(instance, period) + 1) * period
        return closure_module.longest_paths(instance, period, widest)

    replaced: dict[str, tuple[Any, str, Any]] = {
        "no contraction": (Contraction, "of", classmethod(lambda cls, instance: None)),
        "no closure": (fixed_period, "closure", dependencies_only),
        "no average memory": (ModuloModel, "_limit_averages", lambda model: None),
        "no presolve": (fixed_period, "race", raced(lambda attempt: replace(attempt, presolve=False))),
        "relaxation": (fixed_period, "race", raced(lambda attempt: replace(attempt, relaxation=True))),
        "first configuration only": (fixed_period, "race", raced(
            lambda attempt: replace(attempt, deterministic=0.0) if attempt.disjunctive else attempt)),
        "no neighbourhoods": (repetend, "improve_nearby", lambda *args, **options: None),
        "no list schedule": (repetend, "list_periodic", lambda *args: None),
    }
    if name not in replaced:
        yield
        return
    target, attribute, value = replaced[name]
    with patch.object(target, attribute, value):
        if name == "no closure":
            with patch.object(closure_module, "closure", value):
                yield
        else:
            yield


def _best_seed(instance: TickProblem) -> Periodic:
    """The shortest period that a published schedule shows; the search has a list scheduler of its own."""
    return min((periodic_seed(instance, name) for name in BASELINES if name != "greedy"), key=lambda seed: seed.period)


def _measure(instance: TickProblem, name: str, effort: float) -> dict[str, Any]:
    start: Periodic = one_at_a_time(instance) if name == "no published seed" else _best_seed(instance)
    began = time.process_time()
    found = repetend.find_period(instance, start, Budget(seconds=10.0, deterministic=effort))
    return {"period": float(found.best.period), "bound": float(found.bound), "proven": found.proven,
            "gap": float(found.best.period / found.bound) - 1, "cpu_seconds": round(time.process_time() - began, 3)}


if __name__ == "__main__":
    main()
