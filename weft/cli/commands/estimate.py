"""``weft estimate``: what stages hold and cost, before any search."""

from __future__ import annotations

import argparse

from weft import api
from weft.cli.lib.command import GOOD, NO, Command
from weft.cli.lib.output import show

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", metavar="SPEC", help="a model spec (.yaml), or a Hugging Face config.json")
    for name, meaning in (("gpus", "how many GPUs"), ("micro-batch", "samples in a micro-batch (default 1)"),
                          ("sequence", "tokens of a sequence (default 4096, or the most it was made for)"),
                          ("batch", "samples in a step (default 4 micro-batches for each GPU)")):
        command.add_argument(f"--{name}", type=int, metavar="N", help=f"of a config.json: {meaning}")
    command.add_argument("--device", metavar="NAME", help="of a config.json: the GPUs' kind, such as h100")
    command.add_argument("--shape", choices=("chain", "v", "loop", "wave"),
                         help="how stages are placed on the GPUs (default: the first that SPEC allows)")
    command.add_argument("--json", action="store_true", help="print the numbers as JSON")


def _run(options: argparse.Namespace) -> int:
    found = api.estimate(options.spec, shape=options.shape, gpus=options.gpus, device=options.device,
                         micro_batch=options.micro_batch, sequence=options.sequence, batch=options.batch)
    show(found, options.json, width=180)
    return GOOD if found.fits else NO


COMMAND = Command(
    name="estimate",
    summary="say what each stage needs and takes, before any search",
    paragraphs=(
        "SPEC is a model spec in YAML: a family of the zoo, a Hugging Face config.json, or layers with their costs.",
        "A config.json may also stand in place of SPEC, with what it runs on: the shallowest pipelines that fit, and "
        "replicas of them on the GPUs left.",
        "Stages are cut as for 1F1B. The first table has, for each stage, parameters, activations per micro-batch, "
        "micro-batches in flight, workspace, bytes sent, and times; the second has, for each GPU, weights, gradients, "
        "optimizer state, activations and workspace beside its memory. Each number has its origin: measured, "
        "interpolated, modelled or given; for modelled ones the known error is stated. Exit status 1: the model does "
        "not fit.",
    ),
    example="weft estimate t5.yaml\nweft estimate gpt.yaml --shape v --json\n"
            "weft estimate config.json --gpus 64 --device h100",
    arguments=_arguments,
    run=_run,
)
