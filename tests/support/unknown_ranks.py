"""What each rank of a test of unknown shapes runs: a small model on sequences whose length differs from micro-batch to
micro-batch, over each transport, beside one process.

``python -m tests.support.unknown_ranks`` under two ranks; each prints how many trainings were right.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import torch
from torch import Tensor, nn

from tests.support.builders import chain, loop, pipeline
from weft.runtime import Boundary, Plan, Ports, Training, plan_of
from weft.runtime.ranks.session import Session, SessionError, join
from weft.runtime.replay.run import run_training
from weft.runtime.transports.interface import TransportError
from weft.solver.baselines import baseline

RANKS, STEPS, MICRO_BATCHES, WIDTH, ROWS = 2, 3, 4, 6, 2
TRANSPORTS = ("gloo", "gloo:sockets", "shared", "emulated:1e-4,1e8")


class Halving(nn.Module):
    """Attends, and gives every other position of a sequence of more than two."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = x + torch.tanh(self.attend(x, x, x)[0])
        return y[:, ::2] if y.shape[1] > 2 else y  # not in one piece


def length(step: int, micro_batch: int) -> int:
    """Of the sequences of a micro-batch: up, down, up."""
    return (3, 11, 5, 40)[(micro_batch + step) % MICRO_BATCHES] + 2 * step


def modules() -> dict[int, nn.Module]:
    """All four stages."""
    torch.manual_seed(3)
    return {s: Halving().double() for s in range(4)}


def inputs(step: int, micro_batch: int) -> Tensor:
    drawn = torch.Generator().manual_seed(100 * step + micro_batch)
    return torch.randn(ROWS, length(step, micro_batch), WIDTH, generator=drawn, dtype=torch.float64)


def targets(step: int, micro_batch: int) -> Tensor:
    return torch.full((ROWS, WIDTH), 0.1 * (micro_batch + 1), dtype=torch.float64)


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output.mean(1), target)


def alone() -> list[dict[str, Tensor]]:
    """The gradients of each step in one process, by stage and name."""
    stages = modules()
    model = nn.ModuleDict({str(s): stage for s, stage in stages.items()})
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(STEPS):
        optimizer.zero_grad()
        for m in range(MICRO_BATCHES):
            x = inputs(step, m)
            for stage in stages.values():
                x = stage(x)
            (loss(x, targets(step, m)) / MICRO_BATCHES).backward()  # type: ignore[no-untyped-call]
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
    return found


def training(mine: dict[int, nn.Module], after: Callable[[int], None]) -> Training:
    boundary = Boundary((ROWS, None, WIDTH), torch.float64)
    parameters = [parameter for module in mine.values() for parameter in module.parameters()]
    return Training(mine, [boundary] * 3, inputs, targets, loss, torch.optim.SGD(parameters, lr=0.1), STEPS, after)


def train(plan: Plan, session: Session, wanted: list[dict[str, Tensor]]) -> int:
    """How many steps gave this rank's gradients."""
    mine = {s: module for s, module in modules().items() if s % RANKS == session.rank}
    right = 0

    def after(step: int) -> None:
        nonlocal right
        for s, module in mine.items():
            for name, parameter in module.named_parameters():
                torch.testing.assert_close(parameter.grad, wanted[step][f"{s}.{name}"], rtol=1e-12, atol=1e-14)
        right += 1

    run_training(plan, session, training(mine, after))
    return right


class Pair(nn.Module):
    """Gives two values, of which nobody uses the second."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Halving()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner(x)
        return y, 2 * y


class Ending(nn.Module):
    """Takes both, and uses the first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Halving()

    def forward(self, x: Tensor, unused: Tensor, target: Tensor) -> Tensor:
        return loss(self.inner(x), target)


def train_graph(session: Session) -> int:
    """How many steps gave this rank's gradients where a value of unknown shape has none."""
    torch.manual_seed(5)
    stages: list[nn.Module] = [Pair().double(), Ending().double()]
    whole = copy.deepcopy(stages)
    boundary, right = Boundary((ROWS, None, WIDTH), torch.float64), 0
    ports = {0: Ports(("input",), ("x", "unused")), 1: Ports(("x", "unused", "target"), ("loss",))}

    def after(step: int) -> None:
        nonlocal right
        for m in range(MICRO_BATCHES):
            (whole[1](*whole[0](inputs(step, m)), targets(step, m)) / MICRO_BATCHES).backward()
        wanted = dict(whole[session.rank].named_parameters())
        for name, parameter in stages[session.rank].named_parameters():
            torch.testing.assert_close(parameter.grad, wanted[name].grad, rtol=1e-12, atol=1e-14)
        right += 1

    run_training(plan_of(baseline("1f1b", pipeline(chain(RANKS)), MICRO_BATCHES)), session, Training(
        {session.rank: stages[session.rank]}, {"x": boundary, "unused": boundary},
        lambda step, m: {"input": inputs(step, m), "target": targets(step, m)}, after_backward=after, ports=ports))
    return right


def train_unshared(plan: Plan, session: Session, wanted: list[dict[str, Tensor]]) -> int:
    """How many steps gave this rank's gradients over gloo where rank 0 cannot map what rank 1 shares: all then go over
    sockets, and shared memory is refused on both ranks."""
    fault = mock.patch("weft.runtime.transports.one_host.shared_memory._map",
                       side_effect=TransportError("it cannot be opened"))
    with fault if session.rank == 0 else nullcontext():
        right = train(plan, replace(session, transport="gloo"), wanted)
        try:
            train(plan, replace(session, transport="shared"), wanted)
        except SessionError as error:
            return right if str(error) == "it cannot be opened" else 0
    return 0


def main() -> None:
    plan, wanted, right = plan_of(baseline("interleaved", pipeline(loop(2)), MICRO_BATCHES)), alone(), 0
    with join(900.0) as session:
        for transport in TRANSPORTS:
            right += train(plan, replace(session, transport=transport), wanted)
        # As where a process may not read another's memory.
        with mock.patch("weft.runtime.transports.one_host.shared_memory.can_read", lambda *place: False):
            right += train(plan, replace(session, transport="shared"), wanted)
        right += train_unshared(plan, session, wanted)
        right += sum(train_graph(replace(session, transport=transport)) for transport in ("gloo:sockets", "shared"))
    print(f"{right} steps")


if __name__ == "__main__":
    main()
