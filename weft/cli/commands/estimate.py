"""``weft estimate``: what stages hold and cost, before any search."""

from __future__ import annotations

import argparse

from weft import api
from weft.cli.lib.command import GOOD, NO, Command
from weft.cli.lib.output import show

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", metavar="SPEC", help="a model spec (.yaml)")
    command.add_argument("--shape", choices=("chain", "v", "loop", "wave"),
                         help="how stages lie on the GPUs (default: the first that SPEC allows)")
    command.add_argument("--json", action="store_true", help="print the numbers as JSON")


def _run(options: argparse.Namespace) -> int:
    found = api.estimate(options.spec, shape=options.shape)
    show(found, options.json, width=180)
    return GOOD if found.fits else NO


COMMAND = Command(
    name="estimate",
    summary="say what each stage needs and takes, before any search",
    paragraphs=(
        "SPEC is a model spec in YAML: a family of the zoo, a Hugging Face config.json, or layers with their costs.",
        "Stages are cut as for 1F1B. Told of each are parameters, activations a micro-batch, how many are in flight, "
        "workspace, what it sends, and its times; of each GPU weights, gradients, optimizer state, activations and "
        "workspace against its memory. Every number says where it comes from: measured, interpolated, modelled or "
        "given; modelled ones with the error they had where there was something to compare with. Exit status 1: "
        "it does not fit.",
    ),
    example="weft estimate t5.yaml\nweft estimate gpt.yaml --shape v --json",
    arguments=_arguments,
    run=_run,
)
