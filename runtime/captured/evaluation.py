"""A stage's graph as it is in evaluation: without dropout, with the running statistics as they are.

A captured graph is that of one mode of the model: what a layer does with ``self.training`` has become a constant
argument of an operator. Here these arguments are changed, so that training and evaluation run stages cut at the same
places, on the same parameters.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.fx import GraphModule, Node

from weft.runtime.captured.captured import CaptureError

__all__ = ["evaluated"]

#: Arguments that say whether a layer trains, by name, and what they are when it does not.
FLAGS: dict[str, float | bool] = {"train": False, "training": False, "dropout_p": 0.0, "use_input_stats": False}


def evaluated(stage: nn.Module) -> nn.Module:
    """``stage``, changed in place: a graph as said, any other module by ``eval()``.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` where a graph would still
    write into a buffer."""
    if not isinstance(stage, GraphModule):
        return stage.eval()
    for node in list(stage.graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        for place, argument in enumerate(schema.arguments):
            if argument.name in FLAGS:
                _set(node, place, argument.name)
        if any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments):
            _refuse_or_drop(stage, node)
    stage.recompile()
    return stage


def _set(node: Node, place: int, name: str) -> None:
    if place < len(node.args):
        node.update_arg(place, FLAGS[name])
    elif name in node.kwargs:
        node.update_kwarg(name, FLAGS[name])


def _refuse_or_drop(stage: nn.Module, node: Node) -> None:
    """Take out the counting of batches, which nothing reads; refuse all else that writes into what stays."""
    target = node.args[0]
    if not isinstance(target, Node) or target.op != "get_attr":
        return
    value: object = stage
    for step in str(target.target).split("."):
        value = getattr(value, step)
    if isinstance(value, Tensor) and not value.dim() and not node.users:
        node.graph.erase_node(node)
        return
    raise CaptureError(f"the operator {node.name} writes into {target.target!r} in evaluation too: evaluate the plain "
                       "model, with the pipeline's state dict")
