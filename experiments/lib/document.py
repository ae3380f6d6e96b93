"""docs/EXPERIMENTS.md, from the catalogue, the scripts' first sentences and the claims that the README makes."""

from __future__ import annotations

from experiments.lib.catalogue import EXPERIMENTS, Experiment
from experiments.lib.claims import CLAIMS
from experiments.lib.provenance import ROOT

__all__ = ["DOCUMENT", "document"]

DOCUMENT = ROOT / "docs" / "EXPERIMENTS.md"
_HEAD = """# Experiments

Written by `python -m experiments --docs`; a test holds it against the files. `python -m experiments` says how old the
numbers are and runs again what is stale. Each file's `provenance` names its commit, command and machine. A result is
what the README says of a file, read from it.

| what is asked | file | command | result |
|---|---|---|---|
"""


def document() -> str:
    """The text of the document."""
    return _HEAD + "".join(_row(experiment) for experiment in EXPERIMENTS.values())


def _row(experiment: Experiment) -> str:
    results = "; ".join(claim.told() for claim in CLAIMS if claim.name == experiment.name) or "-"
    file = f"[{experiment.name}.json](../experiments/results/{experiment.name}.json)"
    return f"| {_cell(experiment.title)} | {file} | `{experiment.command}` | {_cell(results)} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
