"""The experiments: what there is, how long each took, and running them again.

    python -m experiments                    # what there is: measured when, at which commit, in how many minutes
    python -m experiments --all              # all again, one after the other; told before: how long each took last time
    python -m experiments --rerun NAME ...   # some again
    python -m experiments --check [NAME ...] # small reruns: which files have figures that no longer come out?
    python -m experiments --docs             # docs/RESULTS.md and docs/COMMANDS.md, from the files and the help

What takes times of the clock runs first, and only while the machine has nothing else to do. An experiment is stale when
a figure of its file no longer comes out.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from experiments.lib import commands, results
from experiments.lib.catalogue import EXPERIMENTS, Experiment
from experiments.lib.check import checked
from experiments.lib.provenance import ROOT
from weft.solver.io.writing import write_atomically

#: Of the load average: above it a machine is not quiet. What ran before leaves it within :data:`PATIENCE` seconds.
QUIET, PATIENCE = 0.5, 300
#: Differences that are printed of one experiment.
SHOWN = 3


def listed() -> Table:
    """What there is, and what its last run took."""
    table = Table(title="Experiments")
    for heading in ("file", "measured", "at", "minutes", "machine"):
        table.add_column(heading, justify="right" if heading == "minutes" else "left")
    for name, experiment in EXPERIMENTS.items():
        told = experiment.content["provenance"]
        table.add_row(name, told["date"], told["commit"][:8], _minutes(experiment),
                      told["machine"].get("gpu", told["machine"]["cpu"]))
    return table


def _minutes(experiment: Experiment) -> str:
    return "?" if experiment.minutes is None else f"{experiment.minutes:.0f}"


def total(chosen: Sequence[Experiment]) -> str:
    """What all took, in a sentence."""
    known = [experiment.minutes for experiment in chosen if experiment.minutes is not None]
    unknown = len(chosen) - len(known)
    return f"{sum(known):.0f} minutes last time" + f", and {unknown} of unknown length" * bool(unknown)


def rerun(chosen: Sequence[Experiment]) -> int:
    """Run all again, one after the other; 1 if one fails or the machine is not what it needs."""
    ordered = sorted(chosen, key=lambda experiment: not experiment.quiet)
    for experiment in ordered:
        print(f"{_minutes(experiment):>6} minutes  {experiment.command}")
    print(total(ordered), flush=True)
    failed = []
    for experiment in ordered:
        if experiment.gpu and not has_gpu():
            failed.append(f"{experiment.name} needs a GPU")
        elif experiment.quiet and not is_quiet():
            failed.append(f"{experiment.name} needs a quiet machine: the load is {os.getloadavg()[0]:.1f}")
        elif subprocess.run([sys.executable, *shlex.split(experiment.command)[1:]], cwd=ROOT, check=False).returncode:
            failed.append(f"{experiment.name} failed: {experiment.command}")
    print("\n".join(failed) or "all done")
    return int(bool(failed))


def check(chosen: Sequence[Experiment]) -> int:
    """Rerun all in small that do not depend on the machine; 1 if a figure of a file no longer comes out."""
    stale = 0
    for experiment in chosen:
        if experiment.check is not None:
            found = checked(experiment)
            stale += bool(found)
            print(f"{experiment.name}: {'as in the file' if not found else f'{len(found)} differ'}",
                  *found[:SHOWN], sep="\n  ", flush=True)
    return int(stale > 0)


def has_gpu() -> bool:
    """Whether torch finds a GPU on this machine."""
    import torch

    return torch.cuda.is_available()


def is_quiet() -> bool:
    """Whether the machine does nothing else, after some minutes if need be."""
    for _ in range(PATIENCE // 10):
        if os.getloadavg()[0] <= QUIET:
            return True
        time.sleep(10)
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    """List, run again, or document."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--all", action="store_true", help="run all again")
    parser.add_argument("--rerun", nargs="+", metavar="NAME", choices=EXPERIMENTS, help="run some again")
    parser.add_argument("--check", nargs="*", metavar="NAME", help="run all, or some, again in small, and compare")
    parser.add_argument("--docs", action="store_true", help="write docs/RESULTS.md and docs/COMMANDS.md")
    options = parser.parse_args(arguments)
    if options.docs:
        for document in (commands, results):
            write_atomically(document.PAGE, document.page())
        return 0
    if options.check is not None:
        return check([EXPERIMENTS[name] for name in options.check or EXPERIMENTS])
    if options.all or options.rerun:
        return rerun([EXPERIMENTS[name] for name in options.rerun or EXPERIMENTS])
    Console(width=130).print(listed())
    print(total([*EXPERIMENTS.values()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
