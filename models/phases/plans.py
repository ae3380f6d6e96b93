"""What of a schedule's placement stays the same where costs change: a plan, and the same plan at another spec's costs.

A plan says which layers are on which GPUs, how the weights of every operator are divided among a group's GPUs, and how
the backward runs. Times and memory follow from the spec; the order of blocks is searched anew for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from weft.models.candidates.build import Candidate, CutDoesNotFit, candidates
from weft.models.candidates.stage_split import NoSplit
from weft.models.candidates.stages import Backward
from weft.models.overlap.data_parallel import ALL_REDUCE, GRADIENTS
from weft.models.spec.sections import Spec
from weft.models.tensor_parallel.parts import Part, stage_cost
from weft.models.tensor_parallel.shapes import ShapeCandidate, candidate_of, space_for
from weft.models.tensor_parallel.space import Space
from weft.solver.problem import BlockKind
from weft.solver.schedule import Schedule

__all__ = ["Plan", "candidate_at", "plan_of", "shape_candidate_at"]

#: A shape of one GPU a stage, one of groups of GPUs, or the whole model on every GPU.
Kind = Literal["stages", "groups", "data"]
_ONE_GPU = ("chain", "v", "loop", "wave")


@dataclass(frozen=True)
class Plan:
    """``layers`` and ``gpus`` of each stage, in order; of ``data`` none.

    ``splits``: by degree, the operators whose weights are divided among so many GPUs, each with the dimension.
    ``co_shard``: by stage, in which parts its layers run in turn ("": none). ``replicas``: of the model; the stages of
    each follow each other. ``sliced``: of ``data``, whether each GPU has its slice of the optimizer state only.
    ``title`` tells it to people, equal plans may have different ones.
    """

    title: str = field(compare=False)
    kind: Kind
    backward: Backward
    layers: tuple[tuple[str, ...], ...] = ()
    gpus: tuple[tuple[int, ...], ...] = ()
    splits: tuple[tuple[int, tuple[tuple[str, str], ...]], ...] = ()
    co_shard: tuple[str, ...] = ()
    replicas: int = 1
    sliced: bool = False

    @property
    def split_of(self) -> Mapping[int, Mapping[str, str]]:
        """``splits`` as mappings."""
        return {degree: dict(splits) for degree, splits in self.splits}


def plan_of(spec: Spec, schedule: Schedule) -> Plan:
    """The plan of a ``schedule`` that was found for ``spec``."""
    said: Mapping[str, Any] = schedule.solver
    title = str(said.get("placement", ""))
    kinds = {block.kind for block in schedule.problem.blocks}
    backward: Backward = "split" if BlockKind.INPUT_GRAD in kinds else "full"
    layers = tuple(tuple(names) for names in said.get("layers_of_stage", ()))
    if said.get("unit") == "step" or not layers:
        return Plan(title, "data", backward, sliced=schedule.choices.get(GRADIENTS) != ALL_REDUCE)
    if "gpus_of_stage" not in said:
        by_name = {block.name: block for block in schedule.problem.blocks}
        return Plan(title, "stages", backward, layers,
                    tuple(by_name[f"F{stage}"].devices for stage in range(len(layers))))
    gpus = tuple(tuple(group) for group in said["gpus_of_stage"])
    space = space_for(spec)
    assert space is not None  # or there were no groups
    parts = [entry["parts"] if entry else "" for entry in said.get("co_shard", [None] * len(gpus))]
    return Plan(title, "groups", backward, layers, gpus, _splits(space, layers, gpus), tuple(parts),
                int(said.get("replicas", 1)))


def _splits(space: Space, layers: tuple[tuple[str, ...], ...], gpus: tuple[tuple[int, ...], ...]
            ) -> tuple[tuple[int, tuple[tuple[str, str], ...]], ...]:
    """How weights are divided in the stages of each degree."""
    found = []
    for degree in sorted({len(group) for group in gpus} - {1}):
        inside = {name for names, group in zip(layers, gpus, strict=True) if len(group) == degree for name in names}
        choices = space.sharded[degree].choices
        found.append((degree, tuple(
            (operator.name, choice.dimension) for operator in space.graph.operators
            if operator.layer in inside and (choice := choices[operator.name]) is not None and choice.parameters)))
    return tuple(found)


def candidate_at(spec: Spec, plan: Plan) -> Candidate | None:
    """``plan``, of one GPU a stage, at the costs of ``spec``; ``None`` where it does not fit."""
    counts = tuple(len(names) for names in plan.layers)
    chunks = len(counts) // spec.cluster.gpus
    # pydantic does not check a copy, and need not: the whole spec was checked.
    pinned = spec.model_copy(update={"placement": spec.placement.model_copy(update={
        "cut": counts, "shapes": _ONE_GPU, "backward": (plan.backward,), "chunks": chunks,
        "co_shard": ()})})
    with suppress(NoSplit, CutDoesNotFit):
        for found in candidates(pinned):
            if tuple((device,) for device in found.stage_device) == plan.gpus and found.backward == plan.backward:
                return found
    return None


def shape_candidate_at(spec: Spec, plan: Plan) -> tuple[ShapeCandidate, Space] | None:
    """``plan``, on groups of GPUs, at the costs of ``spec``; ``None`` where it does not fit."""
    space = space_for(spec)
    if space is None:
        return None
    space = replace(space, pinned=plan.split_of)
    index = {name: i for i, name in enumerate(space.layers)}
    each = len(plan.layers) // plan.replicas
    parts = []
    for number, (names, gpus, in_parts) in enumerate(zip(plan.layers, plan.gpus, plan.co_shard, strict=True)):
        costs = space.co_sharded.get(in_parts) if in_parts else space.costs[len(gpus)]
        if costs is None:
            return None
        replica, stage = divmod(number, each)
        layers = tuple(index[name] for name in names)
        parts.append(Part(f"{stage}{'u' * replica}", layers, gpus, stage_cost(costs, layers), replica, in_parts))
    found = candidate_of(space, "x" if plan.replicas > 1 else "groups", plan.backward, tuple(parts),
                         replicas=plan.replicas)
    return None if found is None else (found, space)
