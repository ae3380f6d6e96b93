"""Recognising two pipelines that share their devices, one running down them and one up.

DualPipe and Chimera keep the model twice, once in either direction. As a block problem one "micro-batch" is then a
pair: two chains that do not wait for each other, stage s of the first on device s and stage s of the second on device
p - 1 - s. That every weight is there twice is static memory, no part of the block problem.
"""

from __future__ import annotations

from dataclasses import replace

import networkx as nx

from weft.solver.baselines.lib.base import NotApplicable, require_backward, require_pipeline
from weft.solver.pipeline import Stage
from weft.solver.problem import Problem

__all__ = ["both_ways"]


def both_ways(problem: Problem, *, split: bool) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
    """The stages of the pipeline down the devices and of the one up, each in the order of its forwards.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` with the reason if ``problem`` is not two training
    pipelines in opposite directions over an even number of devices (``split``: with split backwards).
    """
    p = len(problem.devices)
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(len(problem.blocks)))
    graph.add_edges_from((i, j) for i, j, _ in problem.dependencies())
    parts = [sorted(part) for part in nx.connected_components(graph)]
    if len(parts) != 2:
        raise NotApplicable("it needs two replicas of the model, one down the devices and one up, as two chains of "
                            f"blocks that do not wait for each other; this problem has {len(parts)}")
    if p % 2:
        raise NotApplicable(f"it needs an even number of devices, not {p}")
    down, up = sorted((_stages(problem, part, split) for part in parts), key=lambda stages: stages[0].device)
    if [stage.device for stage in down] != list(range(p)) or [stage.device for stage in up] != [*reversed(range(p))]:
        raise NotApplicable("it needs one chain with a stage on each device in device order, and one in reverse order")
    return down, up


def _stages(problem: Problem, part: list[int], split: bool) -> tuple[Stage, ...]:
    pipeline = require_pipeline(replace(problem, blocks=tuple(problem.blocks[i] for i in part), links=problem.links))
    require_backward(pipeline, split=split)

    def there(block: int | None) -> int | None:
        return None if block is None else part[block]

    return tuple(Stage(part[stage.forward], there(stage.backward), there(stage.input_grad), there(stage.weight_grad),
                       stage.device) for stage in pipeline.stages)
