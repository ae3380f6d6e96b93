"""``weft.pipeline``: a running pipeline of a module. Importing this file does not load torch."""

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
class _Arguments(PipelineOptions):
    module: nn.Module
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None


@taking(_Arguments)
def pipeline(arguments: _Arguments) -> PipelineEngine:
    """Make a running pipeline of ``module``. Collective: every rank that ``torchrun`` started calls it with equal
    options.

    **Batch and loss.** ``args`` and ``kwargs`` are one whole batch as an example; batches are cut into
    ``micro_batches`` equal parts along dimension ``batch_dims``. That may be a mapping by the names (or positions) of
    arguments and ``"target"``: its values are dimensions, nested like the argument, or ``None`` for a value that all
    micro-batches share, such as a mask that happens to be as long as the batch. ``loss(output, target)`` returns the
    mean loss of a micro-batch, or ``(sum, count)`` if micro-batches have unequal numbers of labels: the loss of a batch
    is then the sum of its sums over the sum of its counts. Without ``loss`` the module returns its own (``labels`` in
    ``kwargs``). An example of a ``target`` allows measuring the loss, and shows its structure if it is not one tensor.

    **Capture and planning.** Each rank captures the model with ``torch.export``, or loads the capture of an earlier
    call from the folder ``cache`` (``True``: the user's cache folder; ``None``: none) after a run of the model confirms
    it. All ranks measure operators, links and stages together, and run the schedules of some cuts for a few steps,
    whose times the plan has; buffers, gradients and random state are unchanged. Rank 0 decides. Each search takes at
    most half of ``time_limit`` seconds, and no further cut is tried after ``time_limit``. The plan is cached too: a
    later call with the same model, options, ranks and kind of machine reuses it without measuring, unless
    ``remeasure``.

    ``schedule`` is the name of a published schedule (:data:`weft.solver.BASELINES`), a schedule or its file; ``plan``
    is a plan or its file. The model is cut into their stages.

    ``cuts`` are the numbers of the operators that begin the second and later stages. ``split`` names the submodules
    that begin these stages (``["transformer.h.6"]``), for models that ``torch.export`` cannot trace: each stage then
    runs its part of the model's own forward.

    ``spec`` describes the machine in place of measuring it: the path of a YAML file, or an equal mapping, with
    ``cluster`` (``memory``, and ``bandwidth`` and ``latency``, or ``links``, as in a model spec) and ``placement``
    (``shapes``: ``chain``, ``v``; ``backward``: ``full``, ``split``). ``memory``: bytes of each rank.

    ``memory_plan`` decides on saved activations. ``auto`` keeps all if a schedule then fits the memory; otherwise it
    plans cuts and, for each operator, whether its activations are kept, recomputed or offloaded to the host. ``keep``,
    ``recompute`` and ``offload`` apply to all operators; a mapping decides by module, as ``{"layers.3": "recompute"}``.
    ``co_shard`` computes modules in equal shares of the micro-batch, one after another, each recomputed by itself:
    ``{"layers.3": 4}``.

    ``backends`` are libraries that may compute a stage in place of torch's eager operators (``"auto"``: all registered
    ones with a backward that work here; or names, as in :func:`weft.place_backends`). Each is measured on each stage,
    and its results are compared with eager torch's. Times and memory are options of the search: a stage gets a fast
    backend if memory allows, otherwise a lean one. Other backends than eager have full backwards.

    ``defer`` selects the weight gradients that are computed in W if backwards are split: ``"worth"`` those of matrix
    products, convolutions and embedding tables; ``"all"`` also those of norms, scales and biases, which take little
    time but keep as much memory until W.

    **Ranks.** ``mesh`` (a ``DeviceMesh``) or ``group`` selects the pipeline's ranks from a process group that you have
    made; several pipelines may run beside each other. ``data`` is the number of data-parallel copies of the pipeline,
    each on an equal part of the ranks, like a mesh dimension named ``data``: each copy gets its own part of a batch,
    ``args`` and ``target`` are an example of such a part, and losses, gradients and norms are those of the whole batch.
    ``fully_shard`` shards parameters, gradients and optimizer states over the copies by torch's FSDP2.
    ``tensor_parallel`` shards parameters over a mesh dimension named ``tensor``: styles of
    ``torch.distributed.tensor.parallel`` by submodule, ``{"layers.*.up": ColwiseParallel()}``, or a function that calls
    ``parallelize_module`` on the model and the mesh that it is given. Only the placements of parameters count:
    ``DTensor`` derives all others; stages exchange whole tensors.

    **Precision.** ``dtype=torch.bfloat16`` converts modules and the floating-point tensors of a batch;
    ``pipe.parameters()`` are master weights in fp32, which accumulate gradients and are saved.
    ``autocast=torch.bfloat16`` keeps weights, and runs stages and loss under ``torch.autocast``. With ``torch.float16``
    losses are scaled, and the update of a batch that overflows is skipped. ``compile`` (``True``, a mode of
    ``torch.compile``, or its arguments) compiles each stage; backwards are then full.

    **Training.** ``clip_norm`` clips the gradient's norm over the whole model in each step. ``allow_unread`` accepts
    parameters that no operator reads; they are not trained. Dropout and other random operators draw from seeds derived
    from ``seed`` (default: rank 0's ``torch.initial_seed()``), the step, the micro-batch, and the operator's position
    in the model: results do not depend on the schedule or the number of ranks, and recomputation repeats them.
    ``timeout``, in seconds, limits one wait (a compilation: at least two minutes), after which all ranks end.
    ``transport`` is as in :class:`weft.runtime.ReplayOptions`.

    **Large models.** The module may be on the meta device (built under ``with torch.device("meta")``): each rank then
    only ever allocates its own part, and reads it from ``state``: a state dict, a ``.pt`` or ``.safetensors`` file, or
    a folder of these. Tensors that the state lacks are initialised module by module, by ``materialise(module)``, which
    fills the module's own tensors, or by the module's ``reset_parameters``, with random numbers that depend only on
    ``torch.manual_seed`` and the module's name. A module with weights takes a ``state`` too.

    An error ends all ranks with one sentence once they have joined; before that,
    ``weft.runtime.captured.captured.CaptureError`` is raised.
    """
    from weft.app.pipeline.build import make_pipeline

    options = PipelineOptions(**{field.name: getattr(arguments, field.name) for field in fields(PipelineOptions)})
    return make_pipeline(arguments.module, arguments.args, arguments.kwargs, options)
