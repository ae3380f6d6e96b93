"""Integer tensors that a model computes from its example, for stages that are measured alone.

Floating-point inputs of a stage may have any values while it is measured. Integers may not: they are indices, orders,
or counts that must add up, such as the tokens per expert, and other values are errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from weft.runtime.captured.captured import Captured
from weft.runtime.captured.metadata_reads import preserved_state
from weft.runtime.captured.purity import Purity


class _Counted(Interpreter):
    def __init__(self, captured: Captured) -> None:
        super().__init__(captured.graph_module)
        self.found: dict[str, Tensor] = {}
        self.free = Purity(captured).free

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function" and n not in self.free and isinstance(result, Tensor) and not (
                result.is_floating_point() or result.is_complex()):
            self.found[n.name] = result.detach().clone()
        return result


def whole_numbers(captured: Captured, leaves: Sequence[Any]) -> dict[str, Tensor]:
    """By the operator's name, the integer and boolean tensors that ``captured`` computes from ``leaves``, except those
    that every stage computes itself."""
    counted = _Counted(captured)
    with preserved_state(captured.model), torch.no_grad():
        counted.run(*leaves, enable_io_processing=False)
    return counted.found
