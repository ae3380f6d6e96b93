"""From a module to a running pipeline, and what carries its tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.app.lib.sources import PathLike

if TYPE_CHECKING:
    import torch
    from torch import nn

    from weft.app.pipeline.lib.running import Compile
    from weft.app.pipeline.run.pipe import Pipeline
    from weft.app.transports import Transports
    from weft.runtime.captured.materials import Fill
    from weft.runtime.checkpoint.weights import State
    from weft.runtime.interface.training import Loss
    from weft.runtime.plan.plan import Plan
    from weft.solver.schedule import Schedule

__all__ = ["pipeline", "train", "transports"]


def pipeline(
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[..., Loss] | None = None,
    target: Any = None,
    micro_batches: int,
    schedule: Schedule | PathLike | None = None,
    plan: Plan | PathLike | None = None,
    cuts: Sequence[int] | None = None,
    split: Sequence[str] | None = None,
    memory: int | None = None,
    memory_plan: str | Mapping[str, str] = "auto",
    co_shard: Mapping[str, int] | None = None,
    spec: PathLike | Mapping[str, Any] | None = None,
    defer: str = "worth",
    state: State | None = None,
    materialise: Fill | None = None,
    dtype: torch.dtype | None = None,
    autocast: torch.dtype | None = None,
    compile: Compile = False,
    batch_dims: int | Mapping[str | int, Any] | Sequence[Any] = 0,
    clip_norm: float | None = None,
    time_limit: float = 10.0,
    timeout: float = 60.0,
    transport: str | None = None,
    seed: int | None = None,
    allow_unread: bool = False,
) -> Pipeline:
    """Make a running pipeline of ``module``: every rank that ``torchrun`` started calls this alike.

    ``args`` and ``kwargs`` are one whole batch as an example; batches are cut into ``micro_batches`` equal parts along
    dimension ``batch_dims``. That may be a mapping by the names (or positions) of arguments, and ``"target"``: its
    values are dimensions, nested as the argument is, or ``None`` for what is the same for all micro-batches, such as a
    mask that only happens to be as long as the batch. ``loss(output, target)`` gives the mean loss of a micro-batch, or
    ``(sum, count)``: the loss of a batch is then the sum of its sums over the sum of its counts, as where micro-batches
    have unequal numbers of labels. Without it the module gives its own (``labels`` among ``kwargs``). An example of a
    ``target`` lets the loss be measured too, and says how a target is nested if it is not one tensor.

    Each rank captures the model with ``torch.export``; all measure operators, links and stages together, and run the
    schedules of some cuts for a few steps, whose times the plan then has; buffers, gradients and random state are kept.
    Rank 0 decides; of the searches each has at most half of ``time_limit`` seconds, and no further cut is tried after
    it.

    ``schedule`` names a published one (:data:`weft.solver.BASELINES`), or is a schedule or its file, as ``plan`` is a
    plan or its file: their stages are then what the model is cut into.

    ``cuts`` names the operators that begin the second stage and those after, by number. For a model that
    ``torch.export`` cannot follow, ``split`` names the submodules that begin these stages (``["transformer.h.6"]``):
    each stage then runs its part of the model's own forward, without an export.

    ``spec`` says what the machine is, where it is not to be looked at: the path of a YAML file, or the same as a
    mapping, with ``cluster`` (``memory``, and ``bandwidth`` and ``latency``, or ``links``, as in a model spec) and
    ``placement`` (``shapes``: ``chain``, ``v``; ``backward``: ``full``, ``split``). ``memory``: bytes that each rank
    has.

    ``memory_plan`` says what becomes of what operators keep for the backward: ``auto`` keeps all where a schedule fits
    the memory so, and else plans cuts and for each operator whether it is kept, recomputed or offloaded to the host;
    ``keep``, ``recompute`` and ``offload`` do so with all of them; a mapping says it by module, as
    ``{"layers.3": "recompute"}``. ``co_shard`` computes modules in equal shares of the micro-batch, one after another,
    each recomputed by itself: ``{"layers.3": 4}``.

    ``defer`` says which weight gradients wait for W where backwards are split: ``"worth"`` those of products,
    convolutions and tables, ``"all"`` those of norms, scales and biases too, which take next to no time, but keep as
    much memory until then.

    Dropout, and all else in the model that draws random numbers, draws them from seeds made of ``seed`` (without it,
    rank 0's ``torch.initial_seed()``), the step, the micro-batch, and the operator's place in the model: so they do not
    depend on the schedule or on the number of ranks, and recomputation repeats them.

    With ``clip_norm`` each step clips the norm of the whole model's gradient. ``allow_unread``: parameters that no
    operator reads stay as they are. ``timeout``, in seconds, is for one wait: past it all ranks end. ``transport`` is
    as in :class:`weft.runtime.ReplayOptions`.

    The module may be on the meta device (built under ``with torch.device("meta")``): then no rank ever holds more than
    its own part, and each reads that from ``state``, which is a state dict, a ``.pt`` or ``.safetensors`` file, or a
    folder of such; what a state does not have, or all without one, is made module by module, by
    ``materialise(module)``, which fills what the module itself holds, or by the module's ``reset_parameters``, with
    random numbers that depend on ``torch.manual_seed`` and the module's name only. A module with numbers takes a
    ``state`` too.

    ``dtype=torch.bfloat16``: modules, and the floating-point tensors of a batch, are in that type;
    ``pipe.parameters()`` are weights in fp32, which gather the gradients and are what is saved.
    ``autocast=torch.bfloat16``: weights stay as they are, and stages compute, the loss too, under ``torch.autocast``.
    ``compile`` (``True``, a mode of ``torch.compile``, or its arguments) compiles each stage's module; backwards are
    then whole. ``timeout`` is for a compilation too, from two minutes on.

    A mistake ends all ranks with one sentence, where the ranks are together already; before that
    ``weft.runtime.captured.captured.CaptureError`` is raised.
    """
    from weft.app.pipeline.build import make_pipeline
    from weft.app.pipeline.lib.options import PipelineOptions

    if isinstance(schedule, os.PathLike):
        schedule = os.fspath(schedule)
    options = PipelineOptions(
        micro_batches,
        loss=loss, target=target, batch_dims=batch_dims, clip_norm=clip_norm, allow_unread=allow_unread,
        schedule=schedule, plan=plan, cuts=cuts, split=split, memory=memory, memory_plan=memory_plan, co_shard=co_shard,
        spec=spec, defer=defer, time_limit=time_limit,
        state=state, materialise=materialise, dtype=dtype, autocast=autocast, compile=compile,
        seed=seed, timeout=timeout, transport=transport)
    return make_pipeline(module, args, kwargs, options)


def train(setup: str | None = None, *, example: str | None = None, gpus: int | None = None, steps: int = 10,
          micro_batches: int | None = None, schedule: str | None = None, memory: int | None = None,
          spec: PathLike | None = None, time_limit: float = 10.0, timeout: float = 60.0, figure: str | None = None,
          as_json: bool = False, checkpoint: PathLike | None = None, every: int | None = None,
          on_line: Callable[[str], object] = lambda _: None) -> int:
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

    options = TrainOptions(setup, example, steps, micro_batches, schedule, memory, time_limit, timeout, figure, spec,
                           as_json, checkpoint, every)
    if "RANK" in os.environ:
        return train_rank(options, on_line)
    require_setup(setup, example)
    load_machine_spec(spec, 2 if gpus is None else gpus)
    given = {"--example": example, "--steps": steps, "--micro-batches": micro_batches, "--schedule": schedule,
             "--memory": memory, "--spec": spec, "--time-limit": time_limit, "--timeout": timeout, "--draw": figure,
             "--checkpoint": checkpoint, "--every": every}
    words = [*([setup] if setup is not None else []),
             *(word for option, value in given.items() if value is not None for word in (option, str(value))),
             *(["--json"] if as_json else [])]
    return run_ranks(2 if gpus is None else gpus, rank_command(words), patient=checkpoint is not None)


def transports(*, gpus: int = 2, sizes: Sequence[int] | None = None) -> Transports:
    """Try every transport between two ranks of this machine, on the CPU and on up to ``gpus`` GPUs.

    Known tensors of several types and shapes, with messages of about ``sizes`` bytes (default 4 KiB, 1 MiB and 16 MiB),
    are sent and compared, and calls are timed beside ``torch.distributed.rpc``. ``.good`` says whether all that should
    work here does, ``.unchecked`` what this machine cannot have, ``str()`` is the table, ``.to_json()`` the numbers.

    Raises ``ValueError`` for sizes that no message can have.
    """
    from weft.app.transports import SIZES, try_transports

    return try_transports(gpus, SIZES if sizes is None else sizes)
