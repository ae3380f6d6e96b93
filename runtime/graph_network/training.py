"""A network that is trained, or only run, chunk by chunk in the order of a plan, within a budget of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.execute.executor import Executor
from weft.runtime.graph_network.account import Account
from weft.runtime.graph_network.held import StepLike
from weft.runtime.graph_network.host import ChunkedEdges, GridLike, Host
from weft.runtime.graph_network.kernels import widths
from weft.runtime.graph_network.layers import GraphNetwork
from weft.runtime.graph_network.streaming import ChunkWorker
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.timeline import Measured
from weft.runtime.ranks.session import Session

#: What Adam's counter of steps takes for each parameter, with room.
_COUNTER = 64


def static_bytes(parameters: Sequence[Mapping[str, Tensor]]) -> int:
    """What a device holds all the time in training: parameters, gradients, and Adam's two moments of each."""
    return sum(4 * value.nbytes + _COUNTER for own in parameters for value in own.values())


class Streamed:
    """``network`` with ``parameters`` on one rank of ``plan``, whose blocks are ``steps``.

    ``grids``: without and with self-loops, as the layers need them. ``features``: a row a vertex, in memory or mapped;
    ``labels``: a class a vertex, -1 where the loss takes none; None: outputs alone are wanted, and the steps have no
    backward. ``budget``: bytes that the device's tensors may hold, parameters, gradients and Adam's state among them.
    ``owner``, ``selected``, ``fused``, ``seconds``: see :class:`~weft.runtime.graph_network.streaming.ChunkWorker`.

    Raises :class:`~weft.runtime.graph_network.account.OverBudget` where the parameters alone do not fit.
    """

    def __init__(self, network: GraphNetwork, parameters: Sequence[Mapping[str, Tensor]], plan: Plan, session: Session,
                 steps: Mapping[str, StepLike], grids: Mapping[bool, GridLike], features: Tensor,
                 labels: Tensor | None, owner: Sequence[int], *, selected: Callable[[int, int, int], bool],
                 fused: bool = False, budget: int | None = None,
                 seconds: Callable[[StepLike], float] = lambda step: 0.0) -> None:
        self.network, self.parameters, self.session = network, parameters, session
        first = next(iter(parameters[0].values()))
        self.account, pinned = Account(budget), session.device.type == "cuda"
        for value in self._values():
            value.grad = torch.zeros_like(value)
            self.account.hold(value)
            self.account.hold(value.grad)
        inputs, found, outputs = network.inputs, [], []
        for layer, own in zip(network.layers, parameters, strict=True):
            on_host = {name: value.detach().cpu() for name, value in own.items()}
            found.append(widths(layer, on_host, inputs, first.dtype))
            one = torch.zeros((1, inputs), dtype=first.dtype)
            inputs = layer.apply_vertex(on_host, one, one.new_zeros(1, found[-1].gathered), one.new_ones(1, 1)).shape[1]
            outputs.append(inputs)
        host = Host(network, found, outputs, features, labels,
                    {loops: ChunkedEdges(grid, pinned) for loops, grid in grids.items()}, first.dtype, pinned)
        self.worker = ChunkWorker(network, parameters, found, host, steps, owner, self.account, selected=selected,
                                  fused=fused, device=session.device, dtype=first.dtype, seconds=seconds)
        self.worker.weight = 1.0 if labels is None else 1 / max(1, int((labels >= 0).sum()))
        self.executor = Executor(plan, session, self.worker)
        if session.world > 1:
            self.worker.group = session.group(range(session.world))
        self.measured: list[Measured] = []
        self.passes = 0

    @property
    def outputs(self) -> Tensor:
        """Of the last layer at every vertex, in the last pass; of other ranks' vertices after :meth:`share_outputs`."""
        return self.worker.host.of("outputs", len(self.network.layers) - 1)[0]

    def run(self, *, training: bool = True) -> float:
        """One pass: the loss, with gradients in the parameters, summed over ranks. ``training``: with dropout, another
        one in each pass."""
        for value in self._values():
            assert value.grad is not None
            value.grad.zero_()
        worker = self.worker
        worker.loss.zero_()
        worker.dropout = self.network.dropout if training else 0.0
        worker.seeds = self.seeds(self.passes)
        for number in range(len(self.network.layers)):
            for array in worker.host.of("g_target", number):
                array.zero_()
        self.measured = self.executor.run()
        self.passes += 1
        if self.session.world > 1:
            dist.all_reduce(worker.loss)
            for value in self._values():
                dist.all_reduce(value.grad)
        return float(worker.loss)

    def share_outputs(self) -> None:
        """Let every rank have the outputs of all; every rank must call it."""
        if self.session.world > 1:
            self.worker.share_outputs()

    def seeds(self, number: int) -> list[int]:
        """Those of the layers' dropout in pass ``number``."""
        return [number * len(self.network.layers) + layer for layer in range(len(self.network.layers))]

    def adam(self, rate: float = 0.01, decay: Sequence[float] = ()) -> torch.optim.Adam:
        """An optimizer of the parameters, whose state is counted; ``decay``: of the weights, by layer."""
        groups = [{"params": list(own.values()), "weight_decay": decay[number] if number < len(decay) else 0.0}
                  for number, own in enumerate(self.parameters)]
        made = torch.optim.Adam(groups, lr=rate, foreach=False)
        def hold(optimizer: torch.optim.Optimizer, *_: object) -> None:
            for state in optimizer.state.values():
                for part in filter(torch.is_tensor, state.values()):
                    self.account.hold(part)
        made.register_step_post_hook(hold)
        return made

    def close(self) -> None:
        """Give the buffers back."""
        self.executor.close()

    def _values(self) -> list[Tensor]:
        return [value for own in self.parameters for value in own.values()]
