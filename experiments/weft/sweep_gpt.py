"""GPT-1.3B on four V100: what memory buys in tokens per second, from 14 to 32 GiB, with 8 and 16 micro-batches.

    python -m experiments.weft.sweep_gpt [--effort SECONDS] [--workers N] [--gib 14 16 ...]

Writes experiments/results/sweep_gpt/sweep.json and front.png. Solved points are cached: an interrupted run goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import weft
from experiments.lib.provenance import RESULTS, SPECS, Record
from weft.cli.lib.progress import SweepLines

SPEC = SPECS / "gpt-1.3b-v100x4.yaml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--effort", type=float, default=2.0, help="deterministic seconds for each point")
    parser.add_argument("--workers", type=int, help="processes (default: one a core)")
    parser.add_argument("--gib", type=int, nargs="*", default=[*range(14, 34, 2)], help="memory of each GPU")
    parser.add_argument("--micro-batches", type=int, nargs="*", default=[8, 16])
    parser.add_argument("--output", type=Path, default=RESULTS / "sweep_gpt" / "sweep.json",
                        help="the picture is beside it")
    options = parser.parse_args(arguments)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    record = Record(options.output)
    found = weft.sweep(SPEC, memory=[f"{size} GiB" for size in options.gib],
                       micro_batches=options.micro_batches, effort=options.effort, workers=options.workers,
                       on_progress=SweepLines())
    for name in (options.output.name, "front.png"):
        found.save(options.output.with_name(name), title="GPT-1.3B on four V100: tokens per second against GiB per GPU")
    record.write(record.kept())
    print(found)
    return 0


if __name__ == "__main__":
    main()
