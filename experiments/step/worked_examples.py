"""Examples whose answers can be worked out by hand: collectives in chunks, and two jobs on one GPU and its network.

    python -m experiments.step.worked_examples

*Chunks.* A computation, an all-reduce of its result on the network and what follows, all in n chunks, each of which
costs 20 more to launch: n of 1, 2, 4, 8, 16 is a choice. *Jobs.* Two jobs compute and then use the network, each step
after the one before; the least time in which both make a step. Writes results/worked_examples.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from weft.solver.choices.solve import solve_wide
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.judge.validate import validate
from weft.solver.problem import BlockKind, Device
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem

#: Computation, all-reduce, what follows.
CHUNKED = ((1000, 1000, 100), (1000, 500, 50), (500, 1000, 50))
LAUNCH, COUNTS = 20, (1, 2, 4, 8, 16)
#: Computation and network of the first job and of the second one.
JOBS = (((8, 2), (8, 2)), ((6, 4), (6, 4)), ((5, 5), (5, 5)), ((4, 6), (8, 2)), ((6, 4), (9, 3)))
MICRO_BATCHES = 8
_DEVICES = (Device("gpu"), Device("network", lane_of="gpu"))


def chunked(compute: float, reduce: float, after: float) -> WideProblem:
    """The computation, the all-reduce and what follows in a number of chunks to be chosen."""
    blocks = []
    for count in COUNTS:
        when = {"chunks": str(count)}
        for i in range(count):
            name = f"{i} of {count}"
            before = (WideDependency(f"compute {i - 1} of {count}"),) if i else ()
            blocks += [
                WideBlock(f"compute {name}", BlockKind.OTHER, (0,), compute / count, after=before, when=when),
                WideBlock(f"reduce {name}", BlockKind.COLLECTIVE, (1,), reduce / count + LAUNCH,
                          after=(WideDependency(f"compute {name}"),), when=when),
                WideBlock(f"after {name}", BlockKind.OTHER, (0,), after / count,
                          after=(WideDependency(f"reduce {name}"),), when=when)]
    return WideProblem(f"{compute} / {reduce} / {after} in chunks", _DEVICES, tuple(blocks), time_unit="us",
                       choices={"chunks": tuple(map(str, COUNTS))})


def jobs(pairs: Sequence[tuple[float, float]]) -> WideProblem:
    """Jobs that compute and then use the network, each step after the one before."""
    blocks = []
    for number, (compute, network) in enumerate(pairs):
        job = f"job {number}"
        blocks += [WideBlock(f"compute {number}", BlockKind.OTHER, (0,), compute, job=job,
                             after=(WideDependency(f"network {number}", distance=1),)),
                   WideBlock(f"network {number}", BlockKind.OTHER, (1,), network, job=job,
                             after=(WideDependency(f"compute {number}"),))]
    return WideProblem(f"jobs {pairs}", _DEVICES, tuple(blocks))


def row(problem: WideProblem, micro_batches: int, objective: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """The answer, its bound and its CPU seconds."""
    began = time.process_time()
    found = solve_wide(problem, micro_batches, objective=objective, time_limit=60.0)
    seconds = time.process_time() - began
    validate(found)
    assert not violations_of_choice(found, problem)
    return {**told, "value": found.value, "bound": found.value_bound, "proven": found.value_gap == 0,
            "choices": dict(found.choices), "cpu_seconds": round(seconds, 2)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve all, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=RESULTS / "worked_examples.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    found = {
        "chunks": [row(chunked(*costs), 1, "makespan", {"costs": costs}) for costs in CHUNKED],
        "jobs": [row(jobs(pairs), MICRO_BATCHES, "rate", {"costs": pairs}) for pairs in JOBS]}
    print(json.dumps(found, indent=1))
    record.write(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
