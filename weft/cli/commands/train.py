"""train your PyTorch model as a pipeline

Captures the model, measures it, cuts it into stages, searches for a schedule and trains: one process a rank, started
here, or by torchrun. The function gives a mapping with module, args (an example batch), loss, optimizer and data;
weft.pipeline does the same from Python.

example:
  weft train model.py:setup --gpus 2 --steps 10
  weft train --example gpt
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Annotated, TypedDict, Unpack

from weft.app.lib.arguments import Option, count, positive
from weft.app.lib.arguments import memory as memory_size
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import Call, command, words_of
from weft.cli.lib.output import require_torch

__all__ = ["run", "train"]


class TrainKeywords(TypedDict, total=False):
    """What :func:`train` may be told."""

    example: Annotated[str | None, Option("in its place a small model: gpt, or with transformers gpt2, llama, bert, "
                                          "t5, vit, mixtral", "NAME")]
    steps: Annotated[int, Option("batches (default: 10)", "N", count)]
    micro_batches: Annotated[int | None, Option("micro-batches per batch (default: as in the function, or 4)", "N",
                                                count)]
    schedule: Annotated[str | None, Option(
        "a published schedule, or a schedule's file (default: the best that a short search finds)", "NAME")]
    memory: Annotated[int | None, Option(
        "memory of each rank, as 16GiB (default: no limit on CPUs, a GPU's own memory)", "SIZE", memory_size)]
    spec: Annotated[PathLike | None, Option(
        "what the machine is: a YAML file with cluster and placement (default: measured)", "FILE")]
    time_limit: Annotated[float, Option("limit of the search for a schedule (default: 10)", "SECONDS", positive)]
    timeout: Annotated[float, Option("stop all ranks if one makes no progress for this time (default: 60)", "SECONDS",
                                     positive)]
    checkpoint: Annotated[PathLike | None, Option(
        "save there after the last batch, and when Ctrl-C or SIGTERM comes; go on from what is there", "FOLDER")]
    every: Annotated[int | None, Option("with --checkpoint, save after every N batches too", "N", count)]
    figure: Annotated[str | None, Option("draw the measured step beside the planned one there", "FILE",
                                         flags="--draw")]
    as_json: Annotated[bool, Option("print losses and report as JSON", flags="--json")]


def train(setup: Annotated[str | None, Option(
        "the function that gives model, example, loss, optimizer and data (or MODULE:FUNCTION)",
        "FILE.py:FUNCTION")] = None, *,
          gpus: Annotated[int | None, Option("ranks, on this machine (default: 2)", "N", count)] = None,
          on_line: Callable[[str], object] = lambda _: None, **options: Unpack[TrainKeywords]) -> int:
    """Train what ``setup``, ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``, gives, or a small ``example``, for ``steps``
    batches on ``gpus`` ranks of this machine (default: 2); the exit code.

    Under a launcher, this is one rank; otherwise the ranks are started here, as processes. The function gives a
    mapping: ``module``, ``args``, ``kwargs``, ``loss``, ``target``, ``data``, ``optimizer`` (which makes one of
    parameters), ``micro_batches`` and ``options``, further arguments of :func:`pipeline`. The other arguments are those
    of :func:`pipeline`, too; ``figure``: where the measured step is drawn. With the folder ``checkpoint``, training is
    saved there after the last batch, and after every ``every``; it goes on from what is there, up to ``steps`` in all;
    and Ctrl-C or SIGTERM ends it after the running step, with a checkpoint. On rank 0 ``on_line`` hears the loss of
    each step, and the report; ``as_json``: one line, ``{"losses": [...], "report": {...}}``.
    """
    from weft.app.pipeline.planning.spec import load_machine_spec
    from weft.app.train.setup import require_setup
    from weft.app.train.train import TrainOptions, rank_command, train_rank
    from weft.runtime.ranks.launch import run_ranks

    if "RANK" in os.environ:
        return train_rank(TrainOptions(setup, **options), on_line)
    ranks = 2 if gpus is None else gpus
    require_setup(setup, options.get("example"))
    load_machine_spec(options.get("spec"), ranks)
    return run_ranks(ranks, rank_command(words_of(train, {"setup": setup, **options})),
                     patient=options.get("checkpoint") is not None)


@command(train, stops=False)  # ranks join and wait in native code; weft.runtime.ranks.watch hears signals there
def run(call: Call) -> int:
    require_torch("train")
    if (call.setup is None) == (call.example is None):
        raise ValueError("say what to train: either FILE.py:FUNCTION, or --example NAME")
    if call.every is not None and call.checkpoint is None:
        raise ValueError(f"--every is {call.every}, it must be at least 1, and stand beside --checkpoint")
    code: int = call(on_line=functools.partial(print, flush=True))
    return code
