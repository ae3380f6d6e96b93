"""A :class:`~tests.support.training_graphs.Case` trained: a rank's part of it by a plan, and all of it in one process.

:func:`training` hands a rank its part, with the stages on several ranks cut into shares
(:mod:`weft.runtime.train.parallel`); :func:`single_process` trains the same modules whole.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.support.stage_modules import BATCH, LENGTH, WIDTH
from tests.support.training_graphs import Case
from weft.runtime import Boundary, MasterWeights, Plan, Ports, Session, Training


@dataclass(frozen=True)
class SingleProcess:
    """What one process found: per batch its loss and gradient norm, and by stage its gradients as a module's weights;
    the last weights too."""

    losses: list[float]
    norms: list[float]
    gradients: list[list[nn.Module]]
    weights: list[nn.Module]


def _optimizer(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def single_process(made: Case, dtype: torch.dtype, micro_batches: int, steps: int,
                   clip_norm: float | None) -> SingleProcess:
    """Train ``made`` in this process, whole: tied parameters are one object, bf16 has fp32 masters."""
    modules = made.modules(dtype)
    for tie in made.numbered_ties():
        (first, its), *others = tie.items()
        for stage, name in others:
            owner, _, last = name.rpartition(".")
            setattr(modules[stage].get_submodule(owner), last, modules[first].get_parameter(its))
    parameters = list(nn.ModuleList(modules).parameters())
    masters = MasterWeights(parameters) if dtype == torch.bfloat16 else None
    held = parameters if masters is None else masters.parameters()
    optimizer = _optimizer(held)
    found = SingleProcess([], [], [], modules)
    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for m in range(micro_batches):
            values: dict[str, Tensor] = made.data(step, m)
            for node, module in zip(made.stages, modules, strict=True):
                given = module(*(values[value] for value in node.takes))
                values.update(zip(node.gives, given, strict=True))
            losses = [values[name] for name in made.losses]
            torch.autograd.backward(losses, [torch.full_like(loss, 1 / micro_batches) for loss in losses])
            total += sum(float(loss.detach()) for loss in losses) / micro_batches
        found.losses.append(total)
        found.gradients.append([_gradients_as_weights(module, masters) for module in modules])
        if clip_norm is not None:
            found.norms.append(float(nn.utils.clip_grad_norm_(held, clip_norm)))
        optimizer.step()
        if masters is not None:
            masters.write_back()
    if masters is not None:
        masters.close()
    return found


def _gradients_as_weights(module: nn.Module, masters: MasterWeights | None) -> nn.Module:
    twin = copy.deepcopy(module)
    for mine, parameter in zip(twin.parameters(), module.parameters(), strict=True):
        gradient = (parameter if masters is None else masters.of(parameter)).grad
        assert gradient is not None
        mine.data = gradient.clone()
    return twin


def expected(module: nn.Module, ranks: Sequence[int], session: Session) -> dict[str, Tensor]:
    """The weights of ``module``, or this rank's shares of them, by the names they have there."""
    twin = copy.deepcopy(module)
    if len(ranks) > 1:
        _share(twin, session.group(ranks))
    return {name: parameter.detach() for name, parameter in twin.named_parameters()}


def held_gradients(part: Training, stage: int) -> dict[str, Tensor]:
    """The gradients of one stage of ``part``, where they are kept."""
    found = {}
    for name, parameter in part.stages[stage].named_parameters():
        gradient = (parameter if part.masters is None else part.masters.of(parameter)).grad
        assert gradient is not None, (stage, name)
        found[name] = gradient.clone()
    return found


def training(made: Case, plan: Plan, session: Session, dtype: torch.dtype, steps: int,
             clip_norm: float | None = None, **options: Any) -> Training:
    """Rank ``session.rank``'s part of ``made``, trained by ``plan``."""
    assert plan.stage_groups is not None
    session.add_groups(plan.groups)
    mine = {s: module for s, module in enumerate(made.modules(dtype)) if session.rank in plan.stage_groups[s]}
    for s, module in mine.items():
        if len(plan.stage_groups[s]) > 1:
            _share(module, session.group(plan.stage_groups[s]))
    parameters = [parameter for module in mine.values() for parameter in module.parameters()]
    masters = MasterWeights(parameters) if dtype == torch.bfloat16 else None
    optimizer = _optimizer(parameters if masters is None else masters.parameters())
    ports = {s: Ports(node.takes, node.gives) for s, node in enumerate(made.stages)}
    boundary = Boundary((BATCH, LENGTH, WIDTH), dtype)
    ties = [_shared_names(made, plan, tie) for tie in made.numbered_ties()]
    return Training(mine, {value: boundary for node in made.stages for value in node.gives
                           if value not in made.losses}, inputs=made.data, ports=ports, losses=made.losses, ties=ties,
                    optimizer=optimizer, masters=masters, steps=steps, clip_norm=clip_norm, **options)


def _shared_names(made: Case, plan: Plan, tie: Mapping[int, str]) -> dict[int, str]:
    """A tie's names as they are in shares: a linear layer's weight has moved one level down."""
    assert plan.stage_groups is not None
    return {stage: name.replace("head.weight", "head.shard.weight") if len(plan.stage_groups[stage]) > 1 else name
            for stage, name in tie.items()}


def _share(module: nn.Module, group: dist.ProcessGroup) -> None:
    share: Any = module
    share.share(group)
