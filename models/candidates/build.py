"""Conversion of a spec to block problems for the search: one for each possible placement and backward mode.

One micro-batch's blocks are those of its stages, ``F<stage>``, ``B<stage>`` or ``I<stage>`` and ``W<stage>``
(:mod:`weft.models.candidates.stage_blocks`). A forward's output is part of the next stage's kept activations from the
start of that stage's forward; buffers of messages that arrive earlier belong to the cluster's ``reserve``. Transfers
are lags between stages on different GPUs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

from weft.models.candidates.given_cut import cut_of, cut_shapes, most_chunks
from weft.models.candidates.gpu_costs import GpuCosts, gpu_costs, layer_costs, under_optimizer
from weft.models.candidates.stage_blocks import forward_block, gradient_blocks, seconds_of, transfer_seconds
from weft.models.candidates.stage_split import NoSplit, StageSplit, split_at, split_layers
from weft.models.candidates.stages import SHAPES, Backward, MemoryRule, Shape, stage_device, static_bytes
from weft.models.layers.cluster import ClusterModel, Network, model_cluster
from weft.models.layers.costs import LayerCost
from weft.models.spec.model_sections import ExplicitModel, GraphModel
from weft.models.spec.quantities import format_bytes
from weft.models.spec.sections import Spec, TrainingRun
from weft.models.spec.spec import SpecError
from weft.solver.control.clock import OutOfTime, unwatched
from weft.solver.model_facts import ModelFacts, StageFacts, ties_between
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

if TYPE_CHECKING:
    from weft.solver.placement.memory.plan import MemoryPlan

__all__ = ["ModelCandidate", "CutDoesNotFit", "InFlight", "StageRow", "TooLate", "backward_modes",
           "bytes_per_parameter",
           "candidate_at", "candidate_of", "candidates", "first_candidates", "layer_costs", "under_optimizer"]

#: The share by which a stage of a model may differ from its family: biases or none, another norm. One layer of fifty
#: more or less is twice that.
LIKENESS = 0.01
#: The micro-batches in flight that fit under a split: one, or as many as in 1F1B.
InFlight = Literal["least", "1f1b"]


class CutDoesNotFit(ValueError):
    """The given cut needs more memory than the GPUs have."""


class TooLate(ValueError):
    """The time limit expired before anything was found: more time may help."""


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage, for tables: times in seconds for one micro-batch, sizes in bytes."""

    stage: int
    device: int
    layers: tuple[str, ...]
    forward: float
    backward: float
    static_memory: int
    activation_memory: int


@dataclass(frozen=True)
class ModelCandidate:
    """A placement of the spec's model as a block problem.

    ``static_memory``: per device, bytes of parameters, gradients and optimizer state, already subtracted from the
    devices of ``problem``. ``freed``: the additional gradient bytes with Adam, if the optimizer is AdamA.
    ``in_flight``: the micro-batches in flight that fit under the split. ``notes``: the origin of modelled costs, and
    remarks on them. ``decided``: the plan of cuts and memory by operator, if there is one.
    """

    shape: Shape
    backward: Backward
    in_flight: InFlight
    problem: Problem
    static_memory: tuple[int, ...]
    layers_of_stage: tuple[tuple[str, ...], ...]
    stage_device: tuple[int, ...]
    stages: tuple[StageRow, ...]
    notes: tuple[str, ...] = ()
    freed: tuple[int, ...] = ()
    decided: MemoryPlan | None = None


def bytes_per_parameter(spec: Spec) -> int:
    """Bytes on a GPU for each of its parameters: the parameter and, in training, gradient and optimizer state."""
    run = spec.run
    if isinstance(run, TrainingRun):
        gradient = run.gradient_bytes if run.optimizer == "adam" else 0
        return run.parameter_bytes + gradient + run.optimizer_bytes_per_parameter
    return run.parameter_bytes


def candidates(spec: Spec) -> list[ModelCandidate]:
    """The problems a schedule can be searched for: shapes, backward modes and splits that exist and fit.

    For each shape and mode there is the split with the least bottleneck for which one micro-batch in flight fits, and,
    if it differs and fits, the one for as many as in 1F1B: S - s on stage s of S. Two-stage shapes are left out on a
    single GPU and with fewer layers than stages; a split backward if its costs are unknown.

    If time is over before all are made, the existing ones are returned; if there is none, stages of about equal load,
    or memory, if these fit. Raises :class:`TooLate` if they do not,
    :class:`~weft.models.candidates.stage_split.NoSplit` if it is proven that nothing fits,
    :class:`~weft.models.spec.spec.SpecError` if there are fewer layers than GPUs or no shape is left, and what
    :func:`layer_costs` raises.
    """
    with unwatched():  # nothing is possible without them
        costs = gpu_costs(spec)
    layers = costs.layers[0]
    cluster = model_cluster(spec.cluster)
    given = cut_of(spec, [layer.name for layer in layers])
    most_chunks(spec, len(layers))  # an explicit number beyond the layers is refused
    shapes = _shapes(spec, len(layers)) if given is None else cut_shapes(spec)
    modes = backward_modes(spec, layers)
    found: list[ModelCandidate] = []
    refusals: list[NoSplit | CutDoesNotFit] = []
    is_late = False
    for shape in shapes:
        for backward in modes:
            try:
                splits = list(_splits(spec, shape, backward, costs.layers, cluster, given))
            except (NoSplit, CutDoesNotFit) as error:
                refusals.append(error)
                continue
            except OutOfTime:  # what was found is offered
                is_late = True
                continue
            found += [candidate_of(spec, split, backward, in_flight, layers, cluster, costs.notes)
                      for in_flight, split in splits]
    if not found and is_late:
        with unwatched():
            found = [candidate_of(spec, split, backward, "least", layers, cluster,
                                  (*costs.notes, "there was no time to search cuts: the layers are cut evenly"))
                     for backward, split in _simple_cuts(spec, shapes, modes, costs.layers, cluster)]
        if not found:
            raise TooLate(f"{spec.name}: the time limit is too short to search the cuts of the model into stages, and "
                          "even ones do not fit; give more time")
    if not found:
        raise _closest(refusals)
    return found


def first_candidates(spec: Spec) -> Iterator[ModelCandidate]:
    """The quickest candidates of :func:`candidates`, each made on request: of the first shape, with a split backward if
    its costs are known. Raises the exceptions of :func:`candidates`."""
    costs = gpu_costs(spec)
    layers, cluster = costs.layers[0], model_cluster(spec.cluster)
    given = cut_of(spec, [layer.name for layer in layers])
    shape = (_shapes(spec, len(layers)) if given is None else cut_shapes(spec))[0]
    backward = backward_modes(spec, layers)[-1]
    for in_flight, split in _splits(spec, shape, backward, costs.layers, cluster, given):
        yield candidate_of(spec, split, backward, in_flight, layers, cluster, costs.notes)


def _simple_cuts(spec: Spec, shapes: Sequence[Shape], modes: Sequence[Backward], layers: Sequence[list[LayerCost]],
                 cluster: ClusterModel) -> Iterator[tuple[Backward, StageSplit]]:
    """For each shape and mode the stages of about equal load, or else of about equal memory, that fit."""
    per_parameter = bytes_per_parameter(spec)
    for shape in shapes:
        count = len(stage_device(shape, len(cluster.memory)))
        for backward in modes:
            for weights in ([layer.forward + layer.backward for layer in layers[0]],
                            [layer.parameters * per_parameter + layer.activation_bytes for layer in layers[0]]):
                with suppress(CutDoesNotFit):
                    yield backward, _given(spec, shape, backward, layers, cluster, _even(weights, count))
                    break


def candidate_at(spec: Spec, shape: Shape, cut: Sequence[int], backward: Backward,
                 costs: GpuCosts | None = None) -> ModelCandidate:
    """The block problem of one cut, even if it does not fit; ``costs``: of the spec's layers, if known."""
    costs, cluster = costs or gpu_costs(spec), model_cluster(spec.cluster)
    rule = MemoryRule(backward, bytes_per_parameter(spec), cluster.reserve)
    split = split_at(shape, costs.layers, cut, cluster.memory, rule=rule)
    return candidate_of(spec, split, backward, "least", costs.layers[0], cluster, costs.notes)


def _given(spec: Spec, shape: Shape, backward: Backward, layers: Sequence[list[LayerCost]], cluster: ClusterModel,
           cut: Sequence[int]) -> StageSplit:
    """The given cut, or :class:`CutDoesNotFit`."""
    rule = MemoryRule(backward, bytes_per_parameter(spec), cluster.reserve)
    split = split_at(shape, layers, cut, cluster.memory, rule=rule)
    lacking = [need - own for need, own in zip(split.memory, cluster.available, strict=True)]
    if max(lacking) > 0:
        gpu = lacking.index(max(lacking))
        raise CutDoesNotFit(f"{spec.name}: the cut of placement.cut ({shape}) does not fit: gpu{gpu} needs "
                         f"{format_bytes(split.memory[gpu])} for one micro-batch and has "
                         f"{format_bytes(cluster.available[gpu])}; give another cut or more memory")
    return split


def _closest(refusals: list[NoSplit | CutDoesNotFit]) -> NoSplit | CutDoesNotFit:
    """The refusal with the least missing memory; the first if there is no time to compare, or if the cut was given."""
    try:
        return min(refusals, key=lambda error: error.missing if isinstance(error, NoSplit) else 0)
    except OutOfTime:
        return refusals[0]


def _shapes(spec: Spec, layer_count: int) -> list[Shape]:
    gpus = spec.cluster.gpus
    wanted = [shape for shape in SHAPES if shape in spec.placement.shapes]
    if not wanted and "wave" in spec.placement.shapes:
        return ["wave"]
    if layer_count < gpus:
        raise SpecError(f"{spec.where}: model has {layer_count} layers, too few for cluster.gpus: {gpus} "
                        "(each GPU runs at least one)")
    two = gpus > 1 and spec.placement.chunks > 1
    shapes = [shape for shape in wanted
              if shape == "chain" or (two and layer_count >= len(stage_device(shape, gpus)))]
    if not wanted and set(spec.placement.shapes) == {"data"}:
        raise SpecError(f"{spec.where}: placement.shapes is data, the whole model on every GPU, which `weft solve "
                        "--overlap auto` searches; allow chain for a pipeline")
    if not wanted:
        raise SpecError(f"{spec.where}: placement.shapes is {', '.join(spec.placement.shapes)}, GPUs that compute "
                        "together, which takes a family or config with modelled costs, a known cluster.device and "
                        "several GPUs of one kind and of equal memory; allow chain")
    if not shapes:
        raise SpecError(f"{spec.where}: placement.shapes is {', '.join(wanted)}, two stages on each of "
                        f"{gpus} GPUs, but model has {layer_count} layers; allow chain")
    return shapes


def backward_modes(spec: Spec, layers: list[LayerCost]) -> list[Backward]:
    """Those that the spec allows and its layers have. Raises :class:`~weft.models.spec.spec.SpecError` without any."""
    if spec.inference is not None:
        return ["none"]
    modes: list[Backward] = ["full"] if "full" in spec.placement.backward else []
    can_split = all(layer.is_split for layer in layers) and any(layer.weight_grad for layer in layers)
    if "split" in spec.placement.backward and can_split:
        modes.append("split")
    if not modes:
        raise SpecError(f"{spec.where}: placement.backward is split, but no layer has a weight gradient; allow full")
    return modes


def _splits(spec: Spec, shape: Shape, backward: Backward, layers: Sequence[list[LayerCost]],
            cluster: ClusterModel, given: Sequence[int] | None) -> Iterator[tuple[InFlight, StageSplit]]:
    if given is not None:
        yield "least", _given(spec, shape, backward, layers, cluster, given)
        return
    count = len(stage_device(shape, len(cluster.memory)))
    rule = MemoryRule(backward, bytes_per_parameter(spec), cluster.reserve)
    if shape == "wave":  # if nothing else is allowed: an initial cut
        if len(layers[0]) < count:
            raise SpecError(f"{spec.where}: placement.shapes is wave, three stages on each of {spec.cluster.gpus} "
                            f"GPUs, but model has {len(layers[0])} layers; allow chain")
        loads = [layer.forward + layer.backward for layer in layers[0]]
        yield "least", _given(spec, shape, backward, layers, cluster, _even(loads, count))
        return

    def split(in_flight: list[int], least_load: float = 0.0) -> StageSplit:
        return split_layers(shape, layers, cluster.memory, in_flight, rule, least_load=least_load)

    least = split([1] * count)
    yield "least", least
    if backward == "none":
        return
    try:
        roomy = split([min(count - s, spec.micro_batches) for s in range(count)], max(least.loads))
    except NoSplit:
        return
    if roomy.cuts != least.cuts:
        yield "1f1b", roomy


def _even(weights: Sequence[float], count: int) -> tuple[int, ...]:
    """Borders of ``count`` stages of layers with about the same sum of ``weights``."""
    before = list(accumulate(weights, initial=0.0))
    borders = [0]
    for s in range(1, count):
        border = bisect_left(before, before[-1] * s / count)
        borders.append(max(borders[-1] + 1, min(border, len(weights) - (count - s))))
    return *borders, len(weights)


def candidate_of(spec: Spec, split: StageSplit, backward: Backward, in_flight: InFlight, layers: list[LayerCost],
                 cluster: ClusterModel, notes: tuple[str, ...] = ()) -> ModelCandidate:
    """The block problem of ``split``."""
    per_parameter = bytes_per_parameter(spec)
    static = tuple(static_bytes([stage for stage, device in zip(split.stages, split.devices, strict=True)
                                 if device == gpu], per_parameter) for gpu in range(len(cluster.memory)))
    devices = tuple(Device(f"gpu{gpu}", capacity - held)
                    for gpu, (capacity, held) in enumerate(zip(cluster.available, static, strict=True)))
    names = tuple(tuple(layer.name for layer in layers[first:last]) for first, last in pairwise(split.cuts))
    rows = tuple(
        StageRow(s, device, names[s], seconds_of(stage.forward), seconds_of(stage.backward),
                 static_bytes([stage], per_parameter), 0 if backward == "none" else stage.activation)
        for s, (stage, device) in enumerate(zip(split.stages, split.devices, strict=True)))
    problem = Problem(f"{spec.name} ({_title(split.shape, backward)})", devices,
                      tuple(_blocks(split, backward, cluster.network)), time_unit="s", memory_unit="B",
                      model=_model(spec, split, layers))
    return ModelCandidate(split.shape, backward, in_flight, problem, static, names, split.devices, rows,
                          notes, _freed(spec, split))


def _model(spec: Spec, split: StageSplit, layers: list[LayerCost]) -> ModelFacts:
    """The composition of the stages, to be compared with the modules that will run.

    A captured graph is exact; a family approximates many models, which differ for example in biases. Of listed layers
    only the names are known, their sizes are estimates.
    """
    stages, tied = [], {}
    is_known = not isinstance(spec.model, ExplicitModel)
    for s, (stage, (first, last)) in enumerate(zip(split.stages, pairwise(split.cuts), strict=True)):
        own = layers[first:last]
        stages.append(StageFacts(f"F{s}", tuple(layer.name for layer in own), stage.parameters if is_known else None,
                                 output_bytes=stage.output if is_known and s < len(split.stages) - 1 else None))
        tied[f"F{s}"] = [name for layer in own for name, _ in (*layer.shared_parameters, *layer.copied_parameters)]
    return ModelFacts(tuple(stages), ties_between(tied), 0.0 if isinstance(spec.model, GraphModel) else LIKENESS)


def _freed(spec: Spec, split: StageSplit) -> tuple[int, ...]:
    """Per GPU, the bytes of gradients that Adam keeps through the step and the spec's optimizer does not."""
    run = spec.run
    if not isinstance(run, TrainingRun) or run.optimizer == "adam":
        return ()
    return tuple(sum(stage.parameters * run.gradient_bytes - stage.held_gradients
                     for stage, device in zip(split.stages, split.devices, strict=True) if device == gpu)
                 for gpu in range(spec.cluster.gpus))


def _title(shape: Shape, backward: Backward) -> str:
    return shape if backward == "none" else f"{shape}, {backward} backward"


# -- blocks ------------------------------------------------------------------------------------------------------


def _blocks(split: StageSplit, backward: Backward, network: Network) -> Iterator[Block]:
    """All forwards, first stage to last, then all backwards, last stage to first, each with its weight gradient."""
    stages, devices = split.stages, split.devices
    lags = transfer_seconds(stages, devices, network)  # from stage s to s + 1
    for s, stage in enumerate(stages):
        yield forward_block(s, stage, (devices[s],), backward, (Dependency(f"F{s - 1}", lags[s - 1]),) if s else ())
    if backward == "none":
        return
    before, lag = f"F{len(stages) - 1}", 0.0
    for s in reversed(range(len(stages))):
        for block in gradient_blocks(s, stages[s], (devices[s],), backward, (Dependency(before, lag),)):
            if block.kind != BlockKind.WEIGHT_GRAD:
                before = block.name
            yield block
        lag = lags[s - 1] if s else 0.0
