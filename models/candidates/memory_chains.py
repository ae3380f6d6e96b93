"""Chains of operators whose memory can be decided, from an operator graph with times."""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft.models.graph.operators import OperatorGraph
from weft.models.times.operator_times import OperatorTime
from weft.solver.placement.memory.plan import ChainOperator

__all__ = ["STATE", "graph_chain"]

#: Bytes of weight, gradient and Adam's state (a master copy and two moments in fp32) for each byte of an fp16 weight.
STATE = 8


def graph_chain(graph: OperatorGraph, times: Mapping[str, OperatorTime], *,
                state: float = STATE) -> list[ChainOperator]:
    """The operators of ``graph`` in a row, in its order; ``state``: bytes held for each byte of parameters.

    A tensor that any operator keeps is kept by its producer (a tensor from outside: by its first reader). What an
    operator passes on is every tensor that a later one reads. A parameter that several hold is counted with each.
    """
    order = [graph.by_name[name] for name in graph.order]
    position = {op.name: k for k, op in enumerate(order)}
    kept_by: dict[str, int] = {}
    for k, op in enumerate(order):
        for name in op.keeps:
            storage = graph.storage(name)
            kept_by.setdefault(storage, position.get(graph.producer.get(storage, ""), k))
    kept, held = [0] * len(order), [set[str]() for _ in order]
    for storage, k in kept_by.items():
        kept[k] += graph.tensors[storage].bytes
        held[k].add(storage)
    crossing: list[set[str]] = [set() for _ in order]
    for name, producer in graph.producer.items():
        last = max((position[reader] for reader in graph.readers[name]), default=-1)
        for k in range(position[producer], last):
            crossing[k].add(graph.storage(name))
    chain = []
    for k, op in enumerate(order):
        size = sum(graph.tensors[name].bytes for name in crossing[k])
        own = sum(graph.tensors[name].bytes for name in crossing[k] & held[k])
        time, weights = times[op.name], sum(parameter.bytes for parameter in op.parameters)
        part = op.name.removeprefix(op.layer)
        chain.append(ChainOperator(
            op.name, round(time.forward * 1e9), round((time.input_grad + time.weight_grad) * 1e9), kept[k], size,
            size - own, weights, math.ceil(state * weights), kind=f"{op.kind}{part}", layer=op.layer))
    return chain
