"""What a GPU's layers keep where cheap operators run again, and where products multiply in 8 bits.

*Run again* (Megatron-LM's ``--recompute-modules layernorm moe_act mla_up_proj``; DeepSeek-V3, 2024, section 3.2.3):
what such an operator makes is not kept, what it reads is, as far as that does not run again itself. *In 8 bits* each
product keeps its input as it was cast, a copy of its own (Transformer Engine's linear layers), unless that runs again:
then it keeps what it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from weft.models.graph.operators import Operator, OperatorGraph, Tensor
from weft.models.times.operator_times import OperatorTime


def kept_otherwise(graph: OperatorGraph, times: Mapping[str, OperatorTime], again: Callable[[Operator], bool],
                   cast: Callable[[Operator], bool]) -> tuple[OperatorGraph, Mapping[str, OperatorTime]]:
    """``graph`` where operators that ``again`` picks run a second time before the backward of what reads them, in the
    input gradient's pass, and those that ``cast`` picks keep their inputs in half the bytes; and the new times."""
    picked = {operator.name: operator for operator in graph.operators if again(operator)}

    def made_of(tensor: str) -> list[str]:
        """What is kept in place of ``tensor``."""
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
        if deferred is not None:  # what runs again in the input gradient's pass stays for the weight gradient
            slices = {name: 0 for name in deferred if name in operator.slices and name not in copies} | slices
            deferred = tuple(copies[name].name if name in copies else name for name in deferred)
        operators.append(replace(
            operator, keeps=tuple(dict.fromkeys(name for of in names.values() for name in of)), deferred=deferred,
            internal=(*operator.internal, *copies.values()), slices=slices))
    spent = {name: replace(times[name], input_grad=round(times[name].input_grad + times[name].forward, 9))
             for name in picked}
    return replace(graph, operators=tuple(operators)), {**times, **spent}
