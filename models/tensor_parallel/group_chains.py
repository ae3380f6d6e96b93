"""The layers that all GPUs compute in a shape, and the cuts of the layers between them into chains of stages on groups.

The layers that all GPUs compute follow from the shape; they use part of every GPU's memory, and the others are cut by
:mod:`weft.models.tensor_parallel.group_split` for the rest. The chains of one kind with the least estimated steps are
kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from weft.models.candidates.stages import Backward, StageCost
from weft.models.spec.quantities import format_bytes
from weft.models.tensor_parallel.group_split import Cutter, GroupStage, InFlight, LayerChain, split_onto_groups
from weft.models.tensor_parallel.parts import stage_cost
from weft.models.tensor_parallel.space import Space

TogetherShape: TypeAlias = Literal["groups", "tensor", "m", "nn", "k", "x"]
TOGETHER: tuple[TogetherShape, ...] = get_args(TogetherShape)

#: Number of splits kept for one shape, mode and number in flight, with different numbers of stages.
_KEPT = 2
#: The limit on their estimates relative to the best of the shape.
_ALLOWANCE = 1.15


class NoShape(Exception):
    """The reason why a shape is not a candidate."""


def layers_together(space: Space, shape: TogetherShape) -> tuple[int, ...]:
    """The layers that all GPUs compute. Raises :class:`NoShape` if the model has no such shape."""
    everything = tuple(range(len(space.layers)))
    if space.gpus == 1:
        raise NoShape("it needs more than one GPU")
    if shape in ("groups", "x"):
        return ()
    if space.gpus not in space.degrees:
        tier = next(tier for tier in space.network.tiers if space.gpus % tier.size)
        raise NoShape(f"all GPUs would compute together, but {space.gpus} do not fill {tier.name}s of {tier.size} "
                      "evenly")
    if shape == "tensor":
        return everything
    if shape == "k":
        if not space.towers:
            raise NoShape("the model has no towers that run beside each other")
        if len(space.towers) > space.gpus:
            raise NoShape(f"{len(space.towers)} towers need as many GPUs")
        return tuple(sorted(set(everything) - {layer for tower in space.towers for layer in tower}))
    found = space.vocabulary_layers
    if not found:
        raise NoShape("no layer of the model has a vocabulary to be cut along")
    inner = [layer for layer in found if 0 < layer < everything[-1]
             and any(i not in found for i in range(layer)) and any(i not in found for i in everything[layer:])]
    if bool(inner) != (shape == "nn"):
        raise NoShape("a layer with a vocabulary stands inside the model: that is nn" if inner else
                       "no layer with a vocabulary stands inside the model: that is m")
    return found


def runs_of(layers: Sequence[int]) -> list[tuple[int, ...]]:
    """``layers`` divided into consecutive runs."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [tuple(run) for run in runs]


def room_beside(space: Space, together: Sequence[int], backward: Backward) -> int:
    """The memory of a GPU left for stages beside the layers on all GPUs: after their weights and activations of a
    micro-batch. Their workspace is not counted: no stage runs at that time."""
    if not together:
        return space.capacity
    graph = space.sharded[space.gpus].graph
    names = {space.layers[i] for i in together}
    held = graph.parameter_count([o.name for o in graph.operators if o.layer in names]) * space.bytes_per_parameter
    runs = [stage_cost(space.costs[space.gpus], run) for run in runs_of(together)]
    held += sum(run.held_gradients for run in runs)
    if backward == "none":
        return space.capacity - held
    return space.capacity - held - sum(run.activation for run in runs)


def layer_chain(space: Space, layers: Sequence[int], room: int, backward: Backward) -> LayerChain:
    """``layers`` without the layers in between, to be cut under ``room`` bytes of each GPU."""
    return LayerChain(space.costs, layers[0], layers[-1] + 1,
                      frozenset(range(layers[0], layers[-1] + 1)) - set(layers), room, space.bytes_per_parameter,
                      space.micro_batches, backward)


def chains_of(space: Space, together: Sequence[int], backward: Backward) -> Iterator[list[tuple[GroupStage, ...]]]:
    """The splits of the layers not on all GPUs: those with room for the micro-batches of 1F1B, and for one."""
    rest = [layer for layer in range(len(space.layers)) if layer not in together]
    room = room_beside(space, together, backward)
    if not rest:
        need = space.capacity - room
        workspace = max(_workspace(stage_cost(space.costs[space.gpus], together), backward), 0)
        if workspace > room:
            raise _short(need + workspace, space.capacity)
        yield [()]
        return
    if room <= 0:
        raise _short(space.capacity - room, space.capacity)
    cutter = Cutter(layer_chain(space, rest, room, backward), space.gpus)
    least = cutter.splits("least")
    found = [cutter.splits("1f1b")] if least and backward != "none" else []
    if space.co_shard_parts and space.co_sharded and (not least or cutter.is_tight()):
        in_parts = Cutter(replace(cutter.chain, co_sharded=space.co_sharded), space.gpus)
        kinds: tuple[InFlight, ...] = ("least",) if backward == "none" else ("1f1b", "least")
        found += [[chain for chain in in_parts.splits(kind) if any(stage.co_shard for stage in chain)]
                  for kind in kinds]
    if not least and not any(found):
        raise _short(_least_need(space, rest, space.capacity - room), space.capacity)
    yield from (chains for chains in (*found, least) if chains)


def tower_chains(space: Space, together: Sequence[int], backward: Backward) -> Iterator[tuple[GroupStage, ...]]:
    """For every division of the GPUs, two splits of each tower: of least bottleneck, and of least estimated step (with
    few micro-batches, one with a shorter latency)."""
    room = room_beside(space, together, backward)
    chains = [layer_chain(space, tower, room, backward) for tower in space.towers]
    any_found = False
    for shares in _shares(space.gpus, len(chains)):
        splits = [split_onto_groups(chain, share) for chain, share in zip(chains, shares, strict=True)]
        if all(splits):
            any_found = True
            options = [dict.fromkeys((
                min(found, key=lambda chain: (max(stage.cost.load for stage in chain), len(chain))),
                min(found, key=lambda chain: (_estimate(space, together, chain), len(chain))))) for found in splits]
            yield from (tuple(itertools.chain(*chains)) for chains in itertools.product(*options))
    if not any_found:
        raise _short(_least_need(space, [i for tower in space.towers for i in tower], space.capacity - room),
                     space.capacity)


def _shares(gpus: int, towers: int) -> Iterator[tuple[int, ...]]:
    if towers == 1:
        yield (gpus,)
        return
    for first in range(1, gpus - towers + 2):
        for rest in _shares(gpus - first, towers - 1):
            yield (first, *rest)


def _estimate(space: Space, together: Sequence[int], chain: Sequence[GroupStage]) -> float:
    """Seconds of a step whose bottleneck is always busy except while the first micro-batch arrives, through parallel
    towers."""
    everywhere = sum(stage_cost(space.costs[space.gpus], run).load for run in runs_of(together)) if together else 0
    towers: dict[int, int] = {}
    for stage in chain:
        tower = next((i for i, layers in enumerate(space.towers) if together and stage.cost.first in layers), -1)
        towers[tower] = towers.get(tower, 0) + stage.cost.load
    most = max((stage.cost.load for stage in chain), default=0)
    return 1e-9 * (space.micro_batches * (everywhere + most) + max(towers.values(), default=0) - most)


def best_chains(space: Space, together: Sequence[int], chains: Sequence[tuple[GroupStage, ...]],
          ) -> list[tuple[GroupStage, ...]]:
    """Of ``chains`` the few of least estimated step, best first."""
    ranked = sorted(chains, key=lambda chain: (_estimate(space, together, chain), len(chain)))
    if not ranked:
        return []
    limit = _ALLOWANCE * _estimate(space, together, ranked[0])
    return [chain for chain in ranked[:_KEPT] if _estimate(space, together, chain) <= limit]


def _workspace(cost: StageCost, backward: Backward) -> int:
    return cost.working_set if backward == "none" else max(cost.workspace_forward, cost.workspace_backward)


def _least_need(space: Space, layers: Sequence[int], held: int) -> int:
    """A lower bound on the bytes a GPU: weights divided as evenly as possible beside ``held``."""
    total = sum(min(degree * space.static_of(layer, degree) for degree in space.degrees) for layer in layers)
    return held + -(-total // space.gpus)


def _short(need: int, capacity: int) -> NoShape:
    if need > capacity:
        return NoShape(f"a GPU needs at least {format_bytes(need)}, but has {format_bytes(capacity)}")
    return NoShape("no split of its layers into stages fits into memory with one micro-batch in flight")
