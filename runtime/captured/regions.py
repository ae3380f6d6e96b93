"""Higher-order and multi-layer operators of a graph as sequences of ordinary operators, which can be cut.

``torch.export`` puts code under ``torch.no_grad`` or ``torch.autocast`` into a subgraph behind one call, which hides
its in-place writes, random numbers and views. Here its operators are inlined: without gradients they read detached
inputs, and under autocast each operator runs under its own ``torch.autocast``, so that its dtypes do not depend on the
caller.

A recurrent operator of several layers becomes one operator per layer.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from weft.runtime.captured.marks import is_ungraded

#: The higher-order operators of ``torch.export`` that call a subgraph, and the number of arguments before the subgraph.
UNGRADED, AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"
SETTINGS = {UNGRADED: 1, AUTOCAST: 4}


def inline_wrapped_graphs(graph_module: GraphModule) -> None:
    """Replace the calls of all such subgraphs by their operators; in place."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if _wrapper(node) not in SETTINGS or node.kwargs:
            continue
        count = SETTINGS[_wrapper(node)]
        setting, part, given = node.args[:count], node.args[count], node.args[count + 1:]
        body = graph_module.get_submodule(str(part.target)) if isinstance(part, Node) else None
        if not isinstance(body, GraphModule):
            continue
        inline_wrapped_graphs(body)
        if any(_wrapper(inner) == UNGRADED for inner in body.graph.nodes):
            continue  # an inner region enables gradients again
        if _wrapper(node) == AUTOCAST:
            if any(isinstance(inner.target, torch._ops.HigherOrderOperator) for inner in body.graph.nodes):
                continue  # it contains other subgraphs
            _autocast(body, setting)
        _unwrap(node, body, given, setting[0] is False)
        if isinstance(part, Node) and not part.users:
            graph.erase_node(part)
    graph_module.recompile()


def _wrapper(node: Node) -> str:
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def _autocast(body: GraphModule, setting: Sequence[object]) -> None:
    """Make the operators of ``body`` run under autocast, except those of an inner region. Operators marked as running
    without gradients get detached inputs, as the export drops that property."""
    for node in list(body.graph.nodes):
        if is_ungraded(node):
            with body.graph.inserting_before(node):
                for arg in [arg for arg in node.all_input_nodes if _has_gradient(arg) and not is_ungraded(arg)]:
                    node.replace_input_with(arg, _detached(arg, node))
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            node.target = under_autocast(node.target, tuple(setting))


def _unwrap(call: Node, body: GraphModule, given: Sequence[object], detached: bool) -> None:
    graph, env, outer = call.graph, dict[Node, Node](), dict[Node, Node]()
    with graph.inserting_before(call):
        for entered, value in zip(body.graph.find_nodes(op="placeholder"), given, strict=True):
            assert isinstance(value, Node)
            outer[entered] = env[entered] = value
            value.meta.setdefault("val", entered.meta.get("val"))
            if detached and _has_gradient(value):
                env[entered] = _detached(value, call)
        for node in body.graph.nodes:
            if node.op == "get_attr":
                name = f"{call.name}_{str(node.target).replace('.', '_')}"
                owner = graph.owning_module
                assert owner is not None
                setattr(owner, name, body.get_parameter(str(node.target)) if str(node.target) in dict(
                    body.named_parameters()) else getattr(body, str(node.target)))
                env[node] = graph.get_attr(name)
                env[node].meta.update(node.meta)
            elif node.op not in ("placeholder", "output"):
                env[node] = graph.node_copy(node, lambda arg: env[arg])
    output, = body.graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], tuple | list) else (output.args[0],)
    # An input that is mutated and returned keeps its gradient, so readers get the input, not the detached one.
    values = [map_arg(leaf, lambda node: outer.get(_mutated_input(node), env[node])) for leaf in results]
    for item in list(call.users):
        item.replace_all_uses_with(values[item.args[1]])  # type: ignore[index]
        graph.erase_node(item)
    graph.erase_node(call)


def _has_gradient(node: Node) -> bool:
    fake = node.meta.get("val")
    return isinstance(fake, Tensor) and (fake.is_floating_point() or fake.is_complex())


def _detached(value: Node, reader: Node) -> Node:
    """``value`` detached, for ``reader``."""
    detached = value.graph.call_function(torch.ops.aten.detach.default, (value,))
    detached.meta.update(reader.meta, val=value.meta["val"].detach())
    return detached


def _mutated_input(node: Node) -> Node:
    """The tensor that ``node`` mutates and returns, through a chain of in-place operators; otherwise ``node``."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
        schema = getattr(node.target, "_schema", None)
        info = schema.arguments[0].alias_info if schema is not None and schema.arguments else None
        if info is None or not info.is_write:
            break
        node = node.args[0]
    return node


class UnderAutocast:
    """``operator`` under ``torch.autocast(*setting)``, with the schema, tags and name of ``operator``."""

    def __init__(self, operator: torch._ops.OpOverload, setting: Sequence[Any]) -> None:
        kind, dtype, enabled = setting[:3]
        self.operator, self.setting = operator, (kind, dtype, enabled)
        self._schema, self.tags = operator._schema, operator.tags
        self.__name__ = operator.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of ``operator``."""
        with _under(self.setting):
            return self.operator(*args, **kwargs)

    def __str__(self) -> str:
        return f"{self.operator} under autocast{self.setting}"

    def around(self, layer: nn.Module) -> nn.Module:
        """``layer``, which implements ``operator``, under the same autocast."""
        return Autocasting(layer, self.setting)


@cache
def under_autocast(operator: torch._ops.OpOverload, setting: tuple[Any, ...]) -> UnderAutocast:
    """``operator`` under ``torch.autocast(*setting)``. Equal arguments give one object, as torch 2.6's code generation
    requires."""
    return UnderAutocast(operator, setting)


class Autocasting(nn.Module):
    """``layer`` under ``torch.autocast(*setting)``."""

    def __init__(self, layer: nn.Module, setting: tuple[Any, ...]) -> None:
        super().__init__()
        self.layer, self.setting = layer, setting

    def forward(self, *xs: Tensor) -> Any:
        """The result of ``layer``."""
        with _under(self.setting):
            return self.layer(*xs)


def _under(setting: tuple[Any, ...]) -> torch.autocast:
    kind, dtype, enabled = setting
    return torch.autocast(kind, dtype, enabled, cache_enabled=False)


#: The recurrent operators, called as ``operator(input, hx, params, has_biases, layers, dropout, train, bidirectional,
#: batch_first)``, and the number of states of each (one state is not a list). Packed sequences have another schema.
STATES = {"aten::lstm": 2, "aten::gru": 1, "aten::rnn_tanh": 1, "aten::rnn_relu": 1}


def split_recurrent_layers(graph_module: GraphModule) -> None:
    """Replace each recurrent operator of several layers by one operator per layer; in place."""
    for node in list(graph_module.graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.name in STATES and schema.overload_name == "input" and node.args[4] > 1:
            _LayerSequence(node).insert()
    graph_module.recompile()


class _LayerSequence:
    def __init__(self, node: Node) -> None:
        self.node, self.graph, self.fakes = node, node.graph, node.meta["val"]

    def insert(self) -> None:
        """Insert the sequence, and redirect the operator's users to it."""
        x, hx, params, has_biases, layers, dropout, train, both, batch_first = self.node.args
        count = STATES[self.node.target._schema.name]  # type: ignore[union-attr]
        states: Any = hx if isinstance(hx, list | tuple) else [hx]
        each, directions = len(params) // layers, 2 if both else 1  # type: ignore[arg-type,operator]
        last: list[list[Node]] = [[] for _ in range(count)]
        with self.graph.inserting_before(self.node):
            for layer in range(layers):  # type: ignore[arg-type]
                if layer and dropout and train:
                    x = self._call(torch.ops.aten.dropout.default, self.fakes[0], x, dropout, train)
                own = [self._call(torch.ops.aten.slice.Tensor, self.fakes[1 + i][:directions], state, 0,
                                  layer * directions, (layer + 1) * directions) for i, state in enumerate(states)]
                fakes = (self.fakes[0], *(state[:directions] for state in self.fakes[1:]))
                run = self._call(self.node.target, fakes, x, own if count > 1 else own[0],
                                 params[layer * each:(layer + 1) * each],  # type: ignore[index]
                                 has_biases, 1, 0.0, train, both, batch_first)
                x, *ends = [self._call(operator.getitem, fake, run, i) for i, fake in enumerate(fakes)]
                for all_of, end in zip(last, ends, strict=True):
                    all_of.append(end)
            results = [x, *(self._call(torch.ops.aten.cat.default, self.fakes[1 + i], ends)
                            for i, ends in enumerate(last))]
        for item in list(self.node.users):
            item.replace_all_uses_with(results[item.args[1]])  # type: ignore[index,arg-type]
            self.graph.erase_node(item)
        self.graph.erase_node(self.node)

    def _call(self, target: Any, fake: Tensor | tuple[Tensor, ...], *args: Any) -> Node:
        node = self.graph.call_function(target, args)
        node.meta.update(self.node.meta, val=fake)
        return node
