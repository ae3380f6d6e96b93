"""A spec's training on all GPUs of its cluster: every GPU has the whole model, gradients are summed in parts.

A step is the spec's micro-batches, divided over the GPUs. All of them run the last one's forward ``F0`` ... in a few
groups of layers and its backward ``B...``; after each backward the gradients of its layers are summed over the GPUs
(``S...``), on their network lanes, beside the backwards of earlier layers (as in wait-free backpropagation and
DistributedDataParallel). The work before the last micro-batch is one block, ``accumulate``. The next step begins when
all sums of this one have ended: the edge of distance 1.
"""

from __future__ import annotations

from dataclasses import replace

from weft.models.candidates.build import bytes_per_parameter
from weft.models.candidates.gpu_costs import gpu_costs
from weft.models.candidates.placement_sources import all_reduce_seconds
from weft.models.candidates.stage_blocks import forward_block, gradient_blocks, seconds_of
from weft.models.candidates.stages import peak_bytes, static_bytes
from weft.models.layers.cluster import model_cluster
from weft.models.overlap.data_parallel import (
    grouped_layers,
    layer_groups,
    slowest_layers,
    why_not_divided,
    why_too_large,
)
from weft.models.overlap.placement import lane_name
from weft.models.share.job import Job, SharingError, job_of
from weft.models.spec.sections import Spec, TrainingRun
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

#: Groups of layers whose gradients are summed separately.
GROUPS = 4


def why_not_data_parallel(spec: Spec) -> str | None:
    """Why ``spec`` is not trained with the whole model on every GPU, in a sentence; ``None`` if it can be."""
    reason = why_not_divided(spec, spec.run.micro_batches) or why_too_large(
        spec, layer_groups(spec, GROUPS), bytes_per_parameter(spec))
    return None if reason is None else f"{spec.where}: {reason}"


def data_parallel_job(spec: Spec, name: str, groups: int = GROUPS) -> Job:
    """The training of ``spec`` as the job ``name``, gradients summed in up to ``groups`` parts.

    Raises :class:`~weft.models.share.job.SharingError` if :func:`why_not_data_parallel` has a reason, and the
    exceptions of :func:`~weft.models.candidates.gpu_costs.gpu_costs`.
    """
    reason = why_not_data_parallel(spec)
    if reason is not None:
        raise SharingError(reason)
    run, gpus = spec.run, spec.cluster.gpus
    assert isinstance(run, TrainingRun)
    costs, cluster = gpu_costs(spec), model_cluster(spec.cluster)
    stages = grouped_layers(slowest_layers(costs.layers), groups)
    static = static_bytes(stages, bytes_per_parameter(spec))
    devices: list[Device] = []
    for gpu in range(gpus):
        devices += [Device(f"gpu{gpu}", cluster.available[gpu] - static, static),
                    Device(lane_name(f"gpu{gpu}"), lane_of=f"gpu{gpu}")]
    everywhere, networks = tuple(range(0, 2 * gpus, 2)), tuple(range(1, 2 * gpus, 2))
    total = sum(stage.parameters for stage in stages) * run.gradient_bytes
    all_seconds = all_reduce_seconds(spec, total, gpus)
    summed = [s for s, stage in enumerate(stages) if stage.parameters]
    before = tuple(Dependency(f"S{s}", distance=1) for s in summed)
    blocks: list[Block] = []
    rest = run.micro_batches // gpus - 1
    if rest:
        load = seconds_of(rest * sum(stage.load for stage in stages))
        blocks.append(Block("accumulate", BlockKind.OTHER, everywhere, load, (0,),
                            (peak_bytes(stages, [1] * len(stages), "full"),), before))
        before = (Dependency("accumulate"),)
    for s, stage in enumerate(stages):
        after = (Dependency(f"F{s - 1}"),) if s else before
        blocks.append(forward_block(s, stage, everywhere, "full", after))
    last = f"F{len(stages) - 1}"
    for s in reversed(range(len(stages))):
        for block in gradient_blocks(s, stages[s], everywhere, "full", (Dependency(last),)):
            blocks.append(block)
            last = block.name
        if s in summed:
            seconds = max(all_reduce_seconds(spec, stages[s].parameters * run.gradient_bytes, gpus),
                          1e-9) if all_seconds else 1e-9
            blocks.append(Block(f"S{s}", BlockKind.COLLECTIVE, networks, round(seconds, 9), (0,), (0,),
                                (Dependency(last),)))
    problem = Problem(f"{spec.name} (data parallel)", tuple(devices), tuple(blocks))
    job = job_of(name, problem, f"data parallel, {len(stages)} groups of layers", costs.notes)
    return replace(job, micro_batches=rest + 1)
