"""The memory, messages and costs of each stage of a model before any schedule is searched: memory by purpose.

The stages are those of one shape, cut by :mod:`weft.models.candidates.stage_split` for the micro-batches in flight of
1F1B (S - s on stage s of S); if that does not fit, for one in flight; if not even that fits, with unlimited memory, so
that the estimate shows the missing memory. A cut given in the spec is used as it is. Memory lost to an allocator's
fragmentation belongs to the ``reserve`` of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.models.candidates.build import bytes_per_parameter
from weft.models.candidates.given_cut import cut_of, cut_shapes
from weft.models.candidates.gpu_costs import FamilyCosts, gpu_costs, uses_measured_gpt
from weft.models.candidates.stage_split import NoSplit, StageSplit, split_at, split_layers
from weft.models.candidates.stages import SHAPES, Backward, MemoryRule, Shape, StageCost, peak_bytes, stage_device
from weft.models.layers.cluster import ClusterModel, model_cluster
from weft.models.layers.costs import LayerCost
from weft.models.spec.model_sections import ExplicitModel
from weft.models.spec.quantities import format_bytes
from weft.models.spec.sections import Spec, TrainingRun
from weft.models.spec.spec import SpecError
from weft.models.times.operator_times import Origin

#: More than any model needs, for a split that ignores memory.
_NO_END = 2**62

#: The note on costs that a spec states layer by layer.
GIVEN = "times and sizes are what the spec says"
_MEMORY_MODELLED = (
    "memory is modelled, counted tensor by tensor; against the profiles of GPT-1.3B on V100s kept activations are "
    "within 2 % a layer, and the peak of a GPU is 3 to 11 % lower, with recomputation 8 to 25 % (the profiles count "
    "what an allocator reserved for single operators)")
_MEMORY_MEASURED = ("memory is from the profile: what each operator left allocated, as workspace what its allocator "
                    "reserved; which tensors are kept for the backward is modelled")


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """One stage, for one micro-batch unless stated otherwise: sizes in bytes, times in seconds.

    ``time_origin``: the share of its time that is measured, interpolated, modelled or given by the user.
    ``sent``: to the next stage; its gradient has the same size. ``transfer``: its time one way.
    """

    stage: int
    device: int
    layers: tuple[str, ...]
    parameters: int
    weights: int
    gradients: int
    optimizer: int
    activation: int
    in_flight: int
    workspace: int
    sent: int
    transfer: float
    forward: float
    backward: float
    time_origin: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DeviceEstimate:
    """One GPU: the memory of its stages together, in bytes. ``workspace``: at the peak, beyond kept activations."""

    device: int
    memory: int
    reserve: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int

    @property
    def needed(self) -> int:
        """The peak, reserve included."""
        return (self.reserve + self.weights + self.gradients + self.optimizer + self.activations + self.workspace)

    @property
    def missing(self) -> int:
        """Bytes that the GPU lacks, 0 if it fits."""
        return max(0, self.needed - self.memory)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of a spec. ``memory_origin`` and ``transfer_origin``: measured, modelled or given. ``notes``: errors
    and assumptions, one sentence each."""

    name: str
    shape: Shape
    backward: Backward
    micro_batches: int
    stages: tuple[StageEstimate, ...]
    devices: tuple[DeviceEstimate, ...]
    memory_origin: str
    transfer_origin: str
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether every GPU has enough memory."""
        return not any(device.missing for device in self.devices)


def estimate_spec(spec: Spec, shape: Shape | None = None) -> Estimate:
    """The estimate of ``spec`` in ``shape`` (default: the first that the spec allows, or that its cut can be).

    Raises :class:`~weft.models.spec.spec.SpecError` if there are too few layers, for a shape other than that of the
    spec's cut, for a wave without a cut, and the exceptions of finding costs.
    """
    shape = _shape(spec, shape)
    costs = gpu_costs(spec)
    layers = costs.layers[0]
    cut = cut_of(spec, [layer.name for layer in layers])
    cluster = model_cluster(spec.cluster)
    stage_count = len(stage_device(shape, spec.cluster.gpus) if cut is None else cut[1:])
    if len(layers) < stage_count:
        raise SpecError(f"{spec.where}: model has {len(layers)} layers, too few for {stage_count} stages ({shape} on "
                        f"{spec.cluster.gpus} GPUs)")
    training = isinstance(spec.run, TrainingRun)
    backward: Backward = "none" if not training else (
        "full" if "full" in spec.placement.backward or not all(layer.is_split for layer in layers) else "split")
    wanted = [min(stage_count - s, spec.micro_batches) if training else 1 for s in range(stage_count)]
    rule = MemoryRule(backward, bytes_per_parameter(spec), cluster.reserve)
    if cut is None:
        split, in_flight = _split(shape, costs.layers, cluster, wanted, rule)
    else:
        split, in_flight = _given(shape, costs.layers, cut, cluster, wanted, rule)
    notes = _notes(spec, costs.notes)
    if training and in_flight != wanted:
        shown = f"{wanted[0]} to {wanted[-1]}" if len(wanted) > 8 else " ".join(map(str, wanted))
        notes.insert(0, f"{shown} micro-batches in flight (1F1B) do not fit; this is for one")
    if isinstance(spec.run, TrainingRun) and spec.run.optimizer == "adama":
        notes.insert(0, _adama_note(spec.run, split))
    return Estimate(
        spec.name, shape, backward, spec.micro_batches,
        tuple(_stages(spec, split, in_flight, layers, costs.families, cluster)),
        tuple(_devices(spec, split, in_flight, backward, cluster)),
        "given" if isinstance(spec.model, ExplicitModel) else "modelled" if costs.families else "measured",
        _transfer_origin(spec), tuple(notes))


def _transfer_origin(spec: Spec) -> str:
    cluster = spec.cluster
    if cluster.tiers is not None:
        return "given" if all(tier.bandwidth is not None for tier in cluster.tiers) else "modelled"
    if cluster.links is not None and (cluster.machines == 1 or cluster.machine_bandwidth is None):
        return "measured"
    near = cluster.links is not None or cluster.bandwidth is not None or cluster.gpus == 1
    return "given" if near and (cluster.machines == 1 or cluster.machine_bandwidth is not None) else "modelled"


def _shape(spec: Spec, wanted: Shape | None) -> Shape:
    if spec.placement.cut is not None:
        possible = cut_shapes(spec)
        if wanted is not None and wanted not in possible:
            raise SpecError(f"{spec.where}: placement.cut has {len(spec.placement.cut)} stages on {spec.cluster.gpus} "
                            f"GPUs, which is {' or '.join(possible)}, not {wanted}")
        return wanted or possible[0]
    allowed: list[Shape] = [known for known in SHAPES if known in spec.placement.shapes]
    if wanted == "wave" or (wanted is None and not allowed and "wave" in spec.placement.shapes):
        raise SpecError(f"{spec.where}: a wave is estimated for a cut that is given; give placement.cut, three or more "
                        "stages for each GPU")
    return wanted or (allowed or ["chain"])[0]


def _given(shape: Shape, layers: Sequence[list[LayerCost]], cut: Sequence[int], cluster: ClusterModel,
           wanted: list[int], rule: MemoryRule) -> tuple[StageSplit, list[int]]:
    one = [1] * len(wanted)
    split = split_at(shape, layers, cut, cluster.memory, wanted, rule)
    fits = all(need <= memory for need, memory in zip(split.memory, cluster.available, strict=True))
    return (split, wanted) if fits else (split_at(shape, layers, cut, cluster.memory, one, rule), one)


def _split(shape: Shape, layers: Sequence[list[LayerCost]], cluster: ClusterModel, wanted: list[int],
           rule: MemoryRule) -> tuple[StageSplit, list[int]]:
    one = [1] * len(wanted)
    endless = tuple(_NO_END for _ in cluster.memory)
    for memory, in_flight in ((cluster.memory, wanted), (cluster.memory, one), (endless, one)):
        try:
            return split_layers(shape, layers, memory, in_flight, rule), in_flight
        except NoSplit:
            continue
    raise AssertionError("memory without end holds every split")


def _per_parameter(spec: Spec) -> tuple[int, int, int]:
    run = spec.run
    if isinstance(run, TrainingRun):
        gradients = run.gradient_bytes if run.optimizer == "adam" else 0  # held ones are counted by the stages
        return run.parameter_bytes, gradients, run.optimizer_bytes_per_parameter
    return run.parameter_bytes, 0, 0


def _stages(spec: Spec, split: StageSplit, in_flight: Sequence[int], layers: Sequence[LayerCost],
            families: Sequence[FamilyCosts] | None, cluster: ClusterModel) -> list[StageEstimate]:
    weights, gradients, optimizer = _per_parameter(spec)
    training = isinstance(spec.run, TrainingRun)
    rows = []
    for s, (stage, (first, last)) in enumerate(zip(split.stages, pairwise(split.cuts), strict=True)):
        device = split.devices[s]
        sent = stage.output if s + 1 < len(split.stages) else 0
        workspace = (max(stage.workspace_forward, stage.workspace_backward) if training else stage.working_set)
        rows.append(StageEstimate(
            s, device, tuple(layer.name for layer in layers[first:last]), stage.parameters,
            stage.parameters * weights, stage.parameters * gradients + stage.held_gradients,
            stage.parameters * optimizer, stage.activation if training else 0, in_flight[s], workspace, sent,
            cluster.network.seconds(sent, (device,), split.devices[s + 1:s + 2]), round(stage.forward * 1e-9, 9),
            round(stage.backward * 1e-9, 9),
            _time_origin(spec, layers[first:last], families[device] if families else None)))
    return rows


def _time_origin(spec: Spec, layers: Sequence[LayerCost], family: FamilyCosts | None) -> dict[str, float]:
    """The share of each origin in the time of ``layers``."""
    if family is None:
        return {"given" if isinstance(spec.model, ExplicitModel) else Origin.MEASURED.value: 1.0}
    names = {layer.name for layer in layers}
    spent: dict[str, float] = {}
    for operator in family.graph.operators:
        if operator.layer in names:
            time = family.times[operator.name]
            spent[time.origin.value] = (spent.get(time.origin.value, 0.0) + time.forward + time.input_grad
                                        + time.weight_grad)
    total = sum(spent.values())
    return {origin: round(seconds / total, 4) for origin, seconds in sorted(spent.items())} if total else {}


def _devices(spec: Spec, split: StageSplit, in_flight: Sequence[int], backward: Backward,
             cluster: ClusterModel) -> list[DeviceEstimate]:
    weights, gradients, optimizer = _per_parameter(spec)
    rows = []
    for gpu, memory in enumerate(cluster.memory):
        own: list[tuple[StageCost, int]] = [(stage, count) for stage, count, device in
                                            zip(split.stages, in_flight, split.devices, strict=True) if device == gpu]
        stages, counts = [stage for stage, _ in own], [count for _, count in own]
        parameters = sum(stage.parameters for stage in stages)
        kept = 0 if backward == "none" else sum(stage.activation * count for stage, count in own)
        peak = peak_bytes(stages, counts, backward)
        held = sum(stage.held_gradients for stage in stages)
        rows.append(DeviceEstimate(gpu, memory, cluster.reserve, parameters * weights, parameters * gradients + held,
                                   parameters * optimizer, min(kept, peak), peak - min(kept, peak)))
    return rows


def _adama_note(run: TrainingRun, split: StageSplit) -> str:
    whole = sum(stage.parameters * run.gradient_bytes for stage in split.stages)
    held = sum(stage.held_gradients for stage in split.stages)
    return (f"AdamA folds gradients into the moments layer by layer: {format_bytes(whole - held)} less in all than "
            "with Adam; the largest layer's count as workspace" + (
                f", and {format_bytes(held)} of tied parameters' are held" if held else ""))


def _notes(spec: Spec, said: Sequence[str]) -> list[str]:
    """Remarks for the reader; ``said``: those on the costs of layers."""
    if isinstance(spec.model, ExplicitModel):
        return [GIVEN, *said]
    if uses_measured_gpt(spec):
        return ["times of forwards and whole backwards are measured (the profile "
                f"{spec.costs or 'gpt-1.3b-v100'}), a backward's division into two gradients is modelled",
                _MEMORY_MEASURED, *said]
    return [*said, _MEMORY_MODELLED]
