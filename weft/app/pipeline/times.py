"""How long each operator of a captured model takes on this device: measured, one after another, on real numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Interpreter, Node

from weft.runtime.captured.captured import Captured
from weft.runtime.captured.untouched import untouched
from weft.runtime.measure.measure import single_threaded

__all__ = ["operator_seconds"]

#: A pass back takes about twice as long as the one forward: two products in place of one.
BOTH_WAYS = 3.0


class _Timed(Interpreter):
    def __init__(self, captured: Captured) -> None:
        super().__init__(captured.graph_module)
        self.seconds: dict[Node, float] = {}
        self.on_gpu = any(tensor.is_cuda for tensor in captured.model.state_dict().values())

    def run_node(self, n: Node) -> Any:
        begun = time.perf_counter()
        result = super().run_node(n)
        if self.on_gpu:
            torch.cuda.synchronize()
        self.seconds[n] = min(self.seconds.get(n, float("inf")), time.perf_counter() - begun)
        return result


def operator_seconds(captured: Captured, leaves: Sequence[Any], repeats: int = 3) -> list[float]:
    """Seconds of each of ``captured.calls`` on ``leaves``, the inputs of one micro-batch: the shortest of ``repeats``
    forwards, and the backward as twice that."""
    timed = _Timed(captured)
    with untouched(captured.model), single_threaded(), torch.no_grad():
        for _ in range(repeats + 1):
            timed.run(*leaves, enable_io_processing=False)
    return [BOTH_WAYS * timed.seconds.get(node, 0.0) for node in captured.calls]
