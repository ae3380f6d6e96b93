"""What of a captured model learns, and how much work the rest saves.

What depends on no trained parameter (a frozen encoder, embeddings that are kept as they are) runs forward only, and no
gradient is sent there; what is frozen behind that has no weight gradients.
"""

from __future__ import annotations

from torch import nn
from torch.fx import Node

from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.purity import Purity

__all__ = ["first_weight", "work_of"]


def work_of(captured: Captured, purity: Purity) -> list[float]:
    """What part of a pass forward and one back each of ``captured.calls`` has, as a share of that of a product with a
    trained weight: the forward, the input's gradient and the weight's take about as long."""
    known = purity.learned

    def is_frozen(node: Node) -> bool:
        return node.op == "get_attr" and isinstance(captured.attribute(node), nn.Parameter) and node not in known

    return [1 / 3 if node not in known else 2 / 3 if any(map(is_frozen, node.all_input_nodes)) else 1.0
            for node in captured.calls]


def first_weight(captured: Captured) -> int:
    """The number of the first operator that reads a parameter: what is before it is of its stage.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a model that trains none.
    """
    def reads(node: Node, trained: bool) -> bool:
        return any(arg.op == "get_attr" and isinstance(value := captured.attribute(arg), nn.Parameter)
                   and (value.requires_grad or not trained) for arg in node.all_input_nodes)

    if not any(reads(node, trained=True) for node in captured.calls):
        raise CaptureError(f"{type(captured.model).__name__} has no trained parameter that an operator reads: there is "
                           "nothing to train")
    return next(i for i, node in enumerate(captured.calls) if reads(node, trained=False))
