"""Placements in which GPUs compute some layers together, as block problems: the shape is found, not given.

A shape determines the layers that all GPUs compute together and the placement of the rest on groups (Lin et al.,
"Tessel", HPCA 2024, names most of them):

* ``tensor``: all GPUs compute every layer together;
* ``groups``: a chain of stages, each on a group of GPUs (some groups larger than one GPU; else it is the chain);
* ``m``: layers with a vocabulary (embedding, head) on all GPUs, the rest a chain over groups;
* ``nn``: the same with such a layer inside as well, between an encoder and a decoder;
* ``k``: parallel towers on separate groups, and the layers that join them on all GPUs;
* ``x``: two replicas of the model, one down the groups and one up, each with every other micro-batch.

For each shape and backward mode the layers are cut by :mod:`weft.models.tensor_parallel.group_chains` for every number
of stages, and the few with the least estimated step are kept. The layers of ``m`` and ``nn`` between those on all GPUs
are also cut into two chunks a group (:mod:`weft.models.tensor_parallel.group_rows`), and all layers of ``groups`` into
several (:mod:`weft.models.tensor_parallel.group_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

from weft.models.candidates.gpu_costs import device_of, family_costs, may_be_together
from weft.models.candidates.stages import Backward, static_bytes
from weft.models.spec.sections import Spec
from weft.models.spec.spec import SpecError
from weft.models.tensor_parallel.co_shard import segments_of
from weft.models.tensor_parallel.group_chains import (
    TOGETHER,
    NoShape,
    TogetherShape,
    best_chains,
    chains_of,
    layer_chain,
    layers_together,
    room_beside,
    runs_of,
    tower_chains,
)
from weft.models.tensor_parallel.group_rows import CHUNKS, Chunks, best_rows, chunked, divisions, group_of_stage
from weft.models.tensor_parallel.group_split import GroupStage, split_onto_groups
from weft.models.tensor_parallel.parts import LayersPart, part_problem, static_memory
from weft.models.tensor_parallel.space import Space, space_of
from weft.solver.control.clock import OutOfTime
from weft.solver.problem import Problem

#: The reason for a shape that was not searched.
TOO_LATE = "the time limit is too short to look for its placements"

__all__ = ["TOGETHER", "TOO_LATE", "ShapeCandidate", "ShapeRefused", "TogetherShape", "candidate_of",
           "shape_candidates", "space_for", "together"]


@dataclass(frozen=True)
class ShapeCandidate:
    """A placement as a block problem.

    ``gpus``: the GPUs represented by each device of ``problem``. ``static_memory``: static bytes of each of them,
    already subtracted from ``problem``'s devices. ``replicas``: of the model; a micro-batch of the problem is one of
    each. ``chunks``: the placement of several chunks a group, if there are several.
    """

    shape: TogetherShape
    backward: Backward
    problem: Problem
    gpus: tuple[tuple[int, ...], ...]
    static_memory: tuple[int, ...]
    parts: tuple[LayersPart, ...]
    layers_of_part: tuple[tuple[str, ...], ...]
    replicas: int = 1
    chunks: Chunks | None = None

    @property
    def title(self) -> str:
        """Such as "M, 4 stages on 2 GPUs each"."""
        total = sum(map(len, self.gpus))
        stages = [part for part in self.parts if part.degree < total and part.replica == 0]
        if not stages:
            return "tensor parallel"
        degrees = sorted({part.degree for part in stages})
        each = "1 GPU" if degrees == [1] else f"{'-'.join(map(str, dict.fromkeys((degrees[0], degrees[-1]))))} GPUs"
        each += " each"
        name = "chain" if self.shape == "groups" else self.shape.upper()
        parts = sorted({part.co_shard for part in stages} - {""})
        if parts:
            each += f", with {' or '.join(parts)}"
        if self.chunks is not None:
            number = len(stages) // len({part.gpus for part in stages})
            return f"{name}, {'V' if self.chunks == 'v' else self.chunks} of {number} chunks on {each}"
        return f"{name}, {len(stages)} stages on {each}"


@dataclass(frozen=True, slots=True)
class ShapeRefused:
    """A refused shape, and the reason."""

    shape: TogetherShape
    reason: str


def shape_candidates(space: Space, shapes: Sequence[str], modes: Sequence[str],
                     chunks: Sequence[Chunks] = ()) -> tuple[list[ShapeCandidate], list[ShapeRefused]]:
    """The placements of ``shapes`` that exist and fit with one micro-batch in flight, and the reasons against the
    others.

    ``chunks``: the allowed placements of several chunks a group in ``groups``, ``m`` and ``nn``, beside one. A shape is
    refused only if neither mode has a placement, for any number of chunks.
    """
    found: list[ShapeCandidate] = []
    refused: list[ShapeRefused] = []
    for shape in (shape for shape in TOGETHER if shape in shapes):
        made: list[ShapeCandidate] = []
        reasons: list[str] = []
        try:
            for backward in space.modes(modes):
                try:
                    made += _of_shape(space, shape, backward)
                except NoShape as error:
                    reasons.append(str(error))
                if shape in ("m", "nn"):
                    with suppress(NoShape):  # already reported for one chunk
                        made += _in_chunks(space, shape, backward, chunks)
                elif shape == "groups" and backward == space.modes(modes)[-1]:  # split ones dominate whole ones
                    made += _in_rows(space, backward, chunks, [chain for chain in made if chain.backward == backward])
        except OutOfTime:
            reasons.append(TOO_LATE)
        found += made
        if not made:
            refused.append(ShapeRefused(shape, next(iter(reasons), "no split of its layers fits into memory")))
    return found, refused


def together(spec: Spec) -> tuple[Space, list[ShapeCandidate], list[ShapeRefused]] | None:
    """The :func:`shape_candidates` of ``spec``; ``None`` if GPUs cannot compute together.

    That requires a model with splittable operators (a family or config), costs by operator, a known device, and GPUs of
    one kind and equal memory. Raises the exceptions of finding costs, and :class:`~weft.models.spec.spec.SpecError` for
    an impossible co-shard.
    """
    wanted = [shape for shape in TOGETHER if shape in spec.placement.shapes]
    if not wanted:
        return None
    space = space_for(spec)
    _check_co_shard(spec, space)
    return None if space is None else (space, *shape_candidates(
        space, wanted, spec.placement.backward, [chunks for chunks in CHUNKS if chunks in spec.placement.shapes]))


def space_for(spec: Spec) -> Space | None:
    """The space of ``spec``, ``None`` if GPUs cannot compute together."""
    if not may_be_together(spec):
        return None
    space = space_of(spec, family_costs(spec)) if device_of(spec) is not None else None
    return space if space is not None and any(operator.splits for operator in space.graph.operators) else None


def _check_co_shard(spec: Spec, space: Space | None) -> None:
    """Refuse a co-shard impossible for all layers."""
    if not spec.placement.co_shard:
        return
    if space is None:
        raise SpecError(f"{spec.where}: placement.co_shard is for a family or config whose operators have modelled "
                        "costs, a known cluster.device and several GPUs of one kind and of equal memory; give those or "
                        "leave it out")
    segments = segments_of(space.graph)
    for parts in spec.placement.co_shard:
        if not any(segment.divides(parts) for segment in segments):
            raise SpecError(f"{spec.where}: placement.co_shard has {parts}, but no attention or feed-forward part of "
                            "this model divides into so many; give numbers that divide its heads or hidden units")


def _of_shape(space: Space, shape: TogetherShape, backward: Backward) -> list[ShapeCandidate]:
    together = layers_together(space, shape)
    if shape == "x":
        return _both_ways(space, backward)
    arrangements = list([list(tower_chains(space, together, backward))] if shape == "k" else
                        chains_of(space, together, backward))
    if shape == "groups":
        arrangements = [[chain for chain in chains if len(chain) > 1 and any(
            stage.degree > 1 or stage.co_shard for stage in chain)] for chains in arrangements]
        if not any(arrangements):
            raise NoShape("no split into stages fits of which one is on several GPUs")
    best = dict.fromkeys(chain for chains in arrangements for chain in best_chains(space, together, chains))
    made = [_candidate(space, shape, backward, together, chain) for chain in best]
    return [candidate for candidate in made if candidate is not None]


def _in_chunks(space: Space, shape: TogetherShape, backward: Backward,
               chunks: Sequence[Chunks]) -> Iterator[ShapeCandidate]:
    """The placements of ``m`` or ``nn`` with two chunks a group, for each of ``chunks``."""
    together = layers_together(space, shape)
    rest = [layer for layer in range(len(space.layers)) if layer not in together]
    everyone = tuple(range(space.gpus))
    spread = [space.part("", run, everyone) for run in runs_of(together)]
    for how in chunks:
        for chain in chunked(space, rest, how, backward, room_beside(space, together, backward)):
            parts = sorted((*spread, *chain), key=lambda part: part.layers[0])
            made = candidate_of(space, shape, backward, tuple(replace(part, name=str(number))
                                                       for number, part in enumerate(parts)), chunks=how)
            if made is not None:
                yield made


def _in_rows(space: Space, backward: Backward, chunks: Sequence[Chunks],
             chains: Sequence[ShapeCandidate]) -> Iterator[ShapeCandidate]:
    """Rows of several chunks a group over all layers that may beat ``chains``: on groups of equal size, of the chains'
    sizes, or of two sizes with the least idle time."""
    loads = [[part.cost.load for part in chain.parts] for chain in chains if _runs_as_1f1b(space, chain.parts)]
    most = min(((space.micro_batches - 1) * max(load) + sum(load) for load in loads), default=math.inf)
    longest = math.inf if math.isinf(most) else most / space.micro_batches
    groups = [tuple(part.degree for part in chain.parts) for chain in chains]
    groups += divisions(space.terms, space.gpus, space.capacity, longest) if chunks else []
    for row in best_rows(space, chunks, backward, groups, most):
        members = members_of(row.degrees)
        where = [members[group] for group in group_of_stage(row.kind, len(row.degrees), row.chunks)]
        parts = tuple(space.part(str(number), range(*run), gpus)
                      for number, (run, gpus) in enumerate(zip(pairwise(row.cuts), where, strict=True)))
        made = candidate_of(space, "groups", backward, parts, chunks=row.kind)
        if made is not None:
            yield made


def _runs_as_1f1b(space: Space, parts: Sequence[LayersPart]) -> bool:
    """Whether a chain has room for the activations of 1F1B: one cut for less is not comparable with others."""
    return all(static_bytes([part.cost], space.bytes_per_parameter) + part.cost.workspace_backward
               + min(len(parts) - number, space.micro_batches) * part.cost.activation <= space.capacity
               for number, part in enumerate(parts))


def _candidate(space: Space, shape: TogetherShape, backward: Backward, together: Sequence[int],
               chain: Sequence[GroupStage]) -> ShapeCandidate | None:
    everyone = tuple(range(space.gpus))
    members = members_of([stage.degree for stage in chain])
    pieces = [(run, everyone, "") for run in runs_of(together)]
    pieces += [(tuple(range(stage.cost.first, stage.cost.last)), gpus, stage.co_shard)
               for stage, gpus in zip(chain, members, strict=True)]
    pieces.sort(key=lambda piece: piece[0][0])
    return candidate_of(space, shape, backward, tuple(
        space.part(str(number), layers, gpus, co_shard=in_parts)
        for number, (layers, gpus, in_parts) in enumerate(pieces)))


def candidate_of(space: Space, shape: TogetherShape, backward: Backward, parts: tuple[LayersPart, ...], *,
                 replicas: int = 1, chunks: Chunks | None = None) -> ShapeCandidate | None:
    """The placement of ``parts``, ``None`` if their static memory is too much for a GPU."""
    static = static_memory(parts, space.sharded, space.layers, space.bytes_per_parameter)
    if max(static.values()) > space.capacity:
        return None
    which = shape if chunks is None else f"{shape} {chunks}"
    name = f"{space.name} ({which}, {backward} backward)" if backward != "none" else f"{space.name} ({which})"
    problem, gpus = part_problem(name, space.graph, space.layers, parts, space.capacity, static, backward,
                                 space.network)
    return ShapeCandidate(shape, backward, problem, gpus, tuple(static[group[0]] for group in gpus), parts,
                          tuple(tuple(space.layers[i] for i in part.layers) for part in parts), replicas, chunks)


def members_of(degrees: Sequence[int]) -> list[tuple[int, ...]]:
    """The GPUs of groups of these sizes: larger groups first, so that none of a power of two straddles machines
    unnecessarily."""
    members: list[tuple[int, ...]] = [()] * len(degrees)
    at = 0
    for i in sorted(range(len(degrees)), key=lambda i: -degrees[i]):
        members[i] = tuple(range(at, at + degrees[i]))
        at += degrees[i]
    return members


def _both_ways(space: Space, backward: Backward) -> list[ShapeCandidate]:
    """Two replicas on groups of equal size, in opposite directions."""
    if backward == "none":
        raise NoShape("two directions fill each other's bubbles in training; inference has none")
    if space.micro_batches % 2:
        raise NoShape(f"two replicas need an even number of micro-batches, not {space.micro_batches}")
    degrees = [degree for degree in space.degrees if space.gpus % (2 * degree) == 0]
    if not degrees:
        raise NoShape(f"two directions need an even number of GPUs, not {space.gpus}")
    found: list[ShapeCandidate] = []
    for degree in degrees:
        stages = space.gpus // degree
        layers = list(range(len(space.layers)))
        whole = replace(layer_chain(space, layers, space.capacity, backward), costs={degree: space.costs[degree]})
        best = next((chain for chain in split_onto_groups(whole, space.gpus, "least") if len(chain) == stages), None)
        if best is None:
            continue
        members = members_of([stage.degree for stage in best])
        parts = tuple(
            LayersPart(f"{number}{'' if replica == 0 else 'u'}", tuple(range(stage.cost.first, stage.cost.last)),
                       members[number] if replica == 0 else members[stages - 1 - number], stage.cost, replica)
            for replica in (0, 1) for number, stage in enumerate(best))
        made = candidate_of(space, "x", backward, parts, replicas=2)
        if made is not None and _fits_once(made):
            found.append(made)
    if not found:
        raise NoShape("the weights of two replicas do not fit beside what a micro-batch keeps")
    return found


def _fits_once(candidate: ShapeCandidate) -> bool:
    """Whether a single micro-batch of one replica fits on every device."""
    blocks = candidate.problem.blocks
    for number, device in enumerate(candidate.problem.devices):
        room = device.memory
        if room is not None and any(max(block.memory_on(number), 0) + block.workspace_on(number) > room
                                    for block in blocks):
            return False
    return True
