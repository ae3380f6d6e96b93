"""What a model computes under ``torch.no_grad`` as operators of its graph like any others.

``torch.export`` puts such a part into a graph of its own, behind one call, where nobody sees what it writes to, what it
draws, and whose memory it gives. Here its operators stand in the graph again, and read what they are given detached.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

__all__ = ["unwrapped"]

WRAPPER = "wrap_with_set_grad_enabled"


def unwrapped(graph_module: GraphModule) -> None:
    """Put the operators of all parts without gradients in the place of the calls of these, in place."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not _is_wrapper(node):
            continue
        enabled, part, *given = node.args
        body = graph_module.get_submodule(str(part.target)) if isinstance(part, Node) else None
        if not isinstance(body, GraphModule) or any(map(_is_wrapper, body.graph.nodes)) or node.kwargs:
            continue  # gradients are recorded again inside of it
        _unwrap(node, body, given, enabled is False)
        if not part.users:
            graph.erase_node(part)
    graph_module.recompile()


def _is_wrapper(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == WRAPPER


def _unwrap(call: Node, body: GraphModule, given: list[object], detached: bool) -> None:
    graph, env, outer = call.graph, dict[Node, Node](), dict[Node, Node]()
    with graph.inserting_before(call):
        for entered, value in zip(body.graph.find_nodes(op="placeholder"), given, strict=True):
            assert isinstance(value, Node)
            outer[entered] = env[entered] = value
            looks = value.meta.get("val", entered.meta.get("val"))
            if detached and isinstance(looks, Tensor) and (looks.is_floating_point() or looks.is_complex()):
                env[entered] = graph.call_function(torch.ops.aten.detach.default, (value,))
                env[entered].meta.update(call.meta, val=looks.detach())
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
    # What is written in place and given on is what was given: it has the gradient that it had.
    found = [map_arg(leaf, lambda node: outer.get(_written(node), env[node])) for leaf in results]
    for item in list(call.users):
        item.replace_all_uses_with(found[item.args[1]])  # type: ignore[index]
        graph.erase_node(item)
    graph.erase_node(call)


def _written(node: Node) -> Node:
    """The tensor that operators in place give on, where ``node`` is what one gives."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
        schema = getattr(node.target, "_schema", None)
        info = schema.arguments[0].alias_info if schema is not None and schema.arguments else None
        if info is None or not info.is_write:
            break
        node = node.args[0]
    return node
