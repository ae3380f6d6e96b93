"""Training and inference of a network, chunk by chunk in the order of a plan, within a memory budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.execute.executor import Executor
from weft.runtime.graph_network.streaming import ChunkWorker
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.timeline import Measured
from weft.runtime.ranks.session import Session

#: Bytes of Adam's step counter for each parameter, with slack.
_COUNTER = 64


def static_bytes(parameters: Sequence[Mapping[str, Tensor]]) -> int:
    """A device's resident bytes in training: parameters, gradients, and Adam's two moments of each."""
    return sum(4 * value.nbytes + _COUNTER for own in parameters for value in own.values())


class Streamed:
    """Runs ``worker``, pass after pass, on one rank of ``plan``."""

    def __init__(self, plan: Plan, session: Session, worker: ChunkWorker) -> None:
        self.network, self.parameters, self.account = worker.network, worker.parameters, worker.account
        self.session, self.worker = session, worker
        self.executor = Executor(plan, session, worker)
        if session.world > 1:
            worker.group = session.group(range(session.world))
        self.measured: list[Measured] = []
        self.passes = 0

    @property
    def outputs(self) -> Tensor:
        """The outputs of the last pass, one row per vertex; those of other ranks' vertices are valid after
        :meth:`share_outputs`."""
        return self.worker.host.of(len(self.network.layers) - 1, "outputs")[0]

    def run(self, *, training: bool = True) -> float:
        """Run one pass; returns the loss. The parameters' gradients are summed over ranks. ``training``: with dropout,
        whose mask differs between passes."""
        worker = self.worker
        for value in worker.values():
            assert value.grad is not None
            value.grad.zero_()
        worker.loss.zero_()
        worker.dropout = self.network.dropout if training else 0.0
        worker.seeds = self.seeds(self.passes)
        for number in range(len(self.network.layers)):
            for array in worker.host.of(number, "g_target"):
                array.zero_()
        self.measured = self.executor.run()
        self.passes += 1
        if self.session.world > 1:
            dist.all_reduce(worker.loss)
            for value in worker.values():
                dist.all_reduce(value.grad)
        return float(worker.loss)

    def share_outputs(self) -> None:
        """Broadcast the outputs of all ranks to all ranks, which call it together."""
        if self.session.world > 1:
            self.worker.share_outputs()

    def seeds(self, number: int) -> list[int]:
        """The seeds of the layers' dropout in pass ``number``."""
        return [number * len(self.network.layers) + layer for layer in range(len(self.network.layers))]

    def adam(self, rate: float = 0.01, decay: Sequence[float] = ()) -> torch.optim.Adam:
        """Adam for the parameters, with its state counted in the budget; ``decay``: weight decay by layer."""
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
        """Release the buffers."""
        self.executor.close()
