"""GPT-1.3B on four V100: what memory buys in tokens per second, from 14 to 32 GiB, with 8 and 16 micro-batches.

    python -m experiments.sweep_gpt [--effort SECONDS] [--workers N]

Writes experiments/sweep_gpt/sweep.json and front.png. Solved points are cached: an interrupted run goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import weft
from weft.progress import SweepLines

HOME = Path(__file__).resolve().parent
SPEC = HOME / "specs" / "gpt-1.3b-v100x4.yaml"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--effort", type=float, default=2.0, help="deterministic seconds for each point")
    arguments.add_argument("--workers", type=int, help="processes (default: one a core)")
    options = arguments.parse_args()
    target = HOME / "sweep_gpt"
    target.mkdir(exist_ok=True)
    found = weft.sweep(SPEC, memory=[f"{size} GiB" for size in range(14, 34, 2)], micro_batches=[8, 16],
                       effort=options.effort, workers=options.workers, on_progress=SweepLines())
    for name in ("sweep.json", "front.png"):
        found.save(target / name, title="GPT-1.3B on four V100: tokens per second against GiB per GPU")
    print(found)


if __name__ == "__main__":
    main()
