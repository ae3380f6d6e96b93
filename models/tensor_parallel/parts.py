"""Parts of a model on groups of GPUs, assembled into a block problem.

A part is some layers computed by one group of GPUs together; it becomes a forward block and, in training, its backward
(whole, or separate input and weight gradients). A part waits for the producers of its inputs, and tensors are sent
directly from producer to reader; data already on a group cost no time.

GPUs with the same parts always do the same. They are one device of the problem (``gpus`` lists them), with the memory
of one of them; :func:`weft.models.overlap.placement.written_out` expands them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.models.candidates.stage_blocks import forward_block, gradient_blocks
from weft.models.candidates.stages import Backward, StageCost, Stages
from weft.models.graph.operators import OperatorGraph
from weft.models.layers.cluster import Network
from weft.models.layers.costs import LayerCost
from weft.models.tensor_parallel.shard import Sharded
from weft.solver.problem import Block, Dependency, Device, Problem


@dataclass(frozen=True, slots=True)
class LayersPart:
    """``layers`` (by index) on ``gpus`` together; ``cost``: each GPU's share. ``replica``: of the model.

    ``co_shard``: the co-sharded parts of its layers on a single GPU, "" for none.
    """

    name: str
    layers: tuple[int, ...]
    gpus: tuple[int, ...]
    cost: StageCost
    replica: int = 0
    co_shard: str = ""

    @property
    def degree(self) -> int:
        return len(self.gpus)


def part_problem(name: str, graph: OperatorGraph, layers: Sequence[str], parts: Sequence[LayersPart], capacity: int,
                 static: Mapping[int, int], backward: Backward, network: Network) -> tuple[Problem,
                                                                                           tuple[tuple[int, ...], ...]]:
    """The problem, and for each of its devices the GPUs that it represents.

    ``layers``: names by index. ``capacity``: bytes of every GPU, ``static``: the static part of it.
    """
    groups = alike_gpus(parts)
    where = places(parts, groups)
    devices = tuple(Device(gpu_name(group), capacity - static[group[0]]) for group in groups)
    joined = joined_parts(graph, layers, parts)
    blocks: list[Block] = []
    for part in parts:
        waits = tuple(Dependency(f"F{source.name}", network.seconds(size, source.gpus, part.gpus))
                      for source, target, size in joined if target is part)
        blocks.append(forward_block(part.name, part.cost, where[part.name], backward, waits))
    if backward != "none":
        for part in reversed(parts):
            waits = tuple(Dependency(gradient_name(target, backward), network.seconds(size, target.gpus, part.gpus))
                          for source, target, size in joined if source is part and target.cost.backward)
            blocks += part_backward(part, where[part.name], waits or (Dependency(f"F{part.name}"),), backward)
    return Problem(name, devices, tuple(blocks), time_unit="s", memory_unit="B"), groups


def static_memory(parts: Sequence[LayersPart], sharded: Mapping[int, Sharded], layers: Sequence[str],
                  bytes_per_parameter: int) -> dict[int, int]:
    """Per GPU, bytes of parameters with their gradients and optimizer state; parameters shared by several layers of the
    same degree count once (gradients that wait for other layers, once a part)."""
    on: dict[int, dict[tuple[int, int], set[str]]] = {}
    for part in parts:
        for gpu in part.gpus:
            on.setdefault(gpu, {}).setdefault((part.degree, part.replica), set()).update(layers[i] for i in part.layers)
    known: dict[object, int] = {}

    def parameters(degree: int, names: set[str]) -> int:
        key = (degree, frozenset(names))
        if key not in known:
            graph = sharded[degree].graph
            known[key] = graph.parameter_count([o.name for o in graph.operators if o.layer in names])
        return known[key]

    return {gpu: bytes_per_parameter * sum(parameters(degree, names) for (degree, _), names in held.items())
            + sum(part.cost.held_gradients for part in parts if gpu in part.gpus) for gpu, held in sorted(on.items())}


def stage_cost(costs: Sequence[LayerCost], layers: Sequence[int]) -> StageCost:
    """The stage of ``layers``, which need not be consecutive."""
    return replace(Stages([costs[i] for i in layers]).stage(0, len(layers)), first=layers[0], last=layers[-1] + 1)


def alike_gpus(parts: Sequence[LayersPart]) -> tuple[tuple[int, ...], ...]:
    """GPUs grouped by equal parts, in the order of the parts."""
    held: dict[int, list[int]] = {}
    for number, part in enumerate(parts):
        for gpu in part.gpus:
            held.setdefault(gpu, []).append(number)
    groups: dict[tuple[int, ...], list[int]] = {}
    for gpu, numbers in held.items():
        groups.setdefault(tuple(numbers), []).append(gpu)
    spread = {number for number, part in enumerate(parts) if len(part.gpus) == len(held)}
    order = sorted(groups, key=lambda numbers: [number for number in numbers if number not in spread])
    return tuple(tuple(sorted(groups[numbers])) for numbers in order)


def places(parts: Iterable[LayersPart], groups: Iterable[Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """By the name of a part, the devices that represent its GPUs; ``groups``: the GPUs of each device."""
    device_of = {gpu: d for d, group in enumerate(groups) for gpu in group}
    return {part.name: tuple(dict.fromkeys(device_of[gpu] for gpu in part.gpus)) for part in parts}


def joined_parts(graph: OperatorGraph, layers: Sequence[str],
                 parts: Sequence[LayersPart]) -> list[tuple[LayersPart, LayersPart, int]]:
    """Pairs of parts of a replica of which one reads the other's outputs, with the bytes of these tensors."""
    amounts: dict[tuple[int, int], int] = {}
    home = {(part.replica, layers[i]): number for number, part in enumerate(parts) for i in part.layers}
    for replica in sorted({part.replica for part in parts}):
        for tensor, producer in graph.producer.items():
            source = home[replica, graph.by_name[producer].layer]
            targets = {home[replica, graph.by_name[reader].layer] for reader in graph.readers[tensor]} - {source}
            for target in targets:
                amounts[source, target] = amounts.get((source, target), 0) + graph.tensors[tensor].bytes
    return [(parts[i], parts[j], size) for (i, j), size in sorted(amounts.items())]


def gradient_name(part: LayersPart, backward: Backward) -> str:
    """The block whose gradient others wait for."""
    return f"{'I' if _is_split(part.cost, backward) else 'B'}{part.name}"


def _is_split(cost: StageCost, backward: Backward) -> bool:
    return backward == "split" and bool(cost.weight_grad) and bool(cost.input_grad)


def part_backward(part: LayersPart, where: tuple[int, ...], waits: tuple[Dependency, ...],
                  backward: Backward) -> list[Block]:
    """The backward of ``part``, whole or in two parts; none if there is none."""
    mode: Backward = "split" if _is_split(part.cost, backward) else "full"
    return list(gradient_blocks(part.name, part.cost, where, mode, waits))


def gpu_name(group: Sequence[int]) -> str:
    """The name of the device that represents ``group``."""
    first, last = group[0], group[-1]
    if len(group) == 1:
        return f"gpu{first}"
    return f"gpu{first}-{last}" if last - first == len(group) - 1 else "gpu" + "+".join(map(str, group))
