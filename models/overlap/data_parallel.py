"""A spec's training with the whole model on every GPU: the kind of gradient sum and the number of buckets are choices.

A step runs the forwards of the first micro-batch (``F0`` ..., in groups of layers), the work in between
(``accumulate``, if a GPU has several micro-batches) and the backwards of the last one (``B...``). The gradients of a
bucket of groups are ready after the backward of its first group. Then, by the choice ``gradients``:

* ``all-reduce, update`` (AR-C): ``S`` sums them on the GPUs' network lanes, ``U`` updates all parameters of the bucket
  on every GPU;
* ``reduce-scatter, update, all-gather`` (RS-C-AG): ``S`` leaves each of the N GPUs the sum of its slice, ``U`` updates
  that slice, ``G`` gathers the parameters on the lanes. Optimizer state is 1/N on each GPU;
* ``fused``: the three as one kernel on the lanes, with the update during the communication: as long as the longer of
  the two. The state is 1/N too. Such a kernel is assumed not to slow the concurrent backward, as for every collective.

The three are programs reachable by the passes of :mod:`weft.models.communication` from an all-reduce followed by the
update, so they give the same weights.

``buckets`` is their number; with a single unfused bucket nothing overlaps: everything is summed when the last backward
has ended. The next step's forward of a group waits only for its parameters, so gathers may run beside it.

*Memory.* Each device has the memory left by parameters, gradients and 1/N of the optimizer state. Under AR-C the rest
of the state is allocated by the first forward and freed by ``end``, after the last update; between ``end`` and the next
step's first forward nothing allocates memory. Buffers of collectives are part of ``cluster.reserve``.

The parts of a step with the whole model on every GPU: layers in groups, collectives, the update, static memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from weft.models.candidates.build import bytes_per_parameter
from weft.models.candidates.gpu_costs import device_of, gpu_costs
from weft.models.candidates.stage_blocks import forward_block, gradient_blocks, seconds_of
from weft.models.candidates.stages import StageCost, Stages, peak_bytes, static_bytes
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import model_cluster
from weft.models.layers.collectives import Collective, group_time
from weft.models.layers.costs import LayerCost
from weft.models.overlap.placement import OverlapPlacement, lane_name
from weft.models.spec.quantities import format_bytes
from weft.models.spec.sections import Spec, TrainingRun
from weft.solver.problem import Block, BlockKind, Dependency, Device, Options, Problem

#: The title of the placement.
WHOLE_MODEL = "data parallel"
#: The names of the choices.
GRADIENTS, BUCKETS = "gradients", "buckets"
#: The options of the gradient sum.
WAYS = ALL_REDUCE, SCATTERED, FUSED = ("all-reduce, update", "reduce-scatter, update, all-gather", "fused")
#: Maximum groups of layers: this many buckets are tried, and halves of it.
_GROUPS = 8
#: The minimum duration: a block must take time.
_INSTANT = 1e-9


def why_not_divided(spec: Spec, count: int) -> str | None:
    """Why the ``count`` micro-batches of ``spec`` are not divided over all GPUs, in a sentence; ``None`` if they can
    be."""
    gpus = spec.cluster.gpus
    if not isinstance(spec.run, TrainingRun):
        return "inference has no gradients to sum"
    if spec.run.lengths is not None:
        return "training.lengths lists micro-batches that differ"
    if gpus < 2:
        return "cluster.gpus is 1, there is nobody to sum gradients with"
    if count % gpus:
        return f"{count} micro-batches cannot be divided over {gpus} GPUs; give a multiple of {gpus}"
    return None


def why_not_data_parallel(spec: Spec, micro_batches: int | None = None) -> str | None:
    """Why ``spec`` is not trained with the whole model on every GPU, in a sentence; ``None`` if it can be."""
    reason = why_not_divided(spec, micro_batches or spec.run.micro_batches)
    if reason is not None:
        return reason
    assert isinstance(spec.run, TrainingRun)
    if spec.run.optimizer != "adam":
        return f"training.optimizer is {spec.run.optimizer}, which frees gradients before they could be summed"
    return why_too_large(spec, layer_groups(spec, _GROUPS), held_bytes(spec, sliced=True))


def why_too_large(spec: Spec, stages: Sequence[StageCost], held: int) -> str | None:
    """Why the whole model does not fit on each GPU with ``held`` bytes for each parameter; ``None`` if it does."""
    missing = static_bytes(stages, held) + peak_bytes(stages, [1] * len(stages), "full") - min(
        model_cluster(spec.cluster).available)
    return None if missing <= 0 else f"the whole model on each GPU needs {format_bytes(missing)} more than there is"


def data_parallel(spec: Spec, micro_batches: int | None = None) -> OverlapPlacement:
    """The step of ``spec`` in which every GPU has the whole model, as one micro-batch of a problem with choices.

    Raises ``ValueError`` if :func:`why_not_data_parallel` has a reason, and the exceptions of finding costs.
    """
    reason = why_not_data_parallel(spec, micro_batches)
    if reason is not None:
        raise ValueError(f"{spec.where}: {reason}")
    count = micro_batches or spec.run.micro_batches
    step = _Step(spec, count)
    available = model_cluster(spec.cluster).available
    static = static_bytes(step.stages, held_bytes(spec, sliced=True))
    memory = tuple(own - static for own in available)
    gpus = tuple(range(spec.cluster.gpus))
    name = f"gpu0-{spec.cluster.gpus - 1}"
    devices = (Device(name, min(memory), static), Device(lane_name(name), lane_of=name))
    problem = Problem(f"{spec.name} (data parallel)", devices, tuple(step.blocks()), choices=step.choices)
    costs = gpu_costs(spec)
    return OverlapPlacement(
        WHOLE_MODEL, problem, tuple({GRADIENTS: way, **({BUCKETS: "1"} if BUCKETS in problem.choices else {})}
                                        for way in (ALL_REDUCE, SCATTERED)), count, (gpus,), memory,
        {"static_memory": [static] * len(available), "gpu_memory": list(available)},
        (*costs.notes, *step.notes), step.update)


@dataclass(frozen=True)
class _GradientBucket:
    """Groups ``first`` to ``last - 1``, number ``place`` of ``count`` buckets."""

    place: int
    count: int
    first: int
    last: int


class _Step:
    """The blocks of one step on a GPU (device 0) and its lane (device 1)."""

    def __init__(self, spec: Spec, micro_batches: int) -> None:
        run = spec.run
        assert isinstance(run, TrainingRun)
        self.spec, self.run = spec, run
        self.costs = StepCosts(spec)
        self.stages = layer_groups(spec, _GROUPS)
        self.each = micro_batches // spec.cluster.gpus
        self.counts = [count for count in (1, 2, 4, 8) if count <= len(self.stages)]
        self.choices = {GRADIENTS: WAYS, **({BUCKETS: tuple(map(str, self.counts))} if len(self.counts) > 1 else {})}
        self.rest = sum(stage.parameters for stage in self.stages) * (held_bytes(spec, sliced=False)
                                                                      - held_bytes(spec, sliced=True))

    @property
    def update(self) -> float:
        """Seconds of the optimizer on all parameters of one GPU."""
        return self.costs.update(sum(stage.parameters for stage in self.stages))

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on its costs."""
        name = device_of(self.spec)
        return (("a data parallel step counts the optimizer's update, which steps of other placements leave out: "
                 f"{self.update * 1e3:.3g} ms for all parameters" if name is not None else
                 "the optimizer's update takes no time: the spec names no device whose memory it could pass through"),
                "collectives take nothing from the computation beside them")

    def blocks(self) -> Iterator[Block]:
        """All blocks of all options."""
        yield from self._forwards()
        if self.each > 1:
            yield self._between()
        yield from self._backwards()
        for count in self.counts:
            for bucket in self._buckets(count):
                yield from self._sums(bucket)
        updates = tuple(Dependency(f"U{bucket.place}", when=self._when(count=count))
                        for count in self.counts for bucket in self._buckets(count))
        yield Block("end", BlockKind.OTHER, (0,), _INSTANT, (-self.rest,), (0,), updates, self._when(ALL_REDUCE))

    # -- computation

    def _forwards(self) -> Iterator[Block]:
        for s, stage in enumerate(self.stages):
            plain = forward_block(s, stage, (0,), "full", ())
            waits = (*((Dependency(f"F{s - 1}"),) if s else ()), *self._parameters(s))
            if s:
                yield replace(plain, after=waits)
                continue
            for way in WAYS:
                own = [wait for wait in waits if wait.when[GRADIENTS] == way]
                if way == ALL_REDUCE:
                    own.append(Dependency("end", distance=1))
                more = self.rest if way == ALL_REDUCE else 0
                yield replace(plain, memory=(plain.memory[0] + more,), after=tuple(own), when=self._when(way))

    def _parameters(self, s: int) -> tuple[Dependency, ...]:
        """The waits of group ``s``'s forward for the previous step."""
        found = []
        for count in self.counts:
            place = next(bucket.place for bucket in self._buckets(count) if bucket.first <= s < bucket.last)
            for way, letter in ((ALL_REDUCE, "U"), (SCATTERED, "G"), (FUSED, "S")):
                found.append(Dependency(f"{letter}{place}", distance=1, when=self._when(way, count)))
        return tuple(found)

    def _between(self) -> Block:
        """Backward of the first micro-batch, forward of the last one, and all micro-batches in between."""
        held = sum(stage.activation for stage in self.stages)
        load = ((self.each - 1) * sum(stage.forward for stage in self.stages)
                + (self.each - 1) * sum(stage.backward for stage in self.stages))
        most = peak_bytes(self.stages, [1] * len(self.stages), "full")
        return Block("accumulate", BlockKind.OTHER, (0,), seconds_of(load), (0,), (max(0, most - held),),
                     (Dependency(f"F{len(self.stages) - 1}"),))

    def _backwards(self) -> Iterator[Block]:
        last = "accumulate" if self.each > 1 else f"F{len(self.stages) - 1}"
        self.behind: dict[int, str] = {}
        for s in reversed(range(len(self.stages))):
            for block in gradient_blocks(s, self.stages[s], (0,), "full", ()):
                yield replace(block, after=(Dependency(last),))
                last = block.name
            self.behind[s] = last

    # -- gradients

    def _buckets(self, count: int) -> list[_GradientBucket]:
        """Groups in ``count`` buckets, the first layers' first."""
        groups = len(self.stages)
        borders = [groups * place // count for place in range(count + 1)]
        return [_GradientBucket(place, count, borders[place], borders[place + 1]) for place in range(count)]

    def _sums(self, bucket: _GradientBucket) -> Iterator[Block]:
        """The sum, the update and the gather of ``bucket`` in every way."""
        parameters = sum(self.stages[s].parameters for s in range(bucket.first, bucket.last))
        gpus, j = self.spec.cluster.gpus, bucket.place
        size = parameters * self.run.gradient_bytes
        own = -(-parameters // gpus)
        ready = (Dependency(self.behind[bucket.first]),)
        summed = (Dependency(f"S{j}"),)
        scatter = self.costs.seconds("reduce_scatter", size)
        gather = self.costs.seconds("all_gather", own * self.run.parameter_bytes)
        for way, sent in ((ALL_REDUCE, self.costs.seconds("all_reduce", size)), (SCATTERED, scatter),
                          (FUSED, max(scatter + gather, self.costs.update(own)))):
            yield self._block(f"S{j}", BlockKind.COLLECTIVE, sent, ready, self._when(way, bucket.count))
        for way, amount in ((ALL_REDUCE, parameters), (SCATTERED, own)):
            yield self._block(f"U{j}", BlockKind.OTHER, self.costs.update(amount), summed,
                              self._when(way, bucket.count))
        yield self._block(f"G{j}", BlockKind.COLLECTIVE, gather, (Dependency(f"U{j}"),),
                          self._when(SCATTERED, bucket.count))

    def _block(self, name: str, kind: BlockKind, seconds: float, after: tuple[Dependency, ...], when: Options
               ) -> Block:
        lane = 1 if kind == BlockKind.COLLECTIVE else 0
        return Block(name, kind, (lane,), max(round(seconds, 9), _INSTANT), (0,), (0,), after, when)

    def _when(self, way: str | None = None, count: int | None = None) -> dict[str, str]:
        return {**({} if way is None else {GRADIENTS: way}),
                **({} if count is None or BUCKETS not in self.choices else {BUCKETS: str(count)})}


def layer_groups(spec: Spec, most: int) -> list[StageCost]:
    """The layers of ``spec`` on its slowest GPU, in at most ``most`` groups of about equal parameters."""
    return grouped_layers(slowest_layers(gpu_costs(spec).layers), most)


def held_bytes(spec: Spec, *, sliced: bool) -> int:
    """Bytes of a parameter on each GPU; ``sliced``: with only its slice of the optimizer state."""
    run = spec.run
    assert isinstance(run, TrainingRun)
    state = run.optimizer_bytes_per_parameter
    return bytes_per_parameter(spec) - (state - -(-state // spec.cluster.gpus) if sliced else 0)


@dataclass(frozen=True)
class StepCosts:
    """Prices of a step of ``spec``."""

    spec: Spec

    @property
    def run(self) -> TrainingRun:
        """Its training settings."""
        assert isinstance(self.spec.run, TrainingRun)
        return self.spec.run

    def seconds(self, kind: Collective, size: int) -> float:
        """A collective of ``size`` bytes on each GPU: on the spec's device, or by rings over the cluster's links."""
        name, cluster = device_of(self.spec), self.spec.cluster
        return group_time(kind, size, range(cluster.gpus), model_cluster(cluster).network,
                          None if name is None else DEVICES[name]).seconds

    def update(self, parameters: int) -> float:
        """The optimizer step for this many parameters: its state is read and written, gradients read, parameters
        written."""
        name = device_of(self.spec)
        if name is None or not parameters:
            return 0.0
        device = DEVICES[name]
        moved = parameters * (self.run.gradient_bytes + 2 * self.run.optimizer_bytes_per_parameter
                              + self.run.parameter_bytes)
        return device.launch["forward"] + moved / (device.bandwidth * device.reach["pointwise", "forward"].memory)


def slowest_layers(layers: Sequence[list[LayerCost]]) -> list[LayerCost]:
    """The layer costs of the GPU with the slowest total: gradient sums wait for it."""
    return max(layers, key=lambda own: sum(layer.forward + layer.backward for layer in own))


def grouped_layers(layers: Sequence[LayerCost], groups: int) -> list[StageCost]:
    """``layers`` in up to ``groups`` groups of about equal parameters. A parameter shared by several groups counts in
    the first: one GPU has all of them."""
    count = min(groups, len(layers))
    before = list(accumulate((layer.parameters + 1 for layer in layers), initial=0))
    borders = [0]
    for group in range(1, count):
        wanted = before[-1] * group / count
        nearest = min(range(len(before)), key=lambda at: abs(before[at] - wanted))
        borders.append(min(max(nearest, borders[-1] + 1), len(layers) - (count - group)))
    whole = Stages(layers)
    return [_alone(whole.stage(first, last), layers) for first, last in pairwise([*borders, len(layers)])]


def _alone(stage: StageCost, layers: Sequence[LayerCost]) -> StageCost:
    """``stage`` without the parameters shared with earlier layers."""
    known = {name for layer in layers[:stage.first] for name, _ in layer.shared_parameters}
    own = {name: count for layer in layers[stage.first:stage.last] for name, count in layer.shared_parameters}
    return replace(stage, parameters=stage.parameters - sum(count for name, count in own.items() if name in known))
