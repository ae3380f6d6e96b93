"""Switching between a family of plans: which plan is due, and which tensors move between ranks at a switch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.app.pipeline.planning.memory.planned import cuts_of
from weft.app.pipeline.run.state import PipelineState
from weft.runtime.captured.captured import CaptureError
from weft.runtime.checkpoint.optimizer_state import divides
from weft.runtime.experts.gate import DensityMonitor
from weft.runtime.plan.plan import Plan, load_plan
from weft.runtime.ranks.session import Session
from weft.runtime.train.sharding import is_divided
from weft.solver.io.entries import Entry, read_json, require_format

#: Pairs of a step and the number of the plan that begins there, or the file of a family.
Switches: TypeAlias = Sequence[tuple[int, int]] | str | os.PathLike[str]
#: Key of the active plan in a checkpoint.
PHASE = "weft.phase"


class Following:
    """``plans`` and the rule that selects one: ``steps``, or a ``monitor`` of density. ``optimizer``: this rank's."""

    def __init__(self, plans: Sequence[Plan], optimizer: Optimizer, steps: Sequence[tuple[int, int]],
                 monitor: DensityMonitor | None) -> None:
        self.plans, self.optimizer, self.steps, self.monitor = tuple(plans), optimizer, tuple(steps), monitor
        self.number = 0
        self.switches: list[tuple[int, int, int]] = []  # step, plan from there on, bytes received on this rank
        facts = [[plan.digest for plan in plans], self.steps, monitor and monitor.borders]
        self.family = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def due(self, step: int) -> Plan:
        """The plan of step ``step``."""
        if self.monitor is not None:
            self.number = self.monitor.phase
        else:
            self.number = max(pair for pair in self.steps if pair[0] <= step)[1]
        return self.plans[self.number]

    @property
    def places(self) -> tuple[int, ...]:
        """The cuts of the plan that is due."""
        return cuts_of(self.plans[self.number]) or ()

    def hear(self, densities: Sequence[float]) -> None:
        """Update the monitor with the ranks' ``densities``.

        Raises :class:`~weft.runtime.captured.captured.CaptureError` if plans are switched by steps.
        """
        if self.monitor is None:
            raise CaptureError("the plans are switched by steps, not by a density: give borders to follow")
        self.monitor.update(sum(densities) / len(densities))

    def state_dict(self) -> dict[str, Any]:
        """The active plan and the density, for a checkpoint."""
        density = None if self.monitor is None else self.monitor.density
        return {"family": self.family, "number": self.number, "density": density}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`. Raises ``ValueError`` for another family."""
        if state["family"] != self.family:
            raise ValueError(f"the checkpoint is of another family of plans ({state['family']}, not {self.family}); go "
                             "on with the plans, switches and borders that it was made with")
        self.number = int(state["number"])
        if self.monitor is not None:
            self.monitor.phase, self.monitor.density = self.number, state["density"]


def following(plans: Sequence[Plan | str | os.PathLike[str]], optimizer: Optimizer, switches: Switches | None,
              borders: Sequence[float] | None, session: Session, now: Plan) -> Following:
    """See :meth:`~weft.app.pipeline.run.pipe.PipelineEngine.follow`; ``now``: the running plan.

    Raises :class:`~weft.runtime.captured.captured.CaptureError`, and what reading files raises.
    """
    found = [plan if isinstance(plan, Plan) else load_plan(plan) for plan in plans]
    found = [now if plan.digest == now.digest else plan for plan in found]
    if (switches is None) == (borders is None):
        raise CaptureError("plans are switched by steps or by a density: give switches or borders")
    for i, plan in enumerate(found):
        if len(plan.program.ranks) != session.world or plan.micro_batches != now.micro_batches:
            raise CaptureError(f"plan {i} is for {len(plan.program.ranks)} ranks and {plan.micro_batches} "
                               f"micro-batches, but the pipeline has {session.world} and {now.micro_batches}")
        if plan.stage_ranks is None or cuts_of(plan) is None:
            raise CaptureError(f"plan {i} does not say where the model is cut: take pipe.plan of a pipeline of it")
    if divides(optimizer):
        raise CaptureError("the optimizer divides its state among copies, so it cannot move: take a plain one")
    if any(is_divided(p) for group in optimizer.param_groups for p in group["params"]):
        raise CaptureError("fully_shard or tensor_parallel divides parameters, so they cannot move: leave it out")
    try:
        monitor = None if borders is None else DensityMonitor(borders)
    except ValueError as error:
        raise CaptureError(str(error)) from None
    if monitor is not None and len(monitor.borders) != len(found) - 1:
        raise CaptureError(f"{len(found)} plans have {len(found) - 1} borders between them, not {len(monitor.borders)}")
    steps = () if switches is None else _steps(switches, len(found))
    made = Following(found, optimizer, steps, monitor)
    session.agree("the plans to follow", made.family)
    return made


def _steps(switches: Switches, count: int) -> tuple[tuple[int, int], ...]:
    """Pairs of a step and the number of the plan that begins there."""
    if isinstance(switches, str | os.PathLike):
        entry = Entry(read_json(switches), os.fspath(switches))
        require_format(entry, "weft.family/1")
        named = len(list(entry.list("plans")))
        if named != count:
            raise CaptureError(f"{entry.where}: the family has {named} plans, but {count} were given: give one for "
                               "each, in its order")
        switches = [(part.count("first"), part.count("plan")) for part in entry.list("parts")]
    pairs = tuple((step, number) for step, number in switches)
    if not pairs or pairs[0][0] != 0 or list(pairs) != sorted(set(pairs)) or len(dict(pairs)) < len(pairs):
        raise CaptureError(f"switches is {list(pairs)!r:.80}, they must be pairs of a step and a plan, from step 0 on "
                           "and rising")
    if wrong := [number for _, number in pairs if not 0 <= number < count]:
        raise CaptureError(f"switches names plan {wrong[0]}, but there are {count}, from 0 on")
    return pairs


def move(before: PipelineState, after: PipelineState, optimizer: Optimizer) -> int:
    """Move tensors and their state in ``optimizer`` from the ranks of ``before`` to those of ``after``. Collective,
    between two steps; gradients do not move. Returns the bytes that this rank received.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for master weights.
    """
    if before.masters is not None:
        raise CaptureError("weights in a lower precision have masters, which do not move: leave dtype out, or take "
                           "autocast")
    session, groups = before.session, optimizer.param_groups
    group_of = {id(p): i for i, group in enumerate(groups) for p in group["params"]}
    known = {item.name: (group_of.get(id(item.tensor), 0), _kept_state(optimizer, item.tensor))
             for item in before.tensors if before.owner.get(id(item.tensor)) == session.rank}
    gathered = {name: facts for each in session.exchange(known, "switching plans") for name, facts in each.items()}
    received = 0
    for item in before.tensors:
        own = id(item.tensor)
        if own not in before.owner or not (item.is_saved or isinstance(item.tensor, nn.Parameter)):
            continue
        group, kept = gathered[item.name]
        for target in sorted(after.holders.get(own, set()) - before.holders[own]):
            if target == session.rank and isinstance(item.tensor, nn.Parameter) and item.tensor.requires_grad:
                groups[group]["params"].append(item.tensor)
                if kept:
                    optimizer.state[item.tensor] = {key: value if not isinstance(value, tuple) else torch.empty(
                        value[0], dtype=value[1], device=item.tensor.device if value[0] else value[2])
                        for key, value in kept.items()}
            received += _sent(item.tensor, optimizer, before.owner[own], target, session)
        if session.rank in before.holders[own] and session.rank not in after.holders.get(own, set()):
            item.tensor.grad = None
            optimizer.state.pop(item.tensor, None)
            for each in groups:
                each["params"] = [p for p in each["params"] if p is not item.tensor]
    return received


def _kept_state(optimizer: Optimizer, tensor: Tensor) -> dict[str, Any]:
    """The optimizer's state of a parameter: numbers, and shape, dtype and device of tensors."""
    return {key: (tuple(value.shape), value.dtype, value.device.type) if isinstance(value, Tensor) else value
            for key, value in optimizer.state.get(tensor, {}).items()}


def _sent(tensor: Tensor, optimizer: Optimizer, source: int, target: int, session: Session) -> int:
    """Send a tensor and its optimizer state, or receive them. Returns the bytes received."""
    state, taken = optimizer.state.get(tensor, {}), 0
    for part in (tensor, *(state[key] for key in sorted(state) if isinstance(state[key], Tensor))):
        if session.rank == source:
            dist.send(part.detach().contiguous(), session.place(target), group=session.members)
        elif session.rank == target:
            found = torch.empty_like(part.detach().contiguous())
            dist.recv(found, session.place(source), group=session.members)
            with torch.no_grad():
                part.copy_(found)
            taken += found.nbytes
    return taken
