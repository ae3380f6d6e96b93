"""``weft train``: a model of yours trained as a pipeline, in one call."""

from __future__ import annotations

import argparse

from weft import api
from weft.cli.lib.arguments import count, memory, positive
from weft.cli.lib.command import Command
from weft.cli.lib.output import require_torch

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("setup", metavar="FILE.py:FUNCTION", nargs="?",
                         help="the function that gives model, example, loss, optimizer and data (or MODULE:FUNCTION)")
    command.add_argument("--example", metavar="NAME", help="in its place a small model: gpt, or with transformers "
                         "gpt2, llama, bert, t5, vit, mixtral")
    command.add_argument("--gpus", type=count, metavar="N", help="ranks, on this machine (default: 2)")
    command.add_argument("--steps", type=count, default=10, metavar="N", help="batches (default: 10)")
    command.add_argument("--micro-batches", type=count, metavar="N",
                         help="micro-batches per batch (default: as in the function, or 4)")
    command.add_argument("--schedule", metavar="NAME", help="a published schedule, or a schedule's file (default: the "
                         "best that a short search finds)")
    command.add_argument("--memory", type=memory, metavar="SIZE",
                         help="memory of each rank, as 16GiB (default: no limit on CPUs, a GPU's own memory)")
    command.add_argument("--spec", metavar="FILE", help="what the machine is: a YAML file with cluster and placement "
                         "(default: measured)")
    command.add_argument("--time-limit", type=positive, default=10.0, metavar="SECONDS",
                         help="limit of the search for a schedule (default: 10)")
    command.add_argument("--timeout", type=positive, default=60.0, metavar="SECONDS",
                         help="stop all ranks if one makes no progress for this time (default: 60)")
    command.add_argument("--checkpoint", metavar="FOLDER", help="save there after the last batch, and when Ctrl-C or "
                         "SIGTERM comes; go on from what is there")
    command.add_argument("--every", type=count, metavar="N", help="with --checkpoint, save after every N batches too")
    command.add_argument("--draw", metavar="FILE", help="draw the measured step beside the planned one there")
    command.add_argument("--json", action="store_true", help="print losses and report as JSON")


def _run(options: argparse.Namespace) -> int:
    require_torch("train")
    if (options.setup is None) == (options.example is None):
        raise ValueError("say what to train: either FILE.py:FUNCTION, or --example NAME")
    if options.gpus is not None and options.gpus < 1:
        raise ValueError(f"--gpus is {options.gpus}, it must be at least 1")
    if options.every is not None and (options.checkpoint is None or options.every < 1):
        raise ValueError(f"--every is {options.every}, it must be at least 1, and stand beside --checkpoint")
    return api.train(options.setup, example=options.example, gpus=options.gpus, steps=options.steps,
                     micro_batches=options.micro_batches, schedule=options.schedule, memory=options.memory,
                     spec=options.spec, time_limit=options.time_limit, timeout=options.timeout, figure=options.draw,
                     as_json=options.json, checkpoint=options.checkpoint, every=options.every, on_line=_told)


def _told(line: str) -> None:
    print(line, flush=True)


COMMAND = Command(
    name="train",
    summary="train your PyTorch model as a pipeline",
    paragraphs=(
        "Captures the model, measures it, cuts it into stages, searches for a schedule and trains: one process a rank, "
        "started here, or by torchrun. The function gives a mapping with module, args (an example batch), loss, "
        "optimizer and data; weft.pipeline does the same from Python.",
    ),
    example="weft train model.py:setup --gpus 2 --steps 10\nweft train --example gpt",
    arguments=_arguments,
    run=_run,
    # Ranks join and wait in native code; weft.runtime.ranks.watch hears signals there.
    stops=False,
)
