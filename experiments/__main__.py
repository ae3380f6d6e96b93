"""The experiments: how old their numbers are, and running those again that are stale.

    python -m experiments                    # what there is, and how many commits have changed what it measures since
    python -m experiments --rerun stale      # or NAME ...; told before: about how many minutes
    python -m experiments --docs             # docs/RESULTS.md and docs/COMMANDS.md, from the files and the help

Stale is what was measured at an unknown commit, on a changed working tree, in parts, or before the last change to what
it measures. What takes times of the clock runs first, and only while the machine has nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.lib import commands, results
from experiments.lib.catalogue import EXPERIMENTS, Experiment
from experiments.lib.history import Changes
from experiments.lib.provenance import NOT_RECORDED, ROOT, git
from weft.solver.io.writing import write_atomically

#: Of the load average: above it a machine is not quiet. What ran before leaves it within :data:`PATIENCE` seconds.
QUIET, PATIENCE = 0.5, 300


@dataclass(frozen=True)
class Age:
    """``commits`` that have changed what an experiment measures since it ran, renames and mended imports apart
    (:mod:`experiments.lib.history`); ``None`` where git cannot tell."""

    commits: int | None
    changed: bool
    provenance: dict[str, Any]

    @property
    def stale(self) -> bool:
        """Whether the numbers may be others today."""
        return self.commits != 0 or self.changed or self.provenance.get("dirty") is True or self.partial

    @property
    def partial(self) -> bool:
        """Whether a later run wrote a part anew."""
        return bool(self.provenance.get("partial"))

    def __str__(self) -> str:
        told = "unknown" if self.commits is None else f"{self.commits} commit{'s' * (self.commits != 1)}"
        notes = [note for note, said in (("in parts", self.partial), ("ran on changed files",
                 self.provenance.get("dirty") is True), ("changes not committed", self.changed)) if said]
        return ", ".join([told, *notes])


def age_of(experiment: Experiment) -> Age:
    """How old the numbers of ``experiment`` are."""
    told = json.loads(experiment.file.read_text())["provenance"] if experiment.file.exists() else {}
    commit = told.get("commit", NOT_RECORDED)
    count = None if commit == NOT_RECORDED else changes_since(commit).count(experiment.measures)
    return Age(count, bool(git("status", "--porcelain", "--", *experiment.measures)), told)


@cache
def changes_since(commit: str) -> Changes:
    """What has changed after ``commit``, read once."""
    return Changes(ROOT, commit)


def minutes_of(experiment: Experiment, age: Age) -> float:
    """About how long ``experiment`` takes: what its last run took, else a guess."""
    took = age.provenance.get("minutes", {}).get("wall", NOT_RECORDED)
    return experiment.minutes if took == NOT_RECORDED else float(took)


def listed(ages: dict[str, Age]) -> Table:
    """What there is, and how old it is."""
    table = Table(title="Experiments, and the commits since that changed what they measure")
    for heading in ("file", "measured", "at", "age", "minutes", "machine"):
        table.add_column(heading, justify="right" if heading == "minutes" else "left")
    for name, age in ages.items():
        told = age.provenance
        table.add_row(name, told.get("date", "never"), told.get("commit", NOT_RECORDED)[:8], str(age),
                      f"{minutes_of(EXPERIMENTS[name], age):.0f}", told.get("machine", {}).get("cpu", NOT_RECORDED))
    return table


def rerun(names: Sequence[str], ages: dict[str, Age]) -> int:
    """Run ``names`` again, one after the other; 1 if one fails or the machine is not quiet enough for it."""
    chosen = sorted((EXPERIMENTS[name] for name in names), key=lambda experiment: not experiment.quiet)
    for experiment in chosen:
        print(f"{minutes_of(experiment, ages[experiment.name]):6.0f} minutes  {experiment.command}")
    total = sum(minutes_of(experiment, ages[experiment.name]) for experiment in chosen)
    print(f"{total:6.0f} minutes in all, about", flush=True)
    failed = []
    for experiment in chosen:
        if experiment.gpu and not has_gpu():
            failed.append(f"{experiment.name} needs a GPU")
        elif experiment.quiet and not is_quiet():
            failed.append(f"{experiment.name} needs a quiet machine: the load is {os.getloadavg()[0]:.1f}")
        elif subprocess.run([sys.executable, *shlex.split(experiment.command)[1:]], cwd=ROOT, check=False).returncode:
            failed.append(f"{experiment.name} failed: {experiment.command}")
    print("\n".join(failed) or "all done")
    return int(bool(failed))


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
    parser.add_argument("--rerun", nargs="+", metavar="NAME", choices=["stale", *EXPERIMENTS],
                        help="run again what is stale, or what is named")
    parser.add_argument("--docs", action="store_true", help="write docs/RESULTS.md and docs/COMMANDS.md")
    options = parser.parse_args(arguments)
    if options.docs:
        for document in (commands, results):
            write_atomically(document.PAGE, document.page())
        return 0
    ages = {name: age_of(experiment) for name, experiment in EXPERIMENTS.items()}
    if options.rerun is None:
        Console(width=130).print(listed(ages))
        stale = [name for name, age in ages.items() if age.stale]
        print(f"{len(stale)} of {len(ages)} are stale; --rerun stale takes about "
              f"{sum(minutes_of(EXPERIMENTS[name], ages[name]) for name in stale):.0f} minutes")
        return 0
    names = [name for name, age in ages.items() if age.stale] if "stale" in options.rerun else options.rerun
    return rerun(names, ages)


if __name__ == "__main__":
    sys.exit(main())
