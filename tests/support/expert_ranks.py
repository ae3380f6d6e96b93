"""What ranks of the tests of experts run: ``python -m tests.support.expert_ranks FOLDER PART`` under ranks; each writes
what the part found to ``FOLDER/<part>-<rank>.pt``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.runtime.experts.gate import Gate, GateTemperature, Gating
from weft.runtime.experts.layer import ExpertLayer, ExpertPlacement
from weft.runtime.experts.training import ExpertFamily, ExpertTraining
from weft.runtime.ranks.session import Session, SessionError, join

HIDDEN, INNER, EXPERTS, TOKENS, STEPS = 6, 10, 8, 12, 14
WIDE = torch.float64


class FixedGate(Gate):
    """A gate whose choices are given: a share of the experts, none but one, or all but one."""

    masked: Tensor

    def forward(self, x: Tensor) -> Gating:
        weights = torch.softmax(self.logits(x), -1) * self.masked
        return Gating(weights, self.masked, weights.sum() * 0.1)


def masks(rank: int) -> dict[str, Tensor]:
    """Choices of a rank's tokens, by what is special about them."""
    draw = torch.Generator().manual_seed(100 + rank)
    some = torch.rand(TOKENS, EXPERTS, generator=draw) < 0.4
    some[:, 3] = False
    some[torch.arange(TOKENS), torch.arange(TOKENS) % 3] = True
    one = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool)
    one[:, 5] = True
    first = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool)
    first[:, rank] = True
    return {"all": torch.ones(TOKENS, EXPERTS, dtype=torch.bool), "expert 3 without tokens": some, "all on one": one,
            "one each": first}


def placements(ranks: int) -> dict[str, ExpertPlacement]:
    """Ways to place experts."""
    holders: list[tuple[int, ...]] = [(0,) if expert in (1, 2) else (expert % ranks,) for expert in range(EXPERTS)]
    holders[0], holders[5] = tuple(range(ranks)), (0, ranks - 1)
    return {"even": ExpertPlacement.even(EXPERTS, ranks), "replicated": ExpertPlacement.replicated(EXPERTS, ranks),
            "mixed": ExpertPlacement(ranks, tuple(holders)),
            "one rank": ExpertPlacement(ranks, ((ranks - 1,),) * EXPERTS)}


def given(rank: int) -> Tensor:
    """A rank's tokens."""
    return torch.randn(TOKENS, HIDDEN, dtype=WIDE, generator=torch.Generator().manual_seed(rank))


def layer_of(placement: ExpertPlacement, rank: int, gate: Gate | None = None) -> ExpertLayer:
    """A layer with the same weights on any rank."""
    torch.manual_seed(7)
    gate = gate or FixedGate(HIDDEN, EXPERTS, dtype=WIDE)
    return ExpertLayer(gate, HIDDEN, INNER, placement, rank, dtype=WIDE)


def layers(session: Session, folder: Path) -> dict[str, Any]:
    """Outputs and gradients of each choice under each placement."""
    found: dict[str, Any] = {}
    for title, placement in placements(session.world).items():
        for name, mask in masks(session.rank).items():
            layer = layer_of(placement, session.rank)
            layer.gate.masked = mask
            x = given(session.rank).requires_grad_()
            y = layer(x)
            (y.sin().sum() + layer.loss).backward()
            found[f"{title}: {name}"] = {
                "y": y.detach(), "x": x.grad, "density": layer.density,
                "weights": {n: p.grad for n, p in layer.named_parameters()}}
    return found


class Model(nn.Module):
    """Two layers of experts on residuals, with a head."""

    def __init__(self, placement: ExpertPlacement, rank: int, hard_at: int | None = STEPS - 3) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.enter = nn.Linear(HIDDEN, HIDDEN, dtype=WIDE)
        self.layers = nn.ModuleList(ExpertLayer(
            Gate(HIDDEN, EXPERTS, "dts", temperature=GateTemperature(2.0, 0.05, STEPS - 4), hard_at=hard_at,
                 dtype=WIDE),
            HIDDEN, INNER, placement, rank, dtype=WIDE) for _ in range(2))
        self.head = nn.Linear(HIDDEN, 3, dtype=WIDE)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = x + layer(x)
        found: Tensor = self.head(x)
        return found


def family(ranks: int) -> ExpertFamily:
    """Replicated while nearly all experts are used, then mixed, then one rank each."""
    kinds = placements(ranks)
    return ExpertFamily((kinds["replicated"], kinds["mixed"], kinds["even"]), (5.0, 2.0))


def trained(session: Session, own: ExpertFamily, optimizer: Callable[..., torch.optim.Optimizer]) -> ExpertTraining:
    model = Model(own.placements[0], session.rank)
    torch.manual_seed(50 + session.rank)
    return ExpertTraining(session, model, optimizer(model.parameters()), own, share=0.7)


def run(training: ExpertTraining, steps: int, folder: Path | None = None) -> list[float]:
    """Losses up to step ``steps``, saved after each into ``folder``."""
    def loss_of(model: nn.Module, step: int) -> Tensor:
        draw = torch.Generator().manual_seed(1000 * step + training.session.rank)
        x = torch.randn(TOKENS, HIDDEN, dtype=WIDE, generator=draw)
        loss: Tensor = nn.functional.cross_entropy(model(x), (x[:, :3] * x[:, 3:]).argmax(-1))
        return loss

    losses = []
    while training.done < steps:
        losses.append(training.step(loss_of))
        if folder is not None:
            training.save(folder)
    return losses


#: Optimizers by name.
RULES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.AdamW(p, lr=0.02), "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)}


def switches(session: Session, folder: Path, rule: str = "adam") -> dict[str, Any]:
    """Losses with two switches, and without any."""
    whole = trained(session, family(session.world), RULES[rule])
    found: dict[str, Any] = {f"{rule} switched": run(whole, STEPS), f"{rule} switches": whole.switches}
    for kind in ("replicated", "even"):
        fixed = ExpertFamily((placements(session.world)[kind],), ())
        found[f"{rule} {kind}"] = run(trained(session, fixed, RULES[rule]), STEPS)
    return found


def phases(session: Session, folder: Path) -> dict[str, Any]:
    """The same by each rule, and losses of a training that ends in each phase and is taken up."""
    found = switches(session, folder) | switches(session, folder, "sgd")
    own = family(session.world)
    ends = sorted({2, *(step for step, _, _ in found["sgd switches"]), STEPS - 1})
    for end in ends:
        path = folder / f"ended-{end}"
        before = run(trained(session, own, torch.optim.AdamW), end, path)
        again = trained(session, own, torch.optim.AdamW)
        again.optimizer.param_groups[0]["lr"] = 0.5  # the saved one counts
        assert again.resume(path) == end
        found[f"resumed at {end}"] = (again.phase, before + run(again, STEPS))
    found["not ended"] = run(trained(session, own, torch.optim.AdamW), STEPS)
    other = ExpertFamily(own.placements, (5.0, 1.5))
    try:
        trained(session, other, torch.optim.AdamW).resume(folder / f"ended-{ends[0]}")
    except SessionError as error:
        found["another family"] = str(error)
    return found


def killed(session: Session, folder: Path) -> dict[str, Any]:
    """All ranks are killed in the second phase, a step behind the last checkpoint."""
    training = trained(session, family(session.world), torch.optim.AdamW)
    losses = run(training, training.done + 1, folder / "killed")
    while training.phase < 1 or training.switches[-1][0] == training.done:
        losses += run(training, training.done + 1, folder / "killed")
    torch.save(losses, folder / f"before-{session.rank}.pt")
    session.barrier("to have written losses")
    run(training, training.done + 1)
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def taken_up(session: Session, folder: Path) -> dict[str, Any]:
    """The killed training in new processes, and one that was not killed."""
    again = trained(session, family(session.world), torch.optim.AdamW)
    done, phase = again.resume(folder / "killed"), again.phase
    return {"done": done, "phase": phase, "losses": run(again, STEPS),
            "not killed": run(trained(session, family(session.world), torch.optim.AdamW), STEPS)}


def main(folder: Path, part: str) -> None:
    with join(900.0) as session:
        parts = {"layers": layers, "switches": switches, "phases": phases, "killed": killed, "taken_up": taken_up}
        torch.save(parts[part](session, folder), folder / f"{part}-{session.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
