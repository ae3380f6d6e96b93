"""Training with experts on several ranks: sums of gradients, switches of phases between steps, and checkpoints.

Every rank has its own tokens, a replica of all other modules, and the experts of the phase's placement. A step equals
that of one process on the mean of the ranks' losses: gradients of replicas are averaged over all ranks; those of an
expert are summed over the ranks that have it and divided by the number of all ranks. An expert without tokens has a
zero gradient, so that the optimizer's step does not depend on the placement. Experts move between two steps, with their
optimizer state.

A checkpoint has every expert under its own name (:mod:`weft.runtime.checkpoint.model_checkpoint`), and records the
phase and the family; it is loaded in that phase.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.runtime.checkpoint.model_checkpoint import Trained, find, restore_parameters, restore_training, save
from weft.runtime.experts.gate import DensityMonitor
from weft.runtime.experts.layer import Expert, ExpertLayer, ExpertPlacement, experts_in
from weft.runtime.ranks.session import Session, SessionError


@dataclass(frozen=True)
class ExpertFamily:
    """``placements`` of the phases, in order; the density falls below ``borders[i]`` between phase i and i + 1."""

    placements: tuple[ExpertPlacement, ...]
    borders: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.borders) != len(self.placements) - 1:
            raise ValueError(f"{len(self.placements)} phases have {len(self.placements) - 1} borders between them, not "
                             f"{len(self.borders)}")
        kinds = {(placement.ranks, len(placement.holders)) for placement in self.placements}
        if len(kinds) > 1:
            raise ValueError("the phases' placements are of different numbers of experts or ranks: "
                             f"{sorted(kinds)}")
        too_many = [border for border in self.borders if border > len(self.placements[0].holders)]
        if too_many:
            raise ValueError(f"a border is {too_many[0]:g}, but a token uses at most the "
                             f"{len(self.placements[0].holders)} experts that there are")
        DensityMonitor(self.borders)

    @cached_property
    def digest(self) -> str:
        """Identifies the family."""
        facts = [[placement.ranks, placement.holders] for placement in self.placements]
        return hashlib.sha256(json.dumps([facts, self.borders]).encode()).hexdigest()[:16]


class ExpertTraining:
    """Trains ``module``, which has layers of experts in the first phase's placement, with ``optimizer`` over its
    parameters.

    ``balance``: the weight of the gates' auxiliary losses. ``margin``, ``share``: see
    :class:`~weft.runtime.experts.gate.DensityMonitor`. All ranks call all methods together. Raises ``ValueError`` if
    the module has no layer of experts, or one with another placement.
    """

    def __init__(self, session: Session, module: nn.Module, optimizer: Optimizer, family: ExpertFamily, *,
                 balance: float = 0.01, margin: float = 0.05, share: float = 0.1) -> None:
        self.session, self.module, self.optimizer, self.family = session, module, optimizer, family
        self.balance = balance
        self.layers = experts_in(module)
        if not self.layers:
            raise ValueError("the module has no ExpertLayer: there is nothing to place")
        for name, layer in self.layers.items():
            if layer.placement != family.placements[0]:
                raise ValueError(f"{name} is placed otherwise than in the family's first phase")
        if family.placements[0].ranks != session.world:
            raise ValueError(f"the family is of {family.placements[0].ranks} ranks, now there are {session.world}")
        session.add_groups({ranks for placement in family.placements for ranks in placement.holders
                            if 1 < len(ranks) < session.world})
        self.monitor = DensityMonitor(family.borders, margin=margin, share=share)
        self.phase = self.done = 0
        self.switches: list[tuple[int, int, int]] = []  # step that it precedes, new phase, bytes received here

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, loss_of: Callable[[nn.Module, int], Tensor]) -> float:
        """Run one step; ``loss_of(module, step)`` is this rank's loss. Returns the mean of the ranks' losses without
        auxiliary losses. Switches the phase afterwards if the density requires it."""
        for layer in self.layers.values():
            layer.gate.step = self.done
        self.module.train()
        loss = loss_of(self.module, self.done)
        extra = sum((layer.loss for layer in self.layers.values()), start=loss.new_zeros(()))
        (loss + self.balance * extra).backward()  # type: ignore[no-untyped-call]
        self._sum_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()
        densities = [layer.density for layer in self.layers.values()]
        means = torch.tensor([float(loss.detach()), sum(densities) / len(densities)], dtype=torch.float64)
        dist.all_reduce(means)
        mean, density = (means / self.session.world).tolist()
        self.done += 1
        if self.monitor.update(density) != self.phase:
            self.switch(self.monitor.phase)
        return float(mean)

    def switch(self, phase: int) -> None:
        """Move experts to their ranks in ``phase``."""
        received = sum(move_experts(layer, self.optimizer, self.family.placements[phase])
                       for layer in self.layers.values())
        self.phase = self.monitor.phase = phase
        self.switches.append((self.done, phase, received))

    def _sum_gradients(self) -> None:
        placement, world = self.family.placements[self.phase], self.session.world
        inside = {id(p): int(expert) for layer in self.layers.values() for expert, part in layer.experts.items()
                  for p in part.parameters()}
        for parameter in self.module.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for _, parameter in sorted(self.module.named_parameters(), key=lambda entry: entry[0]):
            if parameter.grad is None:
                continue
            expert = inside.get(id(parameter))
            ranks: Sequence[int] = range(world) if expert is None else placement.holders[expert]
            if len(ranks) > 1:
                dist.all_reduce(parameter.grad, group=None if len(ranks) == world else self.session.group(ranks))
            parameter.grad /= world

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Save the training state; returns the checkpoint's folder."""
        saved = {"family": self.family.digest, "number": self.phase, "density": self.monitor.density}
        firsts = {str(expert) for expert, ranks in enumerate(self.family.placements[self.phase].holders)
                  if ranks[0] == self.session.rank}
        model = {name: p.detach() for name, p in self.module.named_parameters()
                 if (expert := self._expert_in(name)) in firsts or (expert is None and self.session.rank == 0)}
        return save(self.session, Path(folder), self.done, model, Trained(self.optimizer, self._names),
                    about={"phase": saved})

    def resume(self, folder: str | os.PathLike[str]) -> int:
        """Resume from the newest checkpoint in ``folder``, in its phase; returns its number of steps (0 without one).

        Raises :class:`~weft.runtime.ranks.session.SessionError` if it is damaged or of another family or model.
        """
        found = find(self.session, Path(folder))
        if found is None:
            return 0
        saved = found.phase or {}
        if saved.get("family") != self.family.digest:
            raise SessionError(f"{found.path}: the checkpoint is of another family of plans "
                               f"({saved.get('family', 'none')}, not {self.family.digest}); go on with the placements "
                               "and borders that it was made with")
        self.phase = self.monitor.phase = int(saved["number"])
        self.monitor.density = saved["density"]
        for layer in self.layers.values():
            place_anew(layer, self.optimizer, self.family.placements[self.phase])
        restore_parameters(found, self.module.named_parameters())
        restore_training(self.session, found, Trained(self.optimizer, self._names))
        self.done = found.step
        return found.step

    @property
    def _names(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self.module.named_parameters()}

    def _expert_in(self, name: str) -> str | None:
        """The number of the expert with the parameter ``name``."""
        for layer in self.layers:
            rest = name.removeprefix(f"{layer}.experts." if layer else "experts.")
            if rest != name:
                return rest.partition(".")[0]
        return None


def moved(before: ExpertPlacement, after: ExpertPlacement) -> Iterator[tuple[int, int, int]]:
    """The moves, each ``(expert, source, target)``. Replicas alternate as sources."""
    for expert, (had, have) in enumerate(zip(before.holders, after.holders, strict=True)):
        for turn, target in enumerate(rank for rank in have if rank not in had):
            yield expert, had[turn % len(had)], target


def move_experts(layer: ExpertLayer, optimizer: Optimizer, after: ExpertPlacement) -> int:
    """Move the experts of ``layer`` to their ranks in ``after``; returns the bytes that this rank received. All ranks
    call it together, between a step and the next forward: gradients do not move.

    Raises ``ValueError`` for a placement of other experts or ranks.
    """
    before = layer.placement
    if (after.ranks, len(after.holders)) != (before.ranks, len(before.holders)):
        raise ValueError(f"the experts are {len(before.holders)} on {before.ranks} ranks, they cannot become "
                         f"{len(after.holders)} on {after.ranks}")
    leaving = {expert: list(layer.experts[str(expert)].parameters()) for expert in layer.here}
    states = {id(parameter): optimizer.state.get(parameter, {}) for named in leaving.values() for parameter in named}
    like = optimizer.state.get(layer.gate.logits.weight, {})
    place_anew(layer, optimizer, after)
    taken = 0
    for expert, source, target in moved(before, after):
        if source == layer.rank:
            for parameter in leaving[expert]:
                for tensor in _tensors(parameter, states[id(parameter)]):
                    dist.send(tensor.detach().contiguous(), _global(layer, target), group=layer.group)
        elif target == layer.rank:
            for parameter in layer.experts[str(expert)].parameters():
                state = {key: torch.empty_like(parameter.data) if value.dim() else torch.empty_like(value)
                         for key, value in like.items() if isinstance(value, Tensor)}
                if state:
                    optimizer.state[parameter] = state
                for tensor in _tensors(parameter, state):
                    found = torch.empty_like(tensor)
                    dist.recv(found, _global(layer, source), group=layer.group)
                    tensor.data.copy_(found)
                    taken += found.nbytes
    return taken


def place_anew(layer: ExpertLayer, optimizer: Optimizer, after: ExpertPlacement) -> None:
    """Change the experts of ``layer`` to those of this rank in ``after``: remaining experts keep their parameters and
    state, new ones are uninitialised."""
    device = layer.gate.logits.weight.device
    kept: dict[str, nn.Module] = {}
    comes: list[nn.Parameter] = []
    for expert in after.on(layer.rank):
        name = str(expert)
        if name in layer.experts:
            kept[name] = layer.experts[name]
            continue
        with torch.random.fork_rng(devices=[]):  # otherwise this rank's generator would advance alone
            kept[name] = Expert(layer.hidden, layer.inner, layer.dtype).to(device)
        comes += kept[name].parameters()
    goes = {id(p) for name, expert in layer.experts.items() if name not in kept for p in expert.parameters()}
    own = {id(p) for expert in layer.experts.values() for p in expert.parameters()}
    for parameter in [p for p in optimizer.state if id(p) in goes]:
        del optimizer.state[parameter]
    groups = optimizer.param_groups
    home = next((group for group in groups if any(id(p) in own for p in group["params"])), groups[0])
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in goes]
    home["params"] += comes
    layer.experts, layer.placement = nn.ModuleDict(kept), after


def _tensors(parameter: nn.Parameter, state: dict[str, Tensor]) -> list[Tensor]:
    """A parameter and its optimizer state, in one order on all ranks."""
    return [parameter, *(state[key] for key in sorted(state) if isinstance(state[key], Tensor))]


def _global(layer: ExpertLayer, rank: int) -> int:
    return rank if layer.group is None else dist.get_global_rank(layer.group, rank)
