"""Measured times for the operators of a zoo family, from profiles in the format of Aceso's profiler.

A profile's rows are named by their role in a layer (``enc-attention-qkv``), and one layer represents all equal ones. A
row belongs to an operator only if its sizes agree: the weights and the memory it leaves allocated. Between two measured
micro-batch sizes, times are interpolated. Operators without a row are filled in by another source (the roofline of the
profiled device), and :meth:`ProfileTimes.notes` names them.

Profiles of several devices that compute together have the same rows: the work of one of them, with the collectives of
Megatron-LM's split (Shoeybi et al., 2019): projections by output or heads, then by input, tables by vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.models.graph.operators import Operator, OperatorGraph
from weft.models.times.operator_times import OperatorTime, OperatorTimes, Origin
from weft.models.times.profiles import ProfileRow

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

#: The dimension along which the profiled devices divide an operator, by the last word of its name; others are computed
#: whole by each.
_DIVIDED = {
    **dict.fromkeys(("qkv", "q", "kv", "up", "logits"), "output"), **dict.fromkeys(("dense", "down"), "input"),
    **dict.fromkeys(("score", "softmax", "dropout", "context"), "heads"), "gelu": "axis2",
    **dict.fromkeys(("tokens", "loss"), "vocabulary"),
}


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A row of a profile of several devices: one device's part of some operators, including collectives.

    ``dimensions``: the division of each operator, by name. ``weights_bytes``: of its weight matrices on one device.
    Times are seconds.
    """

    dimensions: Mapping[str, str]
    forward: float
    backward: float
    weights_bytes: int
    origin: Origin


def rows_of(graph: OperatorGraph) -> dict[str, str]:
    """The profile row of each operator of a GPT or T5 ``graph``, by the operator's name."""
    found = dict(_ENDS.get(graph.name, {}))
    for operator in graph.operators if found else ():
        layer, _, part = operator.name.partition(".")
        named = _DECODER if layer.startswith("decoder") else _ENCODER
        if layer.rstrip("0123456789") in ("layer", "encoder", "decoder") and part in named:
            found[operator.name] = named[part]
    return {name: row for name, row in found.items() if name in graph.by_name}


def sizes_agree(operators: list[Operator], row: ProfileRow) -> bool:
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
    """Times from ``tables`` (rows by micro-batch size), for micro-batches of ``batch``; ``fill`` supplies the rest.

    ``where`` names the profile in notes. ``together``: such tables of several devices that compute together, by their
    number.
    """

    tables: Mapping[int, Mapping[str, ProfileRow]]
    batch: int
    fill: OperatorTimes
    where: str
    together: Mapping[int, Mapping[int, Mapping[str, ProfileRow]]] = field(default_factory=dict)

    def times(self, graph: OperatorGraph) -> dict[str, OperatorTime]:
        """The time of every operator of ``graph``."""
        modelled = self.fill.times(graph)
        return modelled | self._measured(graph, modelled)

    def notes(self, graph: OperatorGraph) -> list[str]:
        """The operators without a row of their size in the profile, and the way their times were filled in."""
        modelled = self.fill.times(graph)
        missing = sorted(set(modelled) - set(self._measured(graph, modelled)))
        notes = [f"times are from {self.where}; a backward's division into two gradients is modelled"]
        if not missing:
            return notes
        kinds = sorted({graph.by_name[name].kind for name in missing})
        named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return [*notes, f"{self.where} lacks {len(missing)} of {len(modelled)} operators ({named}; kinds: "
                       f"{', '.join(kinds)}): their times are modelled", *self.fill.notes(graph)]

    def covers(self, graph: OperatorGraph) -> bool:
        """Whether at least one operator of ``graph`` has a row of its size."""
        return bool(self._measured(graph, self.fill.times(graph)))

    def rows_together(self, graph: OperatorGraph, degree: int) -> list[MeasuredRow]:
        """The rows of ``degree`` devices that compute together, for the operators of ``graph`` that they divide and
        whose times on one device are measured."""
        tables = self.together.get(degree)
        if tables is None:
            return []
        found = []
        for (_, name), operators in self._rows(graph).items():
            row = _at(tables, self.batch, name)
            dimensions = {operator.name: _DIVIDED.get(operator.name.rpartition(".")[2]) for operator in operators}
            divided = {operator: dimension for operator, dimension in dimensions.items() if dimension is not None}
            if row is not None and divided and len(divided) == len(dimensions):
                found.append(MeasuredRow(divided, row[0].forward, row[0].backward, row[0].weights_bytes, row[1]))
        return found

    def _measured(self, graph: OperatorGraph, modelled: Mapping[str, OperatorTime]) -> dict[str, OperatorTime]:
        found: dict[str, OperatorTime] = {}
        for (_, name), operators in self._rows(graph).items():
            at = _at(self.tables, self.batch, name)
            assert at is not None
            found |= _shared(operators, modelled, at[0].forward, at[0].backward, at[1])
        return found

    def _rows(self, graph: OperatorGraph) -> dict[tuple[str, str], list[Operator]]:
        """The operators of each layer and row whose sizes agree."""
        groups: dict[tuple[str, str], list[Operator]] = {}
        for name, row in rows_of(graph).items():
            operator = graph.by_name[name]
            groups.setdefault((operator.layer, row), []).append(operator)
        agreeing = set()
        for key, operators in groups.items():
            at = _at(self.tables, self.batch, key[1])
            if at is not None and sizes_agree(operators, at[0]):
                agreeing.add(key)
        # Scores of twice the heads at half the width leave the same memory: an operator without weights belongs to its
        # row only beside projections of its size.
        unmatched = {_part(operators) for key, operators in groups.items()
                   if key not in agreeing and any(operator.kind == "linear" for operator in operators)}
        return {key: operators for key, operators in groups.items()
                if key in agreeing and (operators[0].parameters or _part(operators) not in unmatched)}


def _at(tables: Mapping[int, Mapping[str, ProfileRow]], batch: int, name: str) -> tuple[ProfileRow, Origin] | None:
    """Row ``name`` at a micro-batch size, measured or interpolated between two measured sizes."""
    if batch in tables:
        row = tables[batch].get(name)
        return None if row is None else (row, Origin.MEASURED)
    below = max((size for size in tables if size < batch), default=None)
    above = min((size for size in tables if size > batch), default=None)
    if below is None or above is None:
        return None
    low, high = tables[below].get(name), tables[above].get(name)
    if low is None or high is None or low.weights_bytes != high.weights_bytes:
        return None
    share = (batch - below) / (above - below)

    def between(a: float, b: float) -> float:
        return a + share * (b - a)

    row = ProfileRow(name, between(low.forward, high.forward), between(low.backward, high.backward), 0, 0,
                     low.weights_bytes, round(between(low.activation_bytes, high.activation_bytes)), 0, 0)
    return row, Origin.INTERPOLATED


def _part(operators: list[Operator]) -> str:
    """The part of a layer to which operators belong: ``layer3.attention``, ``decoder0.cross``, ``layer3.mlp`` ..."""
    return operators[0].name.rpartition(".")[0]


def _shared(operators: list[Operator], modelled: Mapping[str, OperatorTime], forward: float, backward: float,
            origin: Origin) -> dict[str, OperatorTime]:
    """A row's times divided among its operators, and a backward among its gradients, in the model's proportions."""
    times = [modelled[operator.name] for operator in operators]
    ahead = sum(time.forward for time in times)
    behind = sum(time.input_grad + time.weight_grad for time in times)
    return {operator.name: OperatorTime(
        round(forward * time.forward / ahead, 9) if ahead else 0.0,
        round(backward * time.input_grad / behind, 9) if behind else 0.0,
        round(backward * time.weight_grad / behind, 9) if behind else 0.0, origin)
        for operator, time in zip(operators, times, strict=True)}
