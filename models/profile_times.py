"""Measured times for the operators of a zoo family, from profiles in the format of Aceso's profiler.

A profile's rows are named by what they are in a layer (``enc-attention-qkv``), and one layer stands for all equal ones.
A row belongs to an operator only if its sizes agree: the weights and the memory it leaves allocated. Between two
micro-batch sizes that were measured, times are interpolated. What no row fits is filled in by another source (the
roofline of the device that was profiled), and :meth:`ProfileTimes.notes` names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from models.operator_times import OperatorTime, OperatorTimes, Origin
from models.profiles import Operator as Row
from solver.operators import Operator, OperatorGraph

__all__ = ["ProfileTimes", "rows_of", "sizes_agree"]

_LAYER = {
    "attention.qkv": "attention-qkv", "attention.score": "attention-score", "attention.softmax": "attention-softmax",
    "attention.dropout": "attention-dropout", "attention.context": "attention-context",
    "attention.dense": "attention-dense", "mlp.up": "MLP-GEMM-1", "mlp.gelu": "MLP-gelu", "mlp.down": "MLP-GEMM-2",
    "add2": "post-MLP-dropout", "norm1": "1st-layernorm",
}
_ENCODER = {**{ours: f"enc-{row}" for ours, row in _LAYER.items()}, "add1": "enc-post-attention-dropout",
            "norm2": "enc-2nd-layernorm"}
_DECODER = {
    **{ours: f"dec-{row}-1" if ours.startswith("attention") else f"dec-{row}" for ours, row in _LAYER.items()},
    **{ours.replace("attention", "cross"): f"dec-{row}-2" for ours, row in _LAYER.items() if ours[:9] == "attention"},
    "cross.q": "dec-attention-qkv-2", "cross.kv": "dec-attention-qkv-2", "add1": "dec-post-attention-dropout-1",
    "add_cross": "dec-post-attention-dropout-2", "norm_cross": "dec-2nd-layernorm", "norm2": "dec-3rd-layernorm",
}
_ENDS = {
    "gpt": {"embedding.tokens": "encoder-embedding", "head.norm": "final-layernorm", "head.logits": "gpt-post-process",
            "head.loss": "gpt-post-process"},
    "t5": {"embedding.tokens": "encoder-embedding", "bridge.norm": "enc-final-layernorm",
           "bridge.tokens": "decoder-embedding", "head.norm": "dec-final-layernorm", "head.logits": "t5-post-process",
           "head.loss": "t5-post-process"},
}


def rows_of(graph: OperatorGraph) -> dict[str, str]:
    """The profile row that each operator of a GPT or T5 ``graph`` would have, by the operator's name."""
    found = dict(_ENDS.get(graph.name, {}))
    for operator in graph.operators if found else ():
        layer, _, part = operator.name.partition(".")
        named = _DECODER if layer.startswith("decoder") else _ENCODER
        if layer.rstrip("0123456789") in ("layer", "encoder", "decoder") and part in named:
            found[operator.name] = named[part]
    return {name: row for name, row in found.items() if name in graph.by_name}


def sizes_agree(operators: list[Operator], row: Row) -> bool:
    """Whether ``row`` was measured for operators of this kind and size: weight matrices and memory left allocated, to
    1 %."""
    weights = sum(p.bytes for operator in operators for p in operator.parameters if len(p.shape) > 1)
    if ("layernorm" in row.name) != any(operator.kind == "layer_norm" for operator in operators):
        return False
    losses = [operator for operator in operators if operator.kind == "cross_entropy"]
    left = sum(tensor.bytes for operator in losses or operators for tensor in (*operator.outputs, *operator.internal))
    return _close(weights, row.weights_bytes) and _close(left, row.activation_bytes)


def _close(ours: float, theirs: float) -> bool:
    return abs(ours - theirs) <= 0.01 * max(ours, theirs)


@dataclass(frozen=True)
class ProfileTimes:
    """Times from ``tables`` (rows by micro-batch size), for micro-batches of ``batch``; ``fill`` gives the rest.

    ``where`` names the profile in notes.
    """

    tables: Mapping[int, Mapping[str, Row]]
    batch: int
    fill: OperatorTimes
    where: str

    def times(self, graph: OperatorGraph) -> dict[str, OperatorTime]:
        """The time of every operator of ``graph``."""
        modelled = self.fill.times(graph)
        return {**modelled, **{name: time for name, time in self._measured(graph, modelled).items()}}

    def notes(self, graph: OperatorGraph) -> list[str]:
        """Which operators have no row of their size in the profile, and how their times were filled in."""
        modelled = self.fill.times(graph)
        missing = sorted(set(modelled) - set(self._measured(graph, modelled)))
        told = [f"times are from {self.where}; a backward's division into two gradients is modelled"]
        if not missing:
            return told
        kinds = sorted({graph.by_name[name].kind for name in missing})
        named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return [*told, f"{self.where} lacks {len(missing)} of {len(modelled)} operators ({named}; kinds: "
                       f"{', '.join(kinds)}): their times are modelled", *self.fill.notes(graph)]

    def covers(self, graph: OperatorGraph) -> bool:
        """Whether at least one operator of ``graph`` has a row of its size."""
        return bool(self._measured(graph, self.fill.times(graph)))

    def _measured(self, graph: OperatorGraph, modelled: Mapping[str, OperatorTime]) -> dict[str, OperatorTime]:
        groups: dict[tuple[str, str], list[Operator]] = {}
        for name, row in rows_of(graph).items():
            operator = graph.by_name[name]
            groups.setdefault((operator.layer, row), []).append(operator)
        passes = {key: self._row(key[1], operators) for key, operators in groups.items()}
        # Scores of twice the heads at half the width leave as much memory: only beside projections of its size does an
        # operator without weights belong to its row.
        strange = {_part(operators) for key, operators in groups.items()
                   if passes[key] is None and any(operator.kind == "linear" for operator in operators)}
        found: dict[str, OperatorTime] = {}
        for key, operators in groups.items():
            measured = passes[key]
            if measured is not None and (operators[0].parameters or _part(operators) not in strange):
                found |= _shared(operators, modelled, *measured)
        return found

    def _row(self, name: str, operators: list[Operator]) -> tuple[float, float, Origin] | None:
        """Forward and backward of row ``name`` at this micro-batch size, measured or between two that are."""
        exact = self.tables.get(self.batch, {}).get(name)
        if exact is not None:
            return (exact.forward, exact.backward, Origin.MEASURED) if sizes_agree(operators, exact) else None
        below = max((size for size in self.tables if size < self.batch), default=None)
        above = min((size for size in self.tables if size > self.batch), default=None)
        if below is None or above is None:
            return None
        low, high = self.tables[below].get(name), self.tables[above].get(name)
        share = (self.batch - below) / (above - below)
        if low is None or high is None or not _lies_between(operators, low, high, share):
            return None
        return (low.forward + share * (high.forward - low.forward),
                low.backward + share * (high.backward - low.backward), Origin.INTERPOLATED)


def _part(operators: list[Operator]) -> str:
    """The part of a layer that operators belong to: ``layer3.attention``, ``decoder0.cross``, ``layer3.mlp`` ..."""
    return operators[0].name.rpartition(".")[0]


def _lies_between(operators: list[Operator], low: Row, high: Row, share: float) -> bool:
    middle = Row(low.name, 0, 0, 0, 0, low.weights_bytes,
                 round(low.activation_bytes + share * (high.activation_bytes - low.activation_bytes)), 0, 0)
    return low.weights_bytes == high.weights_bytes and sizes_agree(operators, middle)


def _shared(operators: list[Operator], modelled: Mapping[str, OperatorTime], forward: float, backward: float,
            origin: Origin) -> dict[str, OperatorTime]:
    """A row's times divided among its operators, and a backward among its gradients, as the model divides them."""
    times = [modelled[operator.name] for operator in operators]
    ahead = sum(time.forward for time in times)
    behind = sum(time.input_grad + time.weight_grad for time in times)
    return {operator.name: OperatorTime(
        round(forward * time.forward / ahead, 9) if ahead else 0.0,
        round(backward * time.input_grad / behind, 9) if behind else 0.0,
        round(backward * time.weight_grad / behind, 9) if behind else 0.0, origin)
        for operator, time in zip(operators, times, strict=True)}
