"""A recurrent operator of several layers as one operator a layer, so that a cut may lie between them."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

__all__ = ["in_layers"]

#: The operators, as ``operator(input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first)``,
#: and how many states each has (those of one are no list). Packed sequences come with another schema.
STATES = {"aten::lstm": 2, "aten::gru": 1, "aten::rnn_tanh": 1, "aten::rnn_relu": 1}


def in_layers(graph_module: GraphModule) -> None:
    """Put a row of operators in the place of each of several layers, in place."""
    for node in list(graph_module.graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.name in STATES and schema.overload_name == "input" and node.args[4] > 1:
            _Row(node).put()
    graph_module.recompile()


class _Row:
    def __init__(self, node: Node) -> None:
        self.node, self.graph, self.made = node, node.graph, node.meta["val"]

    def put(self) -> None:
        """Make the row, and let those who read the operator read it."""
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
