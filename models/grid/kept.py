"""The tensors kept by a GPU's layers if cheap operators are recomputed, and if products multiply in 8 bits.

*Recomputed* (Megatron-LM's ``--recompute-modules layernorm moe_act mla_up_proj``; DeepSeek-V3, 2024, section 3.2.3):
such an operator's outputs are not kept, but its inputs are, unless they are recomputed themselves. *In 8 bits* each
product keeps a separate cast copy of its input (Transformer Engine's linear layers), unless the input is recomputed:
then it keeps that operator's inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from weft.models.graph.operators import Operator, OperatorGraph, Tensor
from weft.models.times.operator_times import OperatorTime


def kept_otherwise(graph: OperatorGraph, times: Mapping[str, OperatorTime], again: Callable[[Operator], bool],
                   cast: Callable[[Operator], bool]) -> tuple[OperatorGraph, Mapping[str, OperatorTime]]:
    """``graph`` with the operators selected by ``again`` recomputed before the backward of their readers, in the input
    gradient's pass, and those selected by ``cast`` keeping their inputs in half the bytes; and the new times."""
    picked = {operator.name: operator for operator in graph.operators if again(operator)}

    def made_of(tensor: str) -> list[str]:
        """The tensors kept in place of ``tensor``."""
        maker = picked.get(graph.producer.get(tensor, ""))
        return [tensor] if maker is None else [source for name in maker.inputs for source in made_of(name)]

    operators = []
    for operator in graph.operators:
        names: dict[str, list[str]] = {}
        copies: dict[str, Tensor] = {}
        slices = dict(operator.slices)
        for name in operator.keeps:
            names[name] = made_of(name) if name not in {tensor.name for tensor in operator.outputs} else [name]
            if names[name] != [name]:
                whole = slices.pop(name, graph.tensors[name].bytes)
                slices |= {source: 0 for source in names[name] if source not in slices}
                slices[names[name][0]] += whole
            elif cast(operator) and (name in operator.inputs or name in slices):
                tensor = graph.tensors[name]
                copies[name] = Tensor(f"{name} in 8 bits for {operator.name}", -(-tensor.bytes // 2), tensor.shape)
                names[name] = [copies[name].name]
                if name in slices:
                    slices[copies[name].name] = -(-slices.pop(name) // 2)
        deferred = operator.deferred
        if deferred is not None:  # tensors recomputed in the input gradient's pass stay for the weight gradient
            slices = {name: 0 for name in deferred if name in operator.slices and name not in copies} | slices
            deferred = tuple(copies[name].name if name in copies else name for name in deferred)
        operators.append(replace(
            operator, keeps=tuple(dict.fromkeys(name for of in names.values() for name in of)), deferred=deferred,
            internal=(*operator.internal, *copies.values()), slices=slices))
    spent = {name: replace(times[name], input_grad=round(times[name].input_grad + times[name].forward, 9))
             for name in picked}
    return replace(graph, operators=tuple(operators)), {**times, **spent}
