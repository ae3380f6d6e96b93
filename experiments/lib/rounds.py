"""Experiments in rounds: in each round, every way to do one thing is timed once on the ranks of this machine.

What else the machine does then affects all ways alike, and what counts is the median over the rounds of the ratio
within a round. Such an experiment is a module that starts itself again as each rank, by :func:`on_ranks`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from experiments.lib.provenance import RESULTS, Record
from weft.runtime.ranks.launch import launch_local

__all__ = ["RoundsExperiment", "in_rounds", "on_ranks", "quartiles", "ratio"]

Found = TypeVar("Found")


def in_rounds(ways: Mapping[str, Callable[[], Found]], rounds: int) -> dict[str, list[Found]]:
    """What each of ``ways`` gave in each of ``rounds`` rounds; one more round before is for warming up."""
    found: dict[str, list[Found]] = {name: [] for name in ways}
    for number in range(-1, rounds):
        for name, way in ways.items():
            result = way()
            if number >= 0:
                found[name].append(result)
    return found


def on_ranks(module: str, ranks: int, files: Mapping[str, str], rounds: int, timeout: float) -> list[Any]:
    """What ``module``, started again as each rank, prints as JSON; it finds ``files``, texts by name, in its folder."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        ended = launch_local(ranks, [sys.executable, "-m", module, "--rank", folder, "--rounds", str(rounds)],
                             timeout=timeout)
    if any(end.code for end in ended):
        raise SystemExit("\n".join(end.errors for end in ended))
    return [json.loads(end.output) for end in ended]


def ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """The median over the rounds of one over the other."""
    return statistics.median(_ratios(ones, others))


def quartiles(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    """The lower and the upper quartile of the same."""
    low, _, high = statistics.quantiles(_ratios(ones, others), n=4, method="inclusive")
    return [low, high]


def _ratios(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ones, others, strict=True)]


@dataclass(frozen=True)
class RoundsExperiment:
    """Such an experiment: the module ``name`` of ``experiments.runtime``, whose docstring is ``doc``.

    ``compare`` starts the ranks and gives the result, of ``rounds`` rounds unless told otherwise; ``rank`` is one rank
    of it, with its folder and number of rounds; ``lines`` are the table of a result, which has failed where
    ``has_failed``. ``add_options`` adds to the command line.
    """

    name: str
    doc: str | None
    rounds: int
    compare: Callable[[argparse.Namespace], dict[str, Any]]
    rank: Callable[[Path, int], None]
    lines: Callable[[dict[str, Any]], Iterable[str]]
    has_failed: Callable[[dict[str, Any]], bool]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda _: None

    def main(self, arguments: Sequence[str] | None) -> int:
        """Be a rank, or compare, print, and write the result as JSON; the exit code."""
        parser = argparse.ArgumentParser(description=(self.doc or "").splitlines()[0])
        parser.add_argument("--rounds", type=int, default=self.rounds, metavar="N")
        parser.add_argument("--output", type=Path, default=RESULTS / f"{self.name}.json")
        self.add_options(parser)
        parser.add_argument("--rank", metavar="FOLDER", help=argparse.SUPPRESS)
        options = parser.parse_args(arguments)
        if options.rank is not None:
            self.rank(Path(options.rank), options.rounds)
            return 0
        record = Record(options.output)
        result = self.compare(options)
        print("\n".join(self.lines(result)))
        record.write(result)
        return int(self.has_failed(result))
