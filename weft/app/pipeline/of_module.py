"""A running pipeline of a module; torch is loaded when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from weft.app.lib.arguments import taking
from weft.app.pipeline.lib.options import PipelineOptions

if TYPE_CHECKING:
    from torch import nn

    from weft.app.pipeline.run.pipe import PipelineEngine


@dataclass(frozen=True)
class _Asked(PipelineOptions):
    module: nn.Module
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None


@taking(_Asked)
def pipeline(asked: _Asked) -> PipelineEngine:
    """Make a running pipeline of ``module``: every rank that ``torchrun`` started calls this alike.

    ``args`` and ``kwargs`` are one whole batch as an example; batches are cut into ``micro_batches`` equal parts along
    dimension ``batch_dims``. That may be a mapping by the names (or positions) of arguments, and ``"target"``: its
    values are dimensions, nested as the argument is, or ``None`` for what is the same for all micro-batches, such as a
    mask that only happens to be as long as the batch. ``loss(output, target)`` gives the mean loss of a micro-batch, or
    ``(sum, count)``: the loss of a batch is then the sum of its sums over the sum of its counts, as where micro-batches
    have unequal numbers of labels. Without it the module gives its own (``labels`` among ``kwargs``). An example of a
    ``target`` lets the loss be measured too, and says how a target is nested if it is not one tensor.

    Each rank captures the model with ``torch.export``, or takes the capture of an earlier call from the folder
    ``cache`` (``True``: the user's cache folder; ``None``: none), where a run of the model shows that it still does the
    same. All measure operators, links and stages together, and run the schedules of some cuts for a few steps, whose
    times the plan then has; buffers, gradients and random state are kept. Rank 0 decides; of the searches each has at
    most half of ``time_limit`` seconds, and no further cut is tried after it. The plan is kept there, too, and a call
    for the same model, options, ranks and kind of machine takes it without measuring, unless ``remeasure``.

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

    ``backends`` are libraries that may compute a stage in place of torch's operators one by one (``"auto"``: all that
    are registered, have a backward and can be used here; or names, as in :func:`weft.place_backends`). Each is measured
    on each stage, and its numbers are held against eager torch's; times and memory are options of the search, so that a
    stage takes the fast one where memory lasts, and a lean one where it does not. Backwards of other backends than
    eager are whole.

    ``defer`` says which weight gradients wait for W where backwards are split: ``"worth"`` those of products,
    convolutions and tables, ``"all"`` those of norms, scales and biases too, which take next to no time, but keep as
    much memory until then.

    Dropout, and all else in the model that draws random numbers, draws them from seeds made of ``seed`` (without it,
    rank 0's ``torch.initial_seed()``), the step, the micro-batch, and the operator's place in the model: so they do not
    depend on the schedule or on the number of ranks, and recomputation repeats them.

    ``mesh`` (a ``DeviceMesh``) or ``group`` says on which ranks of a process group that you have made the pipeline
    runs; several may run beside each other. ``data`` is the number of copies of the pipeline, each on an equal part of
    the ranks, as the dimension of a mesh named ``data`` is: each copy is given its own part of a batch, ``args`` and
    ``target`` are an example of such a part, and losses, gradients and norms are those of the whole batch.

    ``fully_shard`` divides parameters, gradients and optimizer states among the copies, by torch's FSDP2.

    ``tensor_parallel`` divides parameters among the ranks along a dimension of the mesh named ``tensor``, which compute
    each operator together: styles of ``torch.distributed.tensor.parallel`` by submodule, ``{"layers.*.up":
    ColwiseParallel()}``, or a function that calls ``parallelize_module`` on the model and the mesh of these ranks that
    it is given. What counts is how parameters lie: ``DTensor`` finds how all else lies; stages hand on whole values.

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
    With ``torch.float16`` losses are scaled, and a batch that overflows is left out.
    ``compile`` (``True``, a mode of ``torch.compile``, or its arguments) compiles each stage's module; backwards are
    then whole. ``timeout`` is for a compilation too, from two minutes on.

    A mistake ends all ranks with one sentence, where the ranks are together already; before that
    ``weft.runtime.captured.captured.CaptureError`` is raised.
    """
    from weft.app.pipeline.build import make_pipeline

    options = PipelineOptions(**{field.name: getattr(asked, field.name) for field in fields(PipelineOptions)})
    return make_pipeline(asked.module, asked.args, asked.kwargs, options)
