"""Experts that move between ranks between two steps, with what the optimizer keeps of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.runtime.experts.layer import Expert, ExpertLayer, ExpertPlacement

__all__ = ["move_experts", "moved", "place_anew"]


def moved(before: ExpertPlacement, after: ExpertPlacement) -> Iterator[tuple[int, int, int]]:
    """Who sends what: expert, from, to. Copies take turns in sending."""
    for expert, (had, have) in enumerate(zip(before.holders, after.holders, strict=True)):
        for turn, target in enumerate(rank for rank in have if rank not in had):
            yield expert, had[turn % len(had)], target


def move_experts(layer: ExpertLayer, optimizer: Optimizer, after: ExpertPlacement) -> int:
    """Bring the experts of ``layer`` to where ``after`` has them; the bytes that this rank received. All ranks call it
    together, between a step and the next forward: gradients do not move.

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
    """Give ``layer`` the experts that ``after`` has here: those that stay are the same parameters with their state,
    those that come are empty."""
    device = layer.gate.logits.weight.device
    kept: dict[str, nn.Module] = {}
    comes: list[nn.Parameter] = []
    for expert in after.on(layer.rank):
        name = str(expert)
        if name in layer.experts:
            kept[name] = layer.experts[name]
            continue
        with torch.random.fork_rng(devices=[]):  # drawn numbers would be others' on this rank alone
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
    """A parameter and what the optimizer keeps of it, in one order on all ranks."""
    return [parameter, *(state[key] for key in sorted(state) if isinstance(state[key], Tensor))]


def _global(layer: ExpertLayer, rank: int) -> int:
    return rank if layer.group is None else dist.get_global_rank(layer.group, rank)
