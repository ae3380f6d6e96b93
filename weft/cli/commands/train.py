"""train your PyTorch model as a pipeline

Captures the model, measures it, cuts it into stages, searches for a schedule and trains: one process a rank, started
here, or by torchrun. The function gives a mapping with module, args (an example batch), loss, optimizer and data;
weft.pipeline does the same from Python.

SPEC.yaml of a graph network (model: {family: graph-network}) is trained by Adam in chunks, within the memory of its
cluster, one process a GPU of it; --schedule is one that weft solve has written.

example:
  weft train model.py:setup --gpus 2 --steps 10
  weft train graph.yaml --steps 200
  weft train --example gpt
"""

from __future__ import annotations

import functools
import os

from weft.app.lib.arguments import taking
from weft.app.train.options import TrainOptions, rank_command
from weft.cli.lib.command import Call, command, words_of
from weft.cli.lib.output import require_torch


@taking(TrainOptions)
def train(asked: TrainOptions) -> int:
    """Train what ``setup``, ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``, gives, or a small ``example``, for ``steps``
    batches on ``gpus`` ranks of this machine (default: 2); the exit code.

    Under a launcher, this is one rank; otherwise the ranks are started here, as processes. The function gives a
    mapping: ``module``, ``args``, ``kwargs``, ``loss``, ``target``, ``data``, ``optimizer`` (which makes one of
    parameters), ``micro_batches``, ``options``, further arguments of :func:`pipeline`, and ``follow``, the ``plans``
    and ``switches`` of :meth:`~weft.app.pipeline.run.pipe.Pipeline.follow`. The other arguments are those of
    :func:`pipeline`, too; ``figure``: where the measured step is drawn. With the folder ``checkpoint``, training is
    saved there after the last batch, and after every ``every``; it goes on from what is there, up to ``steps`` in all;
    and Ctrl-C or SIGTERM ends it after the running step, with a checkpoint. On rank 0 ``on_line`` hears the loss of
    each step, and the report; ``as_json``: one line, ``{"losses": [...], "report": {...}}``.
    """
    if asked.is_of_spec:
        from weft.app.train.graph_network import train_graph_network, train_graph_network_rank

        return train_graph_network_rank(asked) if "RANK" in os.environ else train_graph_network(
            asked, lambda own: rank_command(words_of(train, {**vars(own), "gpus": None})))
    from weft.app.pipeline.planning.spec import load_machine_spec
    from weft.app.train.setup import require_setup
    from weft.app.train.train import train_rank
    from weft.runtime.ranks.launch import run_ranks

    if "RANK" in os.environ:
        return train_rank(asked)
    ranks = 2 if asked.gpus is None else asked.gpus
    require_setup(asked.setup, asked.example)
    load_machine_spec(asked.spec, ranks)
    words = words_of(train, {**vars(asked), "gpus": None})
    return run_ranks(ranks, rank_command(words), patient=asked.checkpoint is not None)


@command(train, stops=False)  # ranks join and wait in native code; weft.runtime.ranks.watch hears signals there
def run(call: Call) -> int:
    require_torch("train")
    if call.every is not None and call.checkpoint is None:
        raise ValueError(f"--every is {call.every}, it must be at least 1, and stand beside --checkpoint")
    code: int = call(on_line=functools.partial(print, flush=True))
    return code
