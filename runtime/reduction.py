"""What happens to gradients between the last backward of a step and the optimizer: ties, replicas, the norm.

Gradients are allocated in the first step and stay: the plan counts them as always there, and a later step allocates
nothing for them. A parameter that a batch does not use has none in that batch, so that its optimizer leaves it alone.

Each sum is made once a step. Tied parameters are summed over the ranks that hold them, then every parameter over the
replicas of the plan, in buckets. The norm is that of the whole model's gradient: a parameter counts once, however many
ranks hold it, and a sharded one with each of its shares.

Under AdamA (:mod:`runtime.optim`) gradients are in the optimizer's moments by then, and the moments are summed over the
replicas in their place; only gradients of tied parameters are still there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from runtime.parallel import is_sharded
from runtime.plan import Plan
from runtime.session import Session, SessionError
from runtime.training import Training

if TYPE_CHECKING:
    from runtime.accumulation import Folding

__all__ = ["Reduction"]

BUCKET = 25 * 2**20  # bytes that are summed over replicas at once
TINY = 1e-6  # added to a norm before dividing by it, as torch.nn.utils.clip_grad_norm_ does


class _Tie(NamedTuple):
    """The parameters of this rank that are one; which of their gradients are to be added up; the ranks over which
    (none if each adds up its own); and whether this rank counts it in the norm."""

    parameters: tuple[nn.Parameter, ...]
    added: tuple[nn.Parameter, ...]
    ranks: tuple[int, ...]
    counted: bool


class Reduction:
    """The gradients of rank ``session.rank``'s part of ``plan``, as ``training`` has it.

    All ranks of the session build theirs at the same point. Raises :class:`~runtime.session.SessionError` if they
    disagree, or begin with different values of what is one parameter.
    """

    def __init__(self, plan: Plan, session: Session, training: Training, folding: Folding | None = None) -> None:
        groups = plan.stage_groups
        assert groups is not None
        self.session, self.training, self.groups, self.folding = session, training, groups, folding
        if folding is not None:
            folding.optimizer.replicas = session.replicas
        if training.clip_norm is not None and not training.clip_norm > 0:
            raise SessionError(f"clip_norm is {training.clip_norm}, it must be greater than 0")
        session.agree("steps, clip_norm and ties", (training.steps, training.clip_norm, list(map(dict, training.ties))))
        self.parameters = list({id(p): p for module in training.stages.values() for p in module.parameters()
                                if p.requires_grad}.values())
        self._require_masters()
        everywhere = range(session.world)
        self._require_plain_ties()
        spans = [self._span(tie) for tie in training.ties]
        session.add_groups([everywhere, *(ranks for ranks, split in spans if split)])
        self.counterparts = session.counterparts() if session.replicas > 1 else None
        self.ties = [self._tie(tie, *span) for tie, span in zip(training.ties, spans, strict=True)
                     if session.rank in span[0]]
        self.counted = list(self._counted())
        self._kept: dict[nn.Parameter, tuple[Tensor, int]] = {}  # by holder: the gradient, its version when cleared
        self._require_equal_starts()

    @property
    def kept(self) -> list[Tensor]:
        """The gradients that stay allocated between steps."""
        return [gradient for gradient, _ in self._kept.values()]

    def clear(self) -> None:
        """Begin a batch: gradients that are there become zero (those that go into AdamA's moments are dropped)."""
        for parameter in self.parameters:
            holder = self._holder(parameter)
            gradient = self._kept[holder][0] if holder in self._kept and holder.grad is None else holder.grad
            parameter.grad = holder.grad = None
            if gradient is not None and self.folding is None:
                holder.grad = gradient.zero_()
                self._kept[holder] = gradient, gradient._version

    def reduce(self) -> None:
        """Sum the gradients of what is tied, then over replicas."""
        for holder, (gradient, version) in self._kept.items():
            if holder.grad is gradient and gradient._version == version:  # nothing was added to it
                holder.grad = None
        for tie in self.ties:
            self._sum_tie(tie)
        folding = self.folding
        if self.session.replicas > 1:
            self.session.watch.doing("summing gradients over the replicas", [
                replica * self.session.world + self.session.rank for replica in range(self.session.replicas)])
            self._sum_over_replicas([self._gradient(parameter) for parameter in self.parameters
                                     if folding is None or parameter in folding.tied])
            if folding is not None:
                held = [self._holder(p) for p in self.parameters if p not in folding.tied]
                folding.optimizer.reduce([p for p in held if folding.optimizer.holds(p)], self._sum_over_replicas)
        if folding is not None:
            folding.fold_tied()

    def _sum_over_replicas(self, tensors: Iterable[Tensor]) -> None:
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat, group=self.counterparts)
            for tensor in bucket:
                tensor.copy_(flat[:tensor.numel()].view_as(tensor))
                flat = flat[tensor.numel():]

    def clip(self) -> float | None:
        """Scale gradients so that their norm is at most ``clip_norm``; the norm that they had, on every rank."""
        limit = self.training.clip_norm
        if limit is None:
            return None
        self.session.doing("summing the gradients' norm", range(self.session.world))
        squares = torch.zeros((), dtype=torch.float64, device=self.session.device)
        for parameter in self.counted:
            if (gradient := self._holder(parameter).grad) is not None:
                squares += torch.linalg.vector_norm(gradient, dtype=_wide(gradient)).double() ** 2
        dist.all_reduce(squares, group=self.session.group(range(self.session.world)))
        norm = float(squares.sqrt())
        if norm + TINY > limit:
            for gradient in {id(g): g for p in self.parameters if (g := self._holder(p).grad) is not None}.values():
                gradient *= limit / (norm + TINY)
        return norm

    def step(self) -> None:
        """The optimizer's step, and the masters' rounding."""
        if self.training.optimizer is not None:
            self.training.optimizer.step()
        if self.training.masters is not None:
            self.training.masters.write_back()

    # -- ties ----------------------------------------------------------------------------------------------------------

    def _require_plain_ties(self) -> None:
        seen: set[tuple[int, str]] = set()
        for tie in self.training.ties:
            if len(tie) < 2:
                raise SessionError(f"the tie {dict(tie)} must name a parameter of at least two stages")
            for stage, name in tie.items():
                if not 0 <= stage < len(self.groups):
                    raise SessionError(f"ties name stage {stage}, but there are the stages 0 to "
                                       f"{len(self.groups) - 1}")
                if (stage, name) in seen:
                    raise SessionError(f"two ties name {name!r} of stage {stage}: make them one")
                seen.add((stage, name))

    def _span(self, tie: Mapping[int, str]) -> tuple[tuple[int, ...], bool]:
        """The ranks that hold the parameters of ``tie``, and whether they differ from stage to stage."""
        ranks = {self.groups[stage] for stage in tie}
        return tuple(sorted({rank for group in ranks for rank in group})), len(ranks) > 1

    def _tie(self, tie: Mapping[int, str], ranks: tuple[int, ...], split: bool) -> _Tie:
        rank, found = self.session.rank, list[nn.Parameter]()
        groups: dict[nn.Parameter, tuple[int, ...]] = {}
        for stage in sorted(set(tie) & set(self.training.stages)):
            named = dict(self.training.stages[stage].named_parameters(remove_duplicate=False))
            if tie[stage] not in named:
                raise SessionError(f"ties name the parameter {tie[stage]!r} of stage {stage}, whose module has "
                                   f"{', '.join(named) or 'none'}")
            if split and is_sharded(named[tie[stage]]):
                raise SessionError(f"ties name {tie[stage]!r} of stage {stage}, which is sharded: it can only be tied "
                                   "to parameters on the same ranks, share by share")
            found.append(named[tie[stage]])
            if groups.setdefault(found[-1], self.groups[stage]) != self.groups[stage]:
                raise SessionError(f"{tie[stage]!r} of stage {stage} is the same parameter object in stages on "
                                   "different ranks: give each stage its own, the tie keeps them equal")
            if not torch.equal(found[0], found[-1]):
                raise SessionError(f"tied parameters begin with different values: {dict(tie)}")
        added = tuple(p for p, group in groups.items() if not split or group[0] == rank)
        return _Tie(tuple(groups), added, ranks if split else (),
                    counted=rank == self.groups[min(tie)][0] or (not split and is_sharded(found[0])))

    def _sum_tie(self, tie: _Tie) -> None:
        total = torch.zeros_like(self._gradient(tie.parameters[0]))
        for parameter in tie.added:
            total += self._gradient(parameter)
        if tie.ranks:
            self.session.doing("summing the gradients of tied parameters", tie.ranks)
            dist.all_reduce(total, group=self.session.group(tie.ranks))
        for parameter in tie.parameters:
            self._gradient(parameter).copy_(total)

    def _holder(self, parameter: nn.Parameter) -> nn.Parameter:
        """What holds the gradient of ``parameter``."""
        return parameter if self.training.masters is None else self.training.masters.of(parameter)

    def _gradient(self, parameter: nn.Parameter) -> Tensor:
        holder = self._holder(parameter)
        if holder.grad is None:
            holder.grad = self._kept[holder][0] if holder in self._kept else torch.zeros_like(holder)
        return holder.grad

    # -- what counts, and what must be equal ---------------------------------------------------------------------------

    def _counted(self) -> Iterator[nn.Parameter]:
        """The parameters whose gradients this rank adds to the norm."""
        tied = {id(parameter) for tie in self.ties for parameter in tie.parameters}
        for stage, module in sorted(self.training.stages.items()):
            for parameter in module.parameters():
                if parameter.requires_grad and id(parameter) not in tied:
                    tied.add(id(parameter))  # once, also if stages of this rank share it
                    if is_sharded(parameter) or self.groups[stage][0] == self.session.rank:
                        yield parameter
        for tie in self.ties:
            if tie.counted:
                yield tie.parameters[0]

    def _require_masters(self) -> None:
        if self.training.masters is None:
            return
        covered = {id(self.training.masters.of(p)) for p in self.parameters} & set(
            map(id, self.training.masters.parameters()))
        for stage, module in self.training.stages.items():
            for name, parameter in module.named_parameters():
                if parameter.requires_grad and id(self.training.masters.of(parameter)) not in covered:
                    raise SessionError(f"masters has no copy of {name!r} of stage {stage}: build it from all "
                                       "parameters of this rank")

    def _require_equal_starts(self) -> None:
        """Rank 0 compares a checksum of all that must begin equal: ties, replicas, what a stage's ranks all hold."""
        sums: dict[str, tuple[float, float]] = {}
        for stage, module in self.training.stages.items():
            for name, parameter in module.named_parameters(remove_duplicate=False):
                share = f" on rank {self.session.rank}" if is_sharded(parameter) else ""
                sums[f"{name!r} of stage {stage}{share}"] = _checksum(parameter)
        found = self.session.gather(sums)
        if found is None:
            return
        known: dict[str, tuple[float, float]] = {}
        for process, each in enumerate(found):
            for name, value in each.items():
                if known.setdefault(name, value) != value:
                    raise SessionError(f"the parameter {name} begins with other values on process {process} than "
                                       "on one before: give all the same, or mark it with runtime.parallel.sharded")
        for tie in self.training.ties:
            values = {known.get(f"{name!r} of stage {stage}") for stage, name in tie.items()} - {None}
            if len(values) > 1:
                raise SessionError(f"tied parameters begin with different values: {dict(tie)}")


def _checksum(parameter: Tensor) -> tuple[float, float]:
    wide = parameter.detach().double().reshape(-1)
    return float(wide.sum()), float(torch.linalg.vector_norm(wide))


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one type together, up to :data:`BUCKET` bytes."""
    kinds: defaultdict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for tensor in {id(t): t for t in tensors}.values():
        kind = kinds[tensor.dtype, tensor.device]
        kind.append(tensor)
        if sum(t.nbytes for t in kind) >= BUCKET:
            yield kinds.pop((tensor.dtype, tensor.device))
    yield from kinds.values()
