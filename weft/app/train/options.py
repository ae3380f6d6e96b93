"""The options of ``weft train``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from weft.app.lib.arguments import Option, count, positive
from weft.app.lib.arguments import memory as memory_size
from weft.app.lib.sources import PathLike


@dataclass(frozen=True)
class TrainOptions:
    """The arguments of :func:`weft.train`, each as it is described there."""

    setup: Annotated[str | None, Option(
        "the function that gives model, example, loss, optimizer and data (or MODULE:FUNCTION); or the spec of a graph "
        "network", "FILE.py:FUNCTION|SPEC.yaml")] = None
    _: KW_ONLY
    example: Annotated[str | None, Option("in its place a small model: gpt, or with transformers gpt2, llama, bert, "
                                          "t5, vit, mixtral", "NAME")] = None
    gpus: Annotated[int | None, Option("ranks, on this machine (default: 2)", "N", count)] = None
    steps: Annotated[int, Option("batches", "N", count)] = 10
    micro_batches: Annotated[int | None, Option("micro-batches per batch (default: as in the function, or 4)", "N",
                                                count)] = None
    schedule: Annotated[str | None, Option(
        "a published schedule, or a schedule's file (default: the best that a short search finds)", "NAME")] = None
    memory: Annotated[int | None, Option("memory of each rank, as 16GiB (default: no limit on CPUs, a GPU's own "
                                         "memory)", "SIZE", memory_size)] = None
    spec: Annotated[PathLike | None, Option(
        "what the machine is: a YAML file with cluster and placement (default: measured)", "FILE")] = None
    time_limit: Annotated[float, Option("limit of the search for a schedule", "SECONDS", positive)] = 10.0
    timeout: Annotated[float, Option("stop all ranks if one makes no progress for this time", "SECONDS",
                                     positive)] = 60.0
    checkpoint: Annotated[PathLike | None, Option("save there after the last batch, and when Ctrl-C or SIGTERM comes; "
                                                  "go on from what is there", "FOLDER")] = None
    every: Annotated[int | None, Option("with --checkpoint, save after every N batches too", "N", count)] = None
    figure: Annotated[str | None, Option("draw the measured step beside the planned one there", "FILE",
                                         flags="--draw")] = None
    as_json: Annotated[bool, Option("print losses and report as JSON", flags="--json")] = False
    on_line: Callable[[str], object] = lambda _: None

    @property
    def is_of_spec(self) -> bool:
        """Whether the training is given by a spec, that of a graph network."""
        return self.setup is not None and self.setup.lower().endswith((".yaml", ".yml"))


def rank_command(arguments: Sequence[str]) -> list[str]:
    """The command that starts one rank of ``weft train`` with ``arguments``."""
    return [sys.executable, "-m", "weft", "train", *arguments]
