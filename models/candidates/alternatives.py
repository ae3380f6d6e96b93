"""Placements whose stages have alternatives: the activations each keeps, and whether its backward is split.

A cut of the layers into stages becomes a problem with choices (:class:`~weft.solver.problem.Problem`). Stage s
has the choice ``activations: stage s`` of

* ``keep``: the tensors that its layers save for the backward stay on the GPU;
* ``recompute``: its layers keep their inputs, and the backward runs their forwards again, layer by layer, as
  ``training.recompute`` does for all stages. It needs room for one layer at a time;
* ``recompute-half``: the first half of its layers recompute so, the others keep;
* ``recompute-ahead``: as ``recompute``, but the second forwards are a block of their own, R, which recomputes
  everything that a kept forward keeps. It needs more memory and may run while the GPU waits for the gradient;
* ``offload``: its kept tensors, except those it receives, are copied to the host after the forward and back before the
  backward, on two lanes of the GPU, one each way. The memory is freed when the copy out ends, and allocated again when
  the copy back starts;

and ``backward: stage s`` of ``full`` and ``split``. Options that change nothing, or only cost time, are left out, as is
a choice with a single remaining option.

A block that exists under several options has one name: the relaxed problem has it once, with its least costs under any.
So if a stage's backward may be whole, its input gradient is named ``B`` too. Under every assignment the problem equals
that of :mod:`weft.models.candidates.build` for these stages, except for names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from weft.models.candidates.build import CutDoesNotFit, ModelCandidate, bytes_per_parameter, candidate_of, candidates
from weft.models.candidates.gpu_costs import gpu_costs
from weft.models.candidates.stage_blocks import (
    forward_block,
    gradient_blocks,
    seconds_of,
    transfer_seconds,
)
from weft.models.candidates.stage_split import NoSplit, StageSplit, split_at
from weft.models.candidates.stages import Backward, MemoryRule, Shape, StageCost
from weft.models.layers.cluster import ClusterModel, Network, model_cluster
from weft.models.layers.costs import LayerCost
from weft.models.spec.placement import ACTIVATIONS, Activations
from weft.models.spec.sections import Spec
from weft.solver.problem import Block, BlockKind, Dependency, Device, Options, Problem


@dataclass(frozen=True, slots=True)
class ActivationsKept:
    """One way for a stage to provide its activations to its backward.

    ``forward`` and ``backward``: the stage's costs during its forward and during its backward. ``again``: nanoseconds
    of a separate recomputation; ``away``: bytes on the host in between; 0 if there is none.
    """

    way: Activations
    forward: StageCost
    backward: StageCost
    again: int = 0
    away: int = 0


@dataclass(frozen=True)
class OpenCandidate:
    """``plain``: the placement if every stage keeps its activations and none is split (or all are).
    ``problem``: the same stages on the same GPUs with their choices. ``backward``: the modes that stages may have."""

    plain: ModelCandidate
    problem: Problem
    backward: tuple[Backward, ...]




def activations_choice(stage: int) -> str:
    """The name of the choice for the activations of ``stage``."""
    return f"activations: stage {stage}"


def backward_choice(stage: int) -> str:
    """The name of the choice for the backward of ``stage``."""
    return f"backward: stage {stage}"


def copy_lanes(device: str) -> tuple[str, str]:
    """The names of a device's lanes that copy to the host and back."""
    return f"{device} to host", f"{device} from host"


def open_candidates(spec: Spec) -> list[OpenCandidate]:
    """The placements of one GPU a stage with the choices of ``placement.choices``; none if it has no choices.

    The cuts are those of :func:`~weft.models.candidates.build.candidates` with all stages keeping their activations,
    and with all recomputing them, without duplicates. Raises the exceptions of that function if neither finds one.
    """
    listed = spec.placement.choices
    if not listed:
        return []
    again = recomputing_spec(spec)
    found = _cuts(spec, again)
    layers = gpu_costs(spec).layers
    layers_again = gpu_costs(again).layers if "activations" in listed else layers
    cluster = model_cluster(spec.cluster)
    made: dict[object, OpenCandidate] = {}
    for plain in found:
        modes: tuple[Backward, ...] = ("full", "split") if "backward" in listed else (plain.backward,)
        key = (plain.shape, plain.layers_of_stage, plain.stage_device, modes)
        if key not in made:
            candidate = _open(spec, plain, modes, layers, layers_again, cluster)
            if candidate.problem.choices:
                made[key] = candidate
    return list(made.values())


def recomputing_spec(spec: Spec) -> Spec:
    """``spec`` with every stage recomputing."""
    run = spec.training
    assert run is not None  # the spec was checked
    return spec.model_copy(update={"training": run.model_copy(update={"recompute": True})})


def _cuts(spec: Spec, again: Spec) -> list[ModelCandidate]:
    """The placements of either; the least refusal if there is none."""
    if "activations" not in spec.placement.choices:
        return candidates(spec)
    found: list[ModelCandidate] = []
    refusal: Exception | None = None
    for one in (spec, again):
        try:
            found += candidates(one)
        except (NoSplit, CutDoesNotFit) as error:
            refusal = error
    if not found and refusal is not None:
        raise refusal
    return found


def _open(spec: Spec, plain: ModelCandidate, modes: tuple[Backward, ...], layers: Sequence[list[LayerCost]],
          layers_again: Sequence[list[LayerCost]], cluster: ClusterModel) -> OpenCandidate:
    cuts = list(accumulate(map(len, plain.layers_of_stage), initial=0))
    rule = MemoryRule(plain.backward, bytes_per_parameter(spec), cluster.reserve)
    split, again = (split_at(plain.shape, own, cuts, cluster.memory, rule=rule) for own in (layers, layers_again))
    kept = candidate_of(spec, split, plain.backward, plain.in_flight, layers[0], cluster, plain.notes)
    halves = _halves(plain.shape, layers, layers_again, cuts, cluster, rule)
    received = [layers[0][first].input_bytes if s else 0 for s, (first, _) in enumerate(pairwise(cuts))]
    allowed = spec.placement.activations if "activations" in spec.placement.choices else ("keep",)
    ways = [kept_ways(stage, other, half, size, allowed, offloads=spec.cluster.host_bandwidth is not None)
            for stage, other, half, size in zip(split.stages, again.stages, halves, received, strict=True)]
    named = f"{plain.shape}, " + ("" if len(modes) > 1 else f"{modes[0]} backward, ") + "by stage"
    return OpenCandidate(kept, open_problem(f"{spec.name} ({named})", kept, split, ways, modes, cluster.network,
                                            spec.cluster.host_bandwidth), modes)


def _halves(shape: Shape, layers: Sequence[list[LayerCost]], layers_again: Sequence[list[LayerCost]],
            cuts: Sequence[int], cluster: ClusterModel, rule: MemoryRule) -> tuple[StageCost, ...]:
    """Each stage with the first half of its layers, rounded up, recomputing."""
    first = [at < begin + -(-(end - begin) // 2) for begin, end in pairwise(cuts) for at in range(begin, end)]
    mixed = {id(own): [other if is_first else layer for layer, other, is_first in zip(own, again, first, strict=True)]
             for own, again in zip(layers, layers_again, strict=True)}
    return split_at(shape, [mixed[id(own)] for own in layers], cuts, cluster.memory, rule=rule).stages


def kept_ways(stage: StageCost, recomputing: StageCost, half: StageCost, received: int,
              allowed: Sequence[Activations] = ACTIVATIONS, *, offloads: bool = True) -> tuple[ActivationsKept, ...]:
    """The ways among ``allowed`` that differ for ``stage``, given as ``recomputing`` with all and ``half`` with half of
    its layers recomputing, and ``received`` bytes from the previous stage; to keep all if none of them differs.

    ``offloads``: whether there is a host to copy to.
    """
    spared = stage.activation - recomputing.activation
    more = recomputing.backward - stage.backward
    found = {"keep": ActivationsKept("keep", stage, stage)}
    if stage.backward and spared > 0 and more > 0:
        found["recompute"] = ActivationsKept("recompute", recomputing, recomputing)
        if recomputing.activation < half.activation < stage.activation and half.backward < recomputing.backward:
            found["recompute-half"] = ActivationsKept("recompute-half", half, half)
        found["recompute-ahead"] = ActivationsKept("recompute-ahead", recomputing, stage, again=more)
    if offloads and stage.backward and stage.activation > received:
        found["offload"] = ActivationsKept("offload", stage, stage, away=stage.activation - received)
    ways = tuple(found[way] for way in allowed if way in found)
    return ways or (found["keep"],)


def open_problem(name: str, plain: ModelCandidate, split: StageSplit, ways: Sequence[Sequence[ActivationsKept]],
                 modes: Sequence[Backward], network: Network, host_bandwidth: float | None = None) -> Problem:
    """The problem of the stages of ``split`` with the ``ways`` and backward ``modes`` that each may have.

    ``plain``: the placement with its devices. ``host_bandwidth``: bytes a second of copies to the host,
    required if a way has any.
    """
    stages = [_StageWithWays(s, split.devices[s], tuple(own),
                             tuple(modes) if len(modes) == 1 or _has_parts(split.stages[s]) else ("full",))
              for s, own in enumerate(ways)]
    lags = transfer_seconds(split.stages, split.devices, network)
    devices, lane = _with_lanes(plain.problem.devices, stages)
    blocks: list[Block] = []
    for stage in stages:
        s = stage.number
        blocks += stage.forwards((Dependency(f"F{s - 1}", lags[s - 1]),) if s else ())
        blocks += stage.copies(lane, host_bandwidth)
    before, lag = f"F{len(stages) - 1}", 0.0
    for stage in reversed(stages):
        gradients = list(stage.gradients(Dependency(before, lag)))
        blocks += [*stage.recomputations(), *gradients]
        before = next((block.name for block in gradients if block.kind != BlockKind.WEIGHT_GRAD), before)
        lag = lags[stage.number - 1] if stage.number else 0.0
    choices = {choice: options for stage in stages for choice, options in stage.choices}
    return Problem(name, devices, tuple(blocks), choices=choices, time_unit="s", memory_unit="B",
                   model=plain.problem.model)


def _has_parts(stage: StageCost) -> bool:
    """Whether its backward may be whole or in two parts."""
    return bool(stage.input_grad and stage.weight_grad)


@dataclass(frozen=True, slots=True)
class _StageWithWays:
    """Stage ``number`` on ``device`` with its ways and backward modes."""

    number: int
    device: int
    ways: tuple[ActivationsKept, ...]
    modes: tuple[Backward, ...]

    @property
    def choices(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Its choices with their options."""
        if len(self.ways) > 1:
            yield activations_choice(self.number), tuple(kept.way for kept in self.ways)
        if len(self.modes) > 1:
            yield backward_choice(self.number), self.modes

    def forwards(self, after: tuple[Dependency, ...]) -> Iterator[Block]:
        """Its forward under every way."""
        yield from self._under_ways([
            (kept, forward_block(self.number, kept.forward, (self.device,), "full", after))
            for kept in self.ways], {})

    def copies(self, lane: Mapping[int, tuple[int, int]], bandwidth: float | None) -> Iterator[Block]:
        """Its copies to the host and back, if it offloads."""
        for kept in self.ways:
            if not kept.away:
                continue
            assert bandwidth is not None
            away, back = lane[self.device]
            long = round(math.ceil(kept.away / bandwidth * 1e9) * 1e-9, 9)
            name, when = f"F{self.number}", self._when(kept)
            yield Block(f"{name} out", BlockKind.OTHER, (away,), long, (-kept.away,),
                        after=(Dependency(name),), when=when)
            yield Block(f"{name} in", BlockKind.OTHER, (back,), long, (kept.away,),
                        after=(Dependency(f"{name} out"),), when=when)

    def recomputations(self) -> Iterator[Block]:
        """Its second forward, if that is a separate block: it recomputes the tensors of a kept forward."""
        for kept in self.ways:
            if kept.again:
                yield Block(f"R{self.number}", BlockKind.RECOMPUTE, (self.device,), seconds_of(kept.again),
                            (kept.backward.activation - kept.forward.activation,),
                            (kept.backward.workspace_forward,), (Dependency(f"F{self.number}"),),
                            self._when(kept))

    def gradients(self, after: Dependency) -> Iterator[Block]:
        """Its backward under every mode and way."""
        for mode in self.modes:
            when = {backward_choice(self.number): str(mode)} if len(self.modes) > 1 else {}
            found: dict[str, list[tuple[ActivationsKept, Block]]] = {}
            for kept in self.ways:
                for block in gradient_blocks(self.number, kept.backward, (self.device,), mode, ()):
                    found.setdefault(block.name, []).append((kept, self._gradient(block, kept, after)))
            for alternatives in found.values():
                yield from self._under_ways(alternatives, when)

    def _gradient(self, block: Block, kept: ActivationsKept, after: Dependency) -> Block:
        if block.after:  # a weight gradient after its input gradient
            waits = tuple(Dependency(self._name(wait.block)) for wait in block.after)
        else:
            waits = (after, *((Dependency(f"R{self.number}"),) if kept.again else ()),
                     *((Dependency(f"F{self.number} in"),) if kept.away else ()))
        return replace(block, name=self._name(block.name), after=waits)

    def _name(self, name: str) -> str:
        return f"B{self.number}" if self._is_renamed and name == f"I{self.number}" else name

    @property
    def _is_renamed(self) -> bool:
        """Whether earlier stages may wait for its input gradient or for a whole backward: both then have one name."""
        names = {block.name for mode in self.modes for kept in self.ways
                 for block in gradient_blocks(self.number, kept.backward, (self.device,), mode, ())
                 if block.kind != BlockKind.WEIGHT_GRAD}
        return len(names) > 1

    def _under_ways(self, alternatives: Sequence[tuple[ActivationsKept, Block]], when: Options
                    ) -> Iterator[Block]:
        """One block if it is equal under all ways, else one for each way."""
        if len(alternatives) == len(self.ways) and all(block == alternatives[0][1] for _, block in alternatives):
            yield replace(alternatives[0][1], when=when)
            return
        for kept, block in alternatives:
            yield replace(block, when={**self._when(kept), **when})

    def _when(self, kept: ActivationsKept) -> dict[str, str]:
        return {activations_choice(self.number): kept.way} if len(self.ways) > 1 else {}


def _with_lanes(devices: tuple[Device, ...], stages: Sequence[_StageWithWays]
                ) -> tuple[tuple[Device, ...], Mapping[int, tuple[int, int]]]:
    """``devices`` with two lanes for each whose stages may offload, and these lanes."""
    lanes: dict[int, tuple[int, int]] = {}
    listed = list(devices)
    for device in sorted({stage.device for stage in stages if any(kept.away for kept in stage.ways)}):
        lanes[device] = (len(listed), len(listed) + 1)
        listed += [Device(name, lane_of=devices[device].name) for name in copy_lanes(devices[device].name)]
    return tuple(listed), lanes
