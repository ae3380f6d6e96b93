"""How long each operator of a captured model takes on this device: measured, one after another, on real numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Interpreter, Node

from weft.app.pipeline.planning.times_alone import seconds_alone
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.faked import is_on_meta
from weft.runtime.captured.untouched import untouched
from weft.runtime.measure.measure import single_threaded

__all__ = ["operator_seconds", "operator_weights", "saved_bytes"]

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
    forwards, and the backward as twice that. Of a model on the meta device, each on numbers of its own."""
    if is_on_meta(captured.model):
        device = next((leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)), torch.device("cpu"))
        return [BOTH_WAYS * seconds for seconds in seconds_alone(captured, device, repeats)]
    timed = _Timed(captured)
    with untouched(captured.model), single_threaded(), torch.no_grad():
        for _ in range(repeats + 1):
            timed.run(*leaves, enable_io_processing=False)
    return [BOTH_WAYS * timed.seconds.get(node, 0.0) for node in captured.calls]


class _Saving(Interpreter):
    """Runs on tensors without memory, and says of each operator how much it keeps for its backward."""

    def __init__(self, captured: Captured) -> None:
        super().__init__(captured.graph_module)
        self.bytes: dict[Node, float] = {}
        self.seen: dict[int, Any] = {}  # by address: what is kept, so that no address is used again
        self.own = {tensor.untyped_storage()._cdata
                    for tensor in (*captured.model.parameters(), *captured.model.buffers())}

    def run_node(self, n: Node) -> Any:
        def keep(tensor: Tensor) -> Tensor:
            place = tensor.untyped_storage()
            if place._cdata not in self.own and place._cdata not in self.seen:
                self.seen[place._cdata] = place
                self.bytes[n] = self.bytes.get(n, 0.0) + place.nbytes()
            return tensor.detach()

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            return super().run_node(n)


def saved_bytes(captured: Captured, leaves: Sequence[Any]) -> list[float]:
    """Bytes that each of ``captured.calls`` keeps for its backward, by shapes alone; what an operator before it has
    kept already is that one's."""
    saving = _Saving(captured)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, untouched(captured.model):
        saving.run(*(mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves),
                   enable_io_processing=False)
    return [saving.bytes.get(node, 0.0) for node in captured.calls]


def operator_weights(captured: Captured) -> list[float]:
    """Bytes of the parameters that each of ``captured.calls`` is the first to read."""
    seen: set[int] = set()
    found = []
    for node in captured.calls:
        own = {id(value): value for arg in node.all_input_nodes if arg.op == "get_attr"
               and isinstance(value := captured.attribute(arg), nn.Parameter) and id(value) not in seen}
        seen |= own.keys()
        found.append(float(sum(p.numel() * p.element_size() for p in own.values())))
    return found
