"""Conversion of an operator graph to a chain of layers with their costs, the input of the splitters.

Operators of one ``layer`` stay together, in the order in which the graph lists them. A model that is not a chain is
*linearised*: its layers run one after another, and a tensor read by a later layer passes through all stages in between
(:func:`is_chain` says whether there is none). That is a pipeline with a chain of stages; parallel stages require a
placement of the graph itself.

Memory is counted by storage. Tensors kept by several layers (an encoder's output) and shared parameters (a tied table)
are listed in ``LayerCost.shared_activations`` and ``shared_parameters``, so that a stage with several of them counts
each once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from weft.models.graph.layers_view import list_entry
from weft.models.graph.operators import Operator, OperatorError, OperatorGraph, Tensor
from weft.models.layers.costs import LayerCost, recomputed
from weft.models.times.operator_times import OperatorTime

_NOT_RECOMPUTED = ("embedding", "embedding_bag", "cross_entropy")


def operators_by_layer(graph: OperatorGraph) -> dict[str, tuple[Operator, ...]]:
    """The operators of each layer, layers in the order of their first operator.

    Raises :class:`~weft.models.graph.operators.OperatorError` if a layer needs a later one.
    """
    layers: dict[str, list[Operator]] = {}
    for operator in graph.operators:
        layers.setdefault(operator.layer, []).append(operator)
    position = {name: i for i, name in enumerate(layers)}
    for before, after in graph.edges:
        first, second = graph.by_name[before].layer, graph.by_name[after].layer
        if position[first] > position[second]:
            raise OperatorError(f"{graph.name}: layer {second!r} stands before layer {first!r}, but {after!r} needs "
                                f"{before!r}; layers must follow each other")
    return {name: tuple(operators) for name, operators in layers.items()}


def in_order(graph: OperatorGraph) -> OperatorGraph:
    """``graph`` with its operators in a topological order and a new layer wherever the next one begins.

    A captured operator's layer is the path of its module, which :func:`~weft.models.graph.layers_view.list_entry` cuts
    at the first number (``encoder.layers.3``). A re-entered layer starts a new one (``encoder.layers.3#2``); an
    operator without a module joins the previous one.
    """
    placed: list[Operator] = []
    visits: Counter[str] = Counter()
    current, layer = "", ""
    for name in graph.order:
        operator = graph.by_name[name]
        entry = list_entry(operator.layer) or current or graph.name
        if entry != current:
            current = entry
            visits[entry] += 1
            layer = entry if visits[entry] == 1 else f"{entry}#{visits[entry]}"
        placed.append(replace(operator, layer=layer))
    return replace(graph, operators=tuple(placed))


def is_chain(graph: OperatorGraph) -> bool:
    """Whether every layer reads only the previous layer's outputs, beside the model's inputs."""
    layers = list(operators_by_layer(graph).values())
    before: set[str] = set()
    for operators in layers:
        inside = {operator.name for operator in operators}
        for operator in operators:
            producers = {graph.producer[name] for name in operator.inputs if name in graph.producer}
            if not producers <= inside | before:
                return False
        before = inside
    return True


def layers_of(graph: OperatorGraph, times: Mapping[str, OperatorTime], *, training: bool,
              recompute: bool = False) -> list[LayerCost]:
    """The layers of ``graph`` with their costs, first to last; ``times`` by operator.

    With ``recompute`` all layers keep only their input, except embedding lookups and the loss: these keep little that
    could be recomputed, or recomputing has no effect.
    """
    layers = operators_by_layer(graph)
    again = {name: recompute and training and not any(operator.kind in _NOT_RECOMPUTED for operator in operators)
             for name, operators in layers.items()}
    keepers = Counter(name for layer, operators in layers.items()
                      for name in (_read(graph, operators) if again[layer] else _kept(graph, operators)))
    holders = Counter(name for operators in layers.values()
                      for name in {p.name for operator in operators for p in operator.parameters})
    costs: list[LayerCost] = []
    known: dict[object, LayerCost] = {}
    for (name, operators), sent in zip(layers.items(), _crossing(graph, layers), strict=True):
        key = _signature(graph, operators, times, keepers, holders)
        if key not in known:
            known[key] = _layer(_Layer(graph, name, operators), times, sent, keepers, holders, training)
        cost = replace(known[key], name=name, output_bytes=sent)
        costs.append(recomputed(cost) if again[name] and cost.backward else cost)
    return costs


def _signature(graph: OperatorGraph, operators: Sequence[Operator], times: Mapping[str, OperatorTime],
               keepers: Mapping[str, int], holders: Mapping[str, int]) -> object:
    """A key equal for layers that differ only in names and so have the same costs; names of tensors and parameters
    shared with other layers, which appear in the costs, are part of it."""
    number: dict[str, int] = {}
    weights: dict[str, int] = {}
    facts: list[object] = []
    inside = {operator.name for operator in operators}

    def mark(name: str) -> int:
        """The number of a tensor; its properties are listed on its first occurrence."""
        if name in number:
            return number[name]
        number[name] = place = len(number)
        tensor = graph.tensors[name]
        producer = graph.producer.get(name)
        source = None if producer is None else graph.by_name[producer]
        facts.append((place, tensor.bytes, tensor.dtype, producer in inside, name in graph.outputs,
                      source is not None and bool(source.input_grad or source.weight_grad),
                      inside.issuperset(graph.readers[name]), mark(graph.storage(name)) if tensor.base else place))
        return place

    for operator in operators:
        facts.append((tuple(map(mark, operator.inputs)), tuple(mark(tensor.name) for tensor in operator.outputs),
                      tuple(mark(tensor.name) for tensor in operator.internal), tuple(map(mark, operator.keeps)),
                      None if operator.deferred is None else tuple(map(mark, operator.deferred)), operator.workspace,
                      tuple(operator.slices.values()),
                      tuple((p.count, p.bytes, weights.setdefault(p.name, len(weights)),
                             p.name if holders[p.name] > 1 else "") for p in operator.parameters),
                      operator.input_grad is None, operator.weight_grad is None, times[operator.name]))
    return tuple(facts), tuple(sorted({(place, graph.storage(name)) for name, place in number.items()
                                       if keepers.get(graph.storage(name), 0) > 1}))


def _crossing(graph: OperatorGraph, layers: Mapping[str, Sequence[Operator]]) -> list[int]:
    """Bytes passed from each layer to the rest: all tensors that later layers read."""
    position = {operator.name: i for i, operators in enumerate(layers.values()) for operator in operators}
    sent = [0] * len(layers)
    for tensor, producer in graph.producer.items():
        last = max((position[reader] for reader in graph.readers[tensor]), default=-1)
        for layer in range(position[producer], last):
            sent[layer] += graph.tensors[tensor].bytes
    return sent


class _Layer:
    """One layer's operators, and the tensors exchanged with others."""

    def __init__(self, graph: OperatorGraph, name: str, operators: Sequence[Operator]) -> None:
        self.graph, self.name, self.operators = graph, name, tuple(operators)
        names = [operator.name for operator in operators]
        read, self.given = graph.crossing(names)
        self.read = tuple(dict.fromkeys(name for operator in operators for name in operator.inputs
                                        if name in read or name not in graph.producer))
        self.index = {name: i for i, name in enumerate(names)}

    @property
    def has_backward(self) -> bool:
        return any(operator.input_grad or operator.weight_grad for operator in self.operators)

    def last_reader(self, tensor: str) -> int:
        """The index of the last operator here that reads ``tensor``; all of them if it leaves the layer."""
        if tensor in self.given or (tensor in self.graph.outputs and tensor not in self.read):
            return len(self.operators)
        return max((self.index[reader] for reader in self.graph.readers[tensor] if reader in self.index), default=-1)

    def forward_peak(self, *, keeping: bool) -> int:
        """The peak live memory in a forward, including the layer's input; ``keeping`` the tensors of the backward."""
        kept = _kept(self.graph, self.operators) if keeping else set()
        live = {self.graph.storage(name) for name in self.read}
        peak = 0
        for i, operator in enumerate(self.operators):
            made = {self.graph.storage(tensor.name) for tensor in operator.outputs}
            inner = {tensor.name for tensor in operator.internal}
            peak = max(peak, self._bytes(live | made | inner) + operator.workspace)
            live |= made | (inner & kept)
            ended = {name for name in (*operator.inputs, *(tensor.name for tensor in operator.outputs))
                     if name not in self.read and self.last_reader(name) <= i}
            live -= {self.graph.storage(name) for name in ended} - kept
        return peak

    def backward_peak(self, *, deferring: bool) -> int:
        """The peak live memory in a backward: tensors still kept, gradients of activations, and the parameters'
        gradients of one operator before they are accumulated. ``deferring``: the tensors of the weight gradients stay
        instead."""
        peak = 0
        for i, operator in enumerate(self.operators):
            kept = _kept(self.graph, self.operators[:i + 1])
            gradients = {tensor.name for tensor in self._differentiable() if self._gradient_lives(tensor.name, i)}
            stored: set[str] = set()
            added = sum(p.bytes for p in operator.parameters) if not deferring or operator.deferred is None else 0
            if deferring:
                for later in self.operators[i + 1:]:
                    if later.deferred is not None:
                        stored |= {tensor.name for tensor in later.outputs}
                        kept |= {self.graph.storage(name) for name in later.deferred}
            peak = max(peak, self._bytes(kept) + self._bytes(gradients | stored) + added + operator.workspace
                       + sum(operator.slices.values()))
        return peak

    def _differentiable(self) -> Iterable[Tensor]:
        for name in (*self.read, *(tensor.name for operator in self.operators for tensor in operator.outputs)):
            tensor = self.graph.tensors[name]
            producer = self.graph.producer.get(name)
            source = None if producer is None else self.graph.by_name[producer]
            if "float" in tensor.dtype and source is not None and (source.input_grad or source.weight_grad):
                yield tensor

    def _gradient_lives(self, tensor: str, at: int) -> bool:
        producer = self.graph.producer.get(tensor, "")
        return self.index.get(producer, -1) <= at <= self.last_reader(tensor)

    def _bytes(self, names: Iterable[str]) -> int:
        return sum(self.graph.tensors[name].bytes for name in names)


def _kept(graph: OperatorGraph, operators: Iterable[Operator]) -> set[str]:
    return {graph.storage(name) for operator in operators for name in operator.keeps}


def _read(graph: OperatorGraph, operators: Sequence[Operator]) -> set[str]:
    """The storages of the external tensors read by ``operators``."""
    made = {tensor.name for operator in operators for tensor in operator.outputs}
    return {graph.storage(name) for operator in operators for name in operator.inputs if name not in made}


def _held_for_weights(layer: _Layer) -> int:
    """The tensors that the weight gradients need after the input gradient: their kept tensors, and their outputs'
    gradients."""
    graph, later = layer.graph, [operator for operator in layer.operators if operator.deferred is not None]
    kept = {graph.storage(name) for operator in later for name in operator.deferred or ()}
    gradients = {tensor.name for operator in later for tensor in operator.outputs}
    return sum(graph.tensors[name].bytes for name in kept) + sum(graph.tensors[name].bytes for name in gradients)


def _layer(layer: _Layer, times: Mapping[str, OperatorTime], sent: int, keepers: Mapping[str, int],
           holders: Mapping[str, int], training: bool) -> LayerCost:
    graph = layer.graph
    kept = _kept(graph, layer.operators) if training else set()
    shared = tuple(sorted((name, graph.tensors[name].bytes) for name in kept if keepers[name] > 1))
    parameters = {p.name: p for operator in layer.operators for p in operator.parameters}
    tied = tuple(sorted((name, p.count) for name, p in parameters.items() if holders[name] > 1))
    spent = [times[operator.name] for operator in layer.operators]
    input_grad = round(sum(time.input_grad for time in spent), 9)
    weight_grad = round(sum(time.weight_grad for time in spent), 9)
    activations = sum(graph.tensors[name].bytes for name in kept)
    backward = training and layer.has_backward
    peaks = [layer.backward_peak(deferring=deferring) for deferring in (False, True)] if backward else [0]
    return LayerCost(
        name=layer.name,
        forward=round(sum(time.forward for time in spent), 9),
        backward=round(input_grad + weight_grad, 9) if training else 0.0,
        input_grad=input_grad if training else None,
        weight_grad=weight_grad if training else None,
        parameters=sum(p.count for p in parameters.values()),
        activation_bytes=activations,
        weight_grad_bytes=_held_for_weights(layer) if backward else 0,
        output_bytes=sent,
        workspace_forward=max(0, layer.forward_peak(keeping=training) - activations),
        workspace_backward=max(0, max(peaks) - activations),
        workspace_weight_grad=max((*(p.bytes for p in parameters.values()), *(
            sum(p.bytes for p in operator.parameters) + sum(operator.slices.values()) for operator in layer.operators
            if operator.slices)), default=0) if backward else 0,
        input_bytes=sum(graph.tensors[name].bytes for name in _read(graph, layer.operators)),
        shared_inputs=tuple(sorted((name, graph.tensors[name].bytes) for name in _read(graph, layer.operators)
                                   if keepers[name] > 1)),
        working_set=layer.forward_peak(keeping=False),
        shared_activations=shared,
        shared_parameters=tied,
    )
