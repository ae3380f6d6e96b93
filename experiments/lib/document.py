"""docs/EXPERIMENTS.md, from the catalogue, the scripts' first sentences and the claims that the README makes."""

from __future__ import annotations

from experiments.lib.catalogue import EXPERIMENTS, Experiment
from experiments.lib.claims import CLAIMS
from experiments.lib.provenance import ROOT

__all__ = ["DOCUMENT", "document"]

DOCUMENT = ROOT / "docs" / "EXPERIMENTS.md"
_HEAD = """# Experiments

A folder a room, what they share in `experiments/lib`, what they wrote in `experiments/results`. A claim is a sentence
of the README with its numbers, which are read from the file: where a file bears it out no more, this page cannot be
written, and a test fails. "-" is claimed nowhere.

Written by `python -m experiments --docs`; a test holds it against the files. `python -m experiments` says how old the
numbers are (in commits that changed what is measured, under whatever name it had), `--rerun stale` runs again what is
stale. Each file's `provenance` names its commit, command and machine.

| script | what is asked | claim | result |
|---|---|---|---|
"""


def document() -> str:
    """The text of the document."""
    return _HEAD + "".join(_row(experiment) for experiment in EXPERIMENTS.values())


def _row(experiment: Experiment) -> str:
    claims = "; ".join(claim.told() for claim in CLAIMS if claim.name == experiment.name) or "-"
    script = f"[{experiment.script}](../experiments/{experiment.script})<br>`{experiment.command}`"
    result = f"[{experiment.name}.json](../experiments/results/{experiment.name}.json)"
    return f"| {script} | {_cell(experiment.title)} | {_cell(claims)} | {result} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
