"""Code of a model under ``torch.no_grad`` or ``torch.autocast`` as ordinary operators of its graph.

``torch.export`` puts such a part into a separate graph, behind one call, which hides its writes, its random numbers and
its views, and cannot be cut. Here its operators are inlined in the graph: without gradients they read their inputs
detached, and under autocast each is called under it.

Operators that a model's own forward computes under ``torch.autocast``, each by itself.

``torch.export`` puts such a part into one call; taken out of it, each operator must still compute in the types that
autocast has for it there, whatever holds outside.

A recurrent operator of several layers as one operator a layer, so that a cut may lie between them.
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

#: The names of ``torch.export``'s calls of such parts, and the number of arguments before the part.
UNGRADED, AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"
SETTINGS = {UNGRADED: 1, AUTOCAST: 4}


def unwrapped(graph_module: GraphModule) -> None:
    """Inline the operators of all such parts in place of their calls."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if _wrapper(node) not in SETTINGS or node.kwargs:
            continue
        count = SETTINGS[_wrapper(node)]
        setting, part, given = node.args[:count], node.args[count], node.args[count + 1:]
        body = graph_module.get_submodule(str(part.target)) if isinstance(part, Node) else None
        if not isinstance(body, GraphModule):
            continue
        unwrapped(body)
        if any(_wrapper(inner) == UNGRADED for inner in body.graph.nodes):
            continue  # gradients are enabled again inside
        if _wrapper(node) == AUTOCAST:
            if any(isinstance(inner.target, torch._ops.HigherOrderOperator) for inner in body.graph.nodes):
                continue  # it contains further graphs
            _autocast(body, setting)
        _unwrap(node, body, given, setting[0] is False)
        if isinstance(part, Node) and not part.users:
            graph.erase_node(part)
    graph_module.recompile()


def _wrapper(node: Node) -> str:
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def _autocast(body: GraphModule, setting: Sequence[object]) -> None:
    """Make the operators of ``body`` run under autocast, except those under an inner one. An export loses which of them
    record no gradients."""
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
    # A tensor written in place and returned is the input: it has its original gradient.
    found = [map_arg(leaf, lambda node: outer.get(_written(node), env[node])) for leaf in results]
    for item in list(call.users):
        item.replace_all_uses_with(found[item.args[1]])  # type: ignore[index]
        graph.erase_node(item)
    graph.erase_node(call)


def _has_gradient(node: Node) -> bool:
    looks = node.meta.get("val")
    return isinstance(looks, Tensor) and (looks.is_floating_point() or looks.is_complex())


def _detached(value: Node, reader: Node) -> Node:
    """``value`` for ``reader``, which gives it no gradient."""
    found = value.graph.call_function(torch.ops.aten.detach.default, (value,))
    found.meta.update(reader.meta, val=value.meta["val"].detach())
    return found


def _written(node: Node) -> Node:
    """The input tensor that in-place operators return, where ``node`` is such a result."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
        schema = getattr(node.target, "_schema", None)
        info = schema.arguments[0].alias_info if schema is not None and schema.arguments else None
        if info is None or not info.is_write:
            break
        node = node.args[0]
    return node


class UnderAutocast:
    """``operator`` under ``torch.autocast(*setting)``; to inspection, it is ``operator``."""

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
        """``layer``, an implementation of ``operator``, under autocast."""
        return Autocasting(layer, self.setting)


@cache
def under_autocast(operator: torch._ops.OpOverload, setting: tuple[Any, ...]) -> UnderAutocast:
    """``operator`` under ``torch.autocast(*setting)``: one object for equal ones, as torch 2.6's code generation
    needs."""
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


#: The operators, as ``operator(input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first)``,
#: and the number of states of each (a single one is not a list). Packed sequences come with another schema.
STATES = {"aten::lstm": 2, "aten::gru": 1, "aten::rnn_tanh": 1, "aten::rnn_relu": 1}


def in_layers(graph_module: GraphModule) -> None:
    """Replace each operator of several layers by a sequence of operators; in place."""
    for node in list(graph_module.graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.name in STATES and schema.overload_name == "input" and node.args[4] > 1:
            _CellRow(node).put()
    graph_module.recompile()


class _CellRow:
    def __init__(self, node: Node) -> None:
        self.node, self.graph, self.made = node, node.graph, node.meta["val"]

    def put(self) -> None:
        """Make the sequence, and redirect readers of the operator to it."""
        x, hx, params, has_biases, layers, dropout, train, both, batch_first = self.node.args
        count = STATES[self.node.target._schema.name]  # type: ignore[union-attr]
        states: Any = hx if isinstance(hx, list | tuple) else [hx]
        each, ways = len(params) // layers, 2 if both else 1  # type: ignore[arg-type,operator]
        last: list[list[Node]] = [[] for _ in range(count)]
        with self.graph.inserting_before(self.node):
            for layer in range(layers):  # type: ignore[arg-type]
                if layer and dropout and train:
                    x = self._call(torch.ops.aten.dropout.default, self.made[0], x, dropout, train)
                own = [self._call(torch.ops.aten.slice.Tensor, self.made[1 + i][:ways], state, 0, layer * ways,
                                  (layer + 1) * ways) for i, state in enumerate(states)]
                looks = (self.made[0], *(state[:ways] for state in self.made[1:]))
                run = self._call(self.node.target, looks, x, own if count > 1 else own[0],
                                 params[layer * each:(layer + 1) * each],  # type: ignore[index]
                                 has_biases, 1, 0.0, train, both, batch_first)
                x, *ends = [self._call(operator.getitem, own, run, i) for i, own in enumerate(looks)]
                for all_of, end in zip(last, ends, strict=True):
                    all_of.append(end)
            results = [x, *(self._call(torch.ops.aten.cat.default, self.made[1 + i], ends)
                            for i, ends in enumerate(last))]
        for item in list(self.node.users):
            item.replace_all_uses_with(results[item.args[1]])  # type: ignore[index,arg-type]
            self.graph.erase_node(item)
        self.graph.erase_node(self.node)

    def _call(self, target: Any, looks: Tensor | tuple[Tensor, ...], *args: Any) -> Node:
        found = self.graph.call_function(target, args)
        found.meta.update(self.node.meta, val=looks)
        return found
