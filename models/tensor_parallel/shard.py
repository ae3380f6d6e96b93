"""One device's part of an operator graph under tensor parallelism.

For each operator one of its :class:`~weft.models.graph.operators.Split` is chosen, or none: then every device computes
all of it. The choice is the one with the least time of a layer, operators and exchanges added up, found exactly
(:mod:`weft.models.tensor_parallel.elimination`). Two rules take precedence over time, since the purpose is to divide
the weights: an operator with a divisible weight matrix is split so that it is divided; and a table shared by several
operators is cut by rows in all of them, so that all use the same part.

The result is an ordinary operator graph: the work, parameters and kept tensors of one device, with an operator for
every exchange of a tensor. So layers, stages and memory are counted by the general rules. Between layers tensors are
whole with whole gradients, so that a stage may end after any layer for any following devices; or, ``sliced``, cut along
their positions, as are the outputs of norms and pointwise operators between them (sequence parallelism: Korthikanti et
al., "Reducing Activation Recomputation in Large Transformer Models", 2022): an all-reduce is a reduce-scatter before
them and an all-gather after. A gathered tensor needed only by a weight gradient is kept as the device's slice and
gathered again beside the input gradient, as in Megatron-LM; the excess over that is exposed time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.models.graph.operators import Layout, Operator, OperatorGraph, Split, Tensor, Work
from weft.models.layers.layering import operators_by_layer
from weft.models.tensor_parallel.elimination import Factor, cheapest
from weft.models.tensor_parallel.part_times import (
    PartTimes,
    TensorExchange,
    TensorNeed,
    Timer,
    exchange,
    has_gradient,
    laid_out,
    layout_of,
    outputs_of,
    parameters_of,
)
from weft.models.times.operator_times import OperatorTime, Origin
from weft.solver.control.clock import checked

_WHOLE = TensorNeed("whole", divided=False)
#: The axis of positions, a possible cut of tensors between layers.
_POSITIONS = 1
#: Penalty seconds of an exchange to be avoided: more than any layer takes.
_AVOIDED = 1e6
#: Cuts along samples and positions.
_LEADING = ("batch", "sequence")
#: Cuts that divide a table by its rows, by their names in the zoo.
_BY_ROWS = ("vocabulary", "output", "heads")


@dataclass(frozen=True, slots=True)
class Exchanged:
    """One exchange: ``tensor`` of the original graph has the layout ``produced`` and is required as ``need`` in
    ``layer``."""

    tensor: str
    layer: str
    produced: Layout
    need: TensorNeed
    exchange: TensorExchange
    forward: float
    backward: float


@dataclass(frozen=True)
class Sharded:
    """The part of one of ``degree`` devices: its ``graph`` with ``times``, the split of every operator of the
    original graph (``None``: computed by every device) and all exchanges."""

    degree: int
    graph: OperatorGraph
    times: Mapping[str, OperatorTime]
    choices: Mapping[str, Split | None]
    exchanges: tuple[Exchanged, ...]


def shard(graph: OperatorGraph, parts: PartTimes, timer: Timer, *, recompute: bool = False,
          sliced: bool = False, whole: bool = False, pinned: Mapping[str, str] | None = None) -> Sharded:
    """``graph`` on ``parts.parts`` devices that compute all of it together, at the times of ``parts``.

    ``timer``: seconds of a collective among these devices. ``recompute``: forwards and their exchanges run twice.
    ``sliced``: tensors between layers are cut along their positions if divisible. ``whole``: nothing is cut along
    samples or positions within layers either, even if faster, as in Megatron-LM without sequence parallelism.
    ``pinned``: the split dimensions of operators with these names, if possible.
    """
    if parts.parts < 1:
        raise ValueError(f"degree is {parts.parts}, it must be at least 1")
    return _Sharding(graph, parts, timer, recompute, sliced, whole, pinned or {}).run()


class _Sharding:
    def __init__(self, graph: OperatorGraph, parts: PartTimes, timer: Timer, recompute: bool, sliced: bool,
                 whole: bool, pinned: Mapping[str, str]) -> None:
        self.pinned, self.whole = pinned, whole
        self.graph, self.part_times, self.degree, self.sliced = graph, parts, parts.parts, sliced
        self.timer = timer
        self.forwards = 2 if recompute else 1
        self.layer_of = {operator.name: operator.layer for operator in graph.operators}
        holders = Counter(p.name for operator in graph.operators for p in operator.parameters)
        self.shared = {name for name, count in holders.items() if count > 1}
        self.choices: dict[str, Split | None] = {}
        self._known: dict[object, tuple[int, ...]] = {}

    def run(self) -> Sharded:
        operators: list[Operator] = []
        times: dict[str, OperatorTime] = {}
        exchanges: list[Exchanged] = []
        layers = operators_by_layer(self.graph)
        if self.degree == 1:
            return Sharded(1, self.graph, self.part_times.times, {name: None for name in self.graph.by_name}, ())
        for layer in checked(layers.values()):
            self._choose(layer)
        for name, layer in checked(layers.items()):
            self._transform(name, layer, operators, times, exchanges)
        outputs = tuple(self._at(name, self._between(name), None) for name in self.graph.outputs)
        sharded = OperatorGraph(self.graph.name, tuple(operators), self.graph.inputs, outputs, self.graph.notes)
        return Sharded(self.degree, sharded, times, self.choices, tuple(exchanges))

    # -- the choice ----------------------------------------------------------------------------------------------------

    def _choose(self, layer: Sequence[Operator]) -> None:
        options = {operator.name: self._options(operator) for operator in layer}
        key = self._signature(layer)
        if key not in self._known:
            factors = [Factor((operator.name,), np.array([self._seconds(operator, option)
                                                          for option in options[operator.name]]))
                       for operator in layer]
            factors += [self._tensor_factor(name, layer, options) for name in _tensors(layer)]
            best = cheapest({name: len(options[name]) for name in sorted(options)}, factors)
            self._known[key] = tuple(best[operator.name] for operator in layer)
        for operator, choice in zip(layer, self._known[key], strict=True):
            self.choices[operator.name] = options[operator.name][choice]

    def _options(self, operator: Operator) -> list[Split | None]:
        splits = [split for split in operator.splits if split.size % self.degree == 0
                  and not (self.whole and split.dimension in _LEADING)]
        splits = [split for split in splits if split.dimension == self.pinned.get(operator.name)] or splits
        matrices = [p for p in operator.parameters if len(p.shape) > 1]
        dividing = [split for split in splits if any(p.name in split.parameters for p in matrices)]
        shared = {p.name for p in matrices if p.name in self.shared}
        if shared:
            dividing = [split for split in dividing if split.dimension in _BY_ROWS]
        # A table with indivisible rows, such as an odd vocabulary's, stays whole in all operators that share it.
        return [*dividing] or [None, *(split for split in splits if not split.parameters & shared)]

    def _signature(self, layer: Sequence[Operator]) -> object:
        """A key equal for layers that differ only in names."""
        number: dict[str, int] = {}
        rows = []
        for operator in layer:
            names = [*operator.inputs, *(tensor.name for tensor in operator.outputs)]
            for name in names:
                number.setdefault(name, len(number))
            sizes = tuple((self.graph.tensors[name].shape, self._leaves(name, operator.layer),
                           self._made_in(name, operator.layer), has_gradient(self.graph, name), self._between(name))
                          for name in names)
            rows.append((operator.kind, self.pinned.get(operator.name), operator.forward, operator.input_grad,
                         operator.weight_grad, self.part_times.times[operator.name],
                         tuple(number[name] for name in names), sizes,
                         tuple((p.shape, p.name in self.shared) for p in operator.parameters),
                         tuple((split.dimension, split.size) for split in operator.splits)))
        return tuple(rows)

    def _seconds(self, operator: Operator, option: Split | None) -> float:
        time = self.part_times.of(operator, option)
        return self.forwards * time.forward + time.input_grad + time.weight_grad

    def _tensor_factor(self, name: str, layer: Sequence[Operator],
                       options: Mapping[str, Sequence[Split | None]]) -> Factor:
        inside = {operator.name: operator for operator in layer}
        readers = [inside[reader] for reader in self.graph.readers[name] if reader in inside]
        producer = inside.get(self.graph.producer.get(name, ""))
        variables = list(dict.fromkeys(([producer.name] if producer else []) + [reader.name for reader in readers]))
        table = np.zeros([len(options[variable]) for variable in variables])
        leaves = self._leaves(name, layer[0].layer)
        for place in itertools.product(*(range(len(options[variable])) for variable in variables)):
            chosen = {variable: options[variable][i] for variable, i in zip(variables, place, strict=True)}
            produced = layout_of(chosen[producer.name], name, "outputs") if producer else self._between(name).layout
            needs = {_need(reader, chosen[reader.name], name) for reader in readers}
            needs |= {self._between(name)} if leaves else set()
            table[place] = sum(self._cost(name, self._exchange(name, produced, need)) for need in needs)
        return Factor(tuple(variables), table)

    def _cost(self, tensor: str, found: TensorExchange) -> float:
        """Seconds of an exchange in a step; with slices, whole sums of divisible tensors are penalised."""
        forward, backward = found.seconds(self.timer)
        avoided = self._is_cut(tensor) * ((found.forward, found.backward).count("all_reduce"))
        return self.forwards * forward + backward + avoided * _AVOIDED

    # -- the graph -----------------------------------------------------------------------------------------------------

    def _transform(self, name: str, layer: Sequence[Operator], operators: list[Operator],
                   times: dict[str, OperatorTime], exchanges: list[Exchanged]) -> None:
        made: set[str] = set()

        def bring(tensor: str, needs: Iterable[TensorNeed]) -> None:
            for need in needs:
                target = self._at(tensor, need, name)
                if target == self._at(tensor, self._between(tensor), None) and not self._made_in(tensor, name):
                    continue
                if target == tensor or target in made:
                    continue
                made.add(target)
                source, produced = self._source(tensor, name)
                found = self._exchange(tensor, produced, need)
                operator, time = self._converter(tensor, source, target, need, name, found)
                operators.append(operator)
                times[operator.name] = time
                exchanges.append(Exchanged(tensor, name, produced, need, found, time.forward, time.input_grad))

        for operator in layer:
            for tensor in operator.inputs:
                bring(tensor, [_need(operator, self.choices[operator.name], tensor)])
            slices = self._slices(operator, name)
            operators.append(self._part(operator, name, slices))
            times[operator.name] = self._time(operator, slices)
            for output in operator.outputs:
                if self._leaves(output.name, name):
                    bring(output.name, [self._between(output.name)])

    def _at(self, tensor: str, need: TensorNeed, layer: str | None) -> str:
        """The name of ``tensor`` in the layout ``need`` within ``layer`` (``None``: between layers)."""
        here = layer is not None and self._made_in(tensor, layer)
        produced = self._produced(tensor) if here or layer is None else self._between(tensor).layout
        found = self._exchange(tensor, produced, need)
        base = tensor if here or layer is None else self._at(tensor, self._between(tensor), None)
        if found.forward == "none" and found.backward in ("none", "slice"):
            return base
        how = need.layout if isinstance(need.layout, str) else f"axis{need.layout}"
        where = "" if here or layer is None else f" in {layer}"
        return f"{tensor} ({how}{', divided' if need.divided and need.layout == 'whole' else ''}{where})"

    def _converter(self, tensor: str, source: str, target: str, need: TensorNeed, layer: str,
                   found: TensorExchange) -> tuple[Operator, OperatorTime]:
        original = self.graph.tensors[tensor]
        made = laid_out(replace(original, name=target, base=None), need.layout, self.degree)
        copies = found.forward != "none"
        if not copies:
            made = replace(made, base=source)
        forward, backward = found.seconds(self.timer)
        part = Work(0, made.bytes if copies else 0, made.bytes if copies else 0)
        kind = found.forward if copies else f"gradient_{found.backward}"
        operator = Operator(name=f"{target}: {kind}", kind=kind, forward=part, inputs=(source,), outputs=(made,),
                            input_grad=Work(0, made.bytes, made.bytes) if has_gradient(self.graph, tensor) else None,
                            layer=layer)
        return operator, OperatorTime(forward, backward, 0.0, Origin.MODELLED)

    def _part(self, operator: Operator, layer: str, slices: Mapping[str, str]) -> Operator:
        """One device's part of ``operator``, which keeps ``slices`` of inputs."""
        option = self.choices[operator.name]
        names = {tensor: self._at(tensor, _need(operator, option, tensor), layer) for tensor in operator.inputs}
        held = {**names, **slices}
        return replace(
            operator, inputs=tuple(dict.fromkeys(names[tensor] for tensor in operator.inputs)),
            outputs=outputs_of(operator, option, self.degree),
            forward=self.part_times.work(operator, option, operator.forward) or Work(),
            input_grad=self.part_times.work(operator, option, operator.input_grad),
            weight_grad=self.part_times.work(operator, option, operator.weight_grad),
            parameters=parameters_of(operator, option, self.degree),
            internal=tuple(self._internal(operator, tensor, option) for tensor in operator.internal),
            keeps=tuple(dict.fromkeys(held.get(tensor, tensor) for tensor in operator.keeps)),
            deferred=None if operator.deferred is None else
            tuple(dict.fromkeys(held.get(tensor, tensor) for tensor in operator.deferred)),
            slices={kept: self.graph.tensors[tensor].bytes for tensor, kept in slices.items()},
            workspace=operator.workspace if option is None else -(-operator.workspace // self.degree), splits=())

    def _slices(self, operator: Operator, layer: str) -> dict[str, str]:
        """By name of a tensor needed only by the weight gradient of ``operator``: the slice gathered for it."""
        found: dict[str, str] = {}
        for tensor in self.sliced * (operator.deferred or ()):
            if tensor not in operator.inputs:
                continue
            source, produced = self._source(tensor, layer)
            need = _need(operator, self.choices[operator.name], tensor)
            if self._exchange(tensor, produced, need).forward == "all_gather":
                found[tensor] = source
        return found

    def _time(self, operator: Operator, slices: Iterable[str]) -> OperatorTime:
        """The time of a part, plus the excess of gathering kept ``slices`` again over its input gradient."""
        time = self.part_times.of(operator, self.choices[operator.name])
        again = sum(self.timer("all_gather", -(-self.graph.tensors[tensor].bytes // self.degree))
                    for tensor in slices)
        return replace(time, weight_grad=round(time.weight_grad + max(0.0, again - time.input_grad), 9))

    def _internal(self, operator: Operator, tensor: Tensor, option: Split | None) -> Tensor:
        """An internal tensor: divided like the output of the same shape, else like the work."""
        if option is None:
            return tensor
        alike = next((other for other in operator.outputs if other.shape == tensor.shape), None)
        if alike is not None and not isinstance(layout_of(option, alike.name, "outputs"), int):
            return tensor
        return replace(tensor, bytes=-(-tensor.bytes // self.degree), shape=())

    def _between(self, tensor: str) -> TensorNeed:
        """The layout of ``tensor`` between layers."""
        return TensorNeed(_POSITIONS, divided=False) if self._is_cut(tensor) else _WHOLE

    def _is_cut(self, tensor: str) -> bool:
        """Whether ``tensor`` must be cut along its positions."""
        shape = self.graph.tensors[tensor].shape
        return (self.sliced and len(shape) > 2 and shape[_POSITIONS] % self.degree == 0
                and has_gradient(self.graph, tensor) and tensor not in self.graph.outputs)

    def _exchange(self, tensor: str, produced: Layout, need: TensorNeed) -> TensorExchange:
        return exchange(produced, need, self.graph.tensors[tensor].bytes, self.degree,
                        gradient=has_gradient(self.graph, tensor))

    def _source(self, tensor: str, layer: str) -> tuple[str, Layout]:
        """The name and layout of ``tensor`` where ``layer`` makes or receives it."""
        if self._made_in(tensor, layer):
            return tensor, self._produced(tensor)
        return self._at(tensor, self._between(tensor), None), self._between(tensor).layout

    def _produced(self, tensor: str) -> Layout:
        producer = self.graph.producer.get(tensor)
        return "whole" if producer is None else layout_of(self.choices[producer], tensor, "outputs")

    def _made_in(self, tensor: str, layer: str) -> bool:
        producer = self.graph.producer.get(tensor)
        return producer is not None and self.layer_of[producer] == layer

    def _leaves(self, tensor: str, layer: str) -> bool:
        """Whether ``tensor`` is made in ``layer`` and read elsewhere."""
        return self._made_in(tensor, layer) and (tensor in self.graph.outputs or any(
            self.layer_of[reader] != layer for reader in self.graph.readers[tensor]))


def _tensors(layer: Sequence[Operator]) -> list[str]:
    return list(dict.fromkeys(name for operator in layer for name in (
        *operator.inputs, *(tensor.name for tensor in operator.outputs))))


def _need(reader: Operator, option: Split | None, tensor: str) -> TensorNeed:
    return TensorNeed(layout_of(option, tensor, "inputs"), divided=option is not None and reader.input_grad is not None)
