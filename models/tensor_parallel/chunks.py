"""Two chunks of a chain of layers on each group of GPUs, down the groups and back up (V) or twice down (loop).

As :mod:`weft.models.candidates.stage_split` cuts a chain of layers onto single GPUs, it cuts here what not all GPUs
compute together onto groups of equal size: exactly, under each GPU's memory, once with room for as many micro-batches
as 1F1B would hold and once for one. Of the sizes of groups the one is taken whose step is shortest if the row could be
divided at will.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

from weft.models.candidates.stage_split import NoSplit, StageSplit, split_layers
from weft.models.candidates.stages import Backward, MemoryRule, stage_device
from weft.models.tensor_parallel.parts import Part, stage_cost
from weft.models.tensor_parallel.space import Space

__all__ = ["CHUNKS", "Chunks", "chunked"]

#: How the second chunks lie on the groups.
Chunks: TypeAlias = Literal["v", "loop"]
CHUNKS: tuple[Chunks, ...] = get_args(Chunks)


def chunked(space: Space, layers: Sequence[int], chunks: Chunks, backward: Backward, room: int) -> Iterator[
        tuple[Part, ...]]:
    """The parts of ``layers`` (by index) in two chunks a group of GPUs, for every split that differs; none where
    nothing fits into ``room`` bytes of each GPU. Parts are named by their place in the chain."""
    degree = _best_degree(space, layers)
    if degree is None or room <= 0:
        return
    groups = space.gpus // degree
    costs = [space.costs[degree][i] for i in layers]
    found: list[StageSplit] = []
    for roomy in (False, True) if backward != "none" else (False,):
        held = [min(2 * groups - s, space.micro_batches) if roomy else 1 for s in range(2 * groups)]
        try:
            found.append(split_layers(chunks, costs, [room] * groups, held,
                                      MemoryRule(backward, space.bytes_per_parameter), borders=_gaps(layers),
                                      least_load=max(found[0].loads) if found else 0.0))
        except NoSplit:
            break
    for cuts in dict.fromkeys(split.cuts for split in found):
        yield tuple(Part(str(number), tuple(layers[first:last]), tuple(range(d * degree, (d + 1) * degree)),
                         stage_cost(space.costs[degree], layers[first:last]))
                    for number, ((first, last), d) in enumerate(zip(pairwise(cuts), stage_device(chunks, groups),
                                                                    strict=True)))


def _best_degree(space: Space, layers: Sequence[int]) -> int | None:
    """GPUs of a group for the least time of a step of stages divided at will; ``None`` where there are too few layers
    or GPUs for two chunks each."""
    def step(degree: int) -> float:
        groups = space.gpus // degree
        load = sum(space.costs[degree][i].forward + space.costs[degree][i].backward for i in layers) / groups
        return load * (space.micro_batches + (groups - 1) / 2)

    possible = [degree for degree in space.degrees if space.gpus % degree == 0 and space.gpus > degree
                and len(_gaps(layers)) < 2 * space.gpus // degree <= len(layers)]
    return min(possible, key=step, default=None)


def _gaps(layers: Sequence[int]) -> list[int]:
    """Places in ``layers`` before which another layer stands that is none of them."""
    return [place for place in range(1, len(layers)) if layers[place] != layers[place - 1] + 1]
