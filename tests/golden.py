"""Golden runs: what searches with ``effort`` and ``seed`` find, and what is derived without a search, number by number.

A change that only moves code leaves all of them equal; one that changes a search says which have changed, and why. What
they say names no class of the product, and digests hold no sentence of it: a renaming changes nothing.
``python -m tests.golden`` compares every run with ``golden.json`` beside it, ``--write`` writes that file anew (all
runs take about three CPU minutes), ``--only TEXT`` takes those whose name holds it, ``--torch`` those that need torch
too. The test of this file takes a few. Every run repeats exactly, on any machine and for any hashes of strings.

The groups, each a file of :mod:`tests.support.golden`:

- ``plain``: whole steps of drawn and of uniform problems, for makespan, span and rate; steady states; latencies at a
  floor.
- ``wide``: problems with choices, lanes, jobs and classes, alone and two at once; the shipped problems; choices for
  span and rate; sequences of given and of any classes, and reordered; jobs that share GPUs, with and without limits.
- ``placements``: operator graphs as rows and as graphs of stages, for load, depth and latency, replicated, with slack;
  graphs, sizes and order of a step together; plans of memory by both rules.
- ``specs``: specs of training and inference and what their placements and cuts come to; overlap; fronts of latency and
  a latency at a floor; an estimate.
- ``plans``: plans of one's own: communications, prices, each rank's instructions, splits found, orders searched;
  layouts converted; programs of computation and communication: all that passes reach, each rank's steps, the best.
- ``programs``: published schedules on their problems; instruction lists of schedules of training, inference, jobs,
  lanes and collectives; files for other tools; what limits a schedule.
- ``trained`` (``--torch``): captured modules: where they may be cut, the stages of a cut; on two ranks: losses,
  gradients and weights of pipelines, plans of one's own, programs of communication, sliced optimizers and shared jobs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from tests.support.golden import placements, plain, plans, programs, specs, trained, wide
from tests.support.golden.said import Run
from tests.support.paths import DATA

GOLDEN = DATA / "golden.json"

#: Without torch, by name; and those with it.
RUNS: Mapping[str, Run] = {name: run for group in (plain, wide, placements, specs, plans, programs)
                           for name, run in group.runs()}
TRAINED: Mapping[str, Run] = dict(trained.runs())
_ALL = {**RUNS, **TRAINED}


def differences(name: str, golden: Mapping[str, Any]) -> list[str]:
    """What run ``name`` says now and did not then, a line an entry."""
    now, then = json.loads(json.dumps(_ALL[name]())), golden.get(name, {})
    return [f"{name}: {key} is {now.get(key)!r}, was {then.get(key)!r}"
            for key in sorted({*now, *then}) if now.get(key) != then.get(key)]


def main() -> int:
    """Compare, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write golden.json anew")
    parser.add_argument("--only", default="", metavar="TEXT", help="the runs whose name holds TEXT")
    parser.add_argument("--torch", action="store_true", help="the runs that need torch too")
    options = parser.parse_args()
    names = [name for name in (_ALL if options.torch else RUNS) if options.only in name]
    golden: dict[str, Any] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if options.write:
        golden |= {name: _ALL[name]() for name in names}
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(json.dumps({name: golden[name] for name in _ALL if name in golden}, indent=1) + "\n")
        print(f"{len(names)} runs written to {GOLDEN.name}")
        return 0
    changed = [line for name in names for line in differences(name, golden)]
    print("\n".join([*changed, f"{len(names)} runs, {len({line.split(':')[0] for line in changed})} changed"]))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
