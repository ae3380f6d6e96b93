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
                         help="how stages are placed on the GPUs (default: the first that SPEC allows)")
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
        "Stages are cut as for 1F1B. The first table has, for each stage, parameters, activations per micro-batch, "
        "micro-batches in flight, workspace, bytes sent, and times; the second has, for each GPU, weights, gradients, "
        "optimizer state, activations and workspace beside its memory. Each number has its origin: measured, "
        "interpolated, modelled or given; for modelled ones the known error is stated. Exit status 1: the model does "
        "not fit.",
    ),
    example="weft estimate t5.yaml\nweft estimate gpt.yaml --shape v --json",
    arguments=_arguments,
    run=_run,
)
