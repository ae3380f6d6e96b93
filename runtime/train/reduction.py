"""Gradients between the last backward of a step and the optimizer: ties, replicas, the norm.

Gradients are allocated in the first step and stay: the plan counts them as resident, and a later step allocates nothing
for them. With ``adding``, gradients that have not been zeroed meanwhile are added to, and are kept beside the new ones
until these are summed. A parameter that a batch does not use has none in that batch, so that its optimizer does not
change it; a replica that does not use it has the others' sum, which says how many of them do.

Each sum is made once a step, at the plan's REDUCE instructions: behind the last backward that adds to it, while other
stages of the rank may still run. Tied parameters are summed over their ranks at once; over the replicas of the plan,
sums are started there, in place, and waited for after all instructions: the gradients of a group lie in buckets, so
that nothing is copied. The norm is that of the whole model's gradient: a parameter counts once, however many ranks have
it, and a sharded one with each of its shares.

Under AdamA (:mod:`weft.runtime.interface.optim`) gradients are in the optimizer's moments by then, and the moments are
summed over the replicas in their place, bucket by bucket; only gradients of tied parameters still exist.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.runtime.interface.scaling import LossScale
from weft.runtime.interface.training import Training
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import ProgramError, Reduce
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.train.accumulation import Folding, buckets
from weft.runtime.train.parallel import is_sharded
from weft.runtime.train.sharding import Sharding, is_divided, local_of, lying_in, own_share, settled
from weft.runtime.train.tied_parameters import Tie, TiedParameters, require_equal_starts

TINY = 1e-6  # added to a norm before dividing by it, as torch.nn.utils.clip_grad_norm_ does


class _Summed(NamedTuple):
    """What is summed over replicas at once: ``flat`` has the gradients of ``holders`` and, at its end, the number of
    replicas that added to each (``users``)."""

    flat: Tensor
    holders: Sequence[nn.Parameter]
    users: Tensor


class Reduction:
    """The gradients of rank ``session.rank``'s part of ``plan``, for ``training``.

    :attr:`plan` is then the one to run: with a REDUCE for each group of parameters, proven. All ranks of the session
    build theirs at the same point. Raises :class:`~weft.runtime.ranks.session.SessionError` if they disagree, or begin
    with different values of a common parameter.
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
        found = TiedParameters(plan, session, training)
        self.ties = found.ties
        session.add_groups([range(session.world), *found.spans])
        self.counterparts = session.counterparts() if session.replicas > 1 else None
        self.plan = self._proven(plan, found)
        self.members: defaultdict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        for parameter, stages in found.groups.items():
            self.members[stages].append(parameter)
        self.counted = list(self._counted())
        self._kept: dict[nn.Parameter, tuple[Tensor, int]] = {}  # by holder: the gradient, its version when cleared
        self._flat: dict[tuple[int, ...], list[_Summed]] = {}  # by group: what replicas sum
        self.sharding = self._sharded() if training.fully_shard else None
        if session.replicas > 1 and folding is None and self.sharding is None:
            self._flat = {instruction.stages: list(self._lay_out(self.members[instruction.stages]))
                          for instruction in self.plan.program.ranks[session.rank] if isinstance(instruction, Reduce)}
        self._open: list[dist.Work] = []
        self._unused: list[_Summed] = []  # those under way with gradients to which this replica added nothing
        self.summing = True  # off while further batches will be added to the gradients
        self.adding = False  # whether gradients that exist when a batch begins are added to
        self._before: dict[nn.Parameter, Tensor] = {}  # these, by holder
        require_equal_starts(session, training)

    @property
    def kept(self) -> list[Tensor]:
        """The gradients that stay allocated between steps."""
        return [gradient for gradient, _ in self._kept.values()]

    @property
    def holders_counted(self) -> list[nn.Parameter]:
        """The holders of the gradients that this rank adds to the norm over all ranks."""
        if self.session.peers > 1 and self.session.replica:  # the first copy of all has them
            return []
        return [self._final(parameter) for parameter in self.counted]

    @property
    def has_shares(self) -> bool:
        """Whether gradients of one copy of the plan are on ranks of others too."""
        return self.sharding is not None or self.session.peers > 1

    def make(self) -> None:
        """Allocate gradients, as they are from the second batch on."""
        if not self._flat and self.sharding is None and self.folding is None:
            for parameter in self.parameters:
                self._gradient(parameter)

    def forget_unused(self) -> None:
        """Release the memory kept for gradients that the last batch did not use."""
        self._kept = {holder: kept for holder, kept in self._kept.items() if self._flat or holder.grad is not None}

    def clear(self) -> None:
        """Begin a batch: existing gradients become zero (those that go into AdamA's moments are dropped)."""
        if self.sharding is not None:
            self._before = {share: share.grad for parameter in self.parameters if self.adding
                            and (share := self._final(parameter)).grad is not None}
            for parameter in self.parameters:
                parameter.grad = self._final(parameter).grad = None
            return
        self._before = {holder: holder.grad.clone() for parameter in self.parameters if self.adding
                        and (holder := self._holder(parameter)).grad is not None
                        and (is_divided(holder) or holder.grad.any())}
        for parameter in self.parameters:
            holder = self._holder(parameter)
            kept = self._kept[holder][0] if holder in self._kept else None
            gradient = kept if holder.grad is None or self._flat else holder.grad
            parameter.grad = holder.grad = None
            if gradient is not None and self.folding is None:
                holder.grad = gradient.zero_()
                self._kept[holder] = gradient, gradient._version

    def start(self, instruction: Reduce) -> None:
        """Sum the gradients of the parameters of ``instruction``: over their ranks now, over the replicas until
        :meth:`finish`. Sums are linear: of several batches they are made once, in the last."""
        if not self.summing:
            return
        members = self.members.get(instruction.stages, [])
        if not self._flat and self.sharding is None:
            self._drop_unused(members)
            for holder in map(self._holder, members):
                if holder.grad is not None:
                    holder.grad = settled(holder.grad, holder)
        for tie in self.ties:
            if tie.stages == instruction.stages:
                self._sum_tie(tie, instruction)
        if self.session.replicas > 1:
            self._wait_for_replicas(instruction)
            if self.sharding is not None:
                self.sharding.scatter(instruction.stages)
            elif self.folding is None:
                for parameter in members:
                    self._gradient(parameter)
                self._open += filter(None, map(self._sum_bucket, self._flat[instruction.stages]))
            else:
                self.folding.sum_over(self.counterparts, members, self._gradient)
        if self.folding is not None:
            self.folding.fold_tied([parameter for parameter in members if parameter in self.folding.tied])

    def finish(self) -> None:
        """Wait for the started sums."""
        if self._open:
            self._wait_for_replicas("the gradients' sums")
        for work in self._open:
            work.wait()
        for bucket in self._unused:
            for holder, users in zip(bucket.holders, bucket.users.tolist(), strict=True):
                if not users:
                    holder.grad = None
        self._open.clear()
        self._unused.clear()

    def _drop_unused(self, members: Iterable[nn.Parameter]) -> None:
        for holder in map(self._holder, members):
            if self._is_unused(holder):
                holder.grad = None

    def _is_unused(self, holder: nn.Parameter) -> bool:
        """Whether nothing was added to its gradient since the batch began."""
        gradient, version = self._kept.get(holder, (None, 0))
        return gradient is not None and holder.grad is gradient and gradient._version == version

    def _sum_bucket(self, bucket: _Summed) -> dist.Work | None:
        """Start its sum over the replicas."""
        uses = [not self._is_unused(holder) for holder in bucket.holders]
        bucket.users.fill_(1)  # nothing is copied to the device as long as all are used
        if not all(uses):
            bucket.users.copy_(torch.tensor(uses))
            self._unused.append(bucket)
        work: dist.Work | None = dist.all_reduce(bucket.flat, group=self.counterparts, async_op=True)
        return work

    def _wait_for_replicas(self, what: object) -> None:
        """Report that this rank waits for its counterparts."""
        self.session.watch.doing(f"summing gradients over the replicas ({what})", self.session.alike)

    def clip(self) -> float | None:
        """Scale gradients so that their norm is at most ``clip_norm``; returns the norm before that, on every rank."""
        limit = self.training.clip_norm
        if limit is None:
            return None
        self.session.doing("summing the gradients' norm", range(self.session.world))
        squares = torch.zeros((), dtype=torch.float64, device=self.session.device)
        for holder in self.holders_counted:
            if (gradient := holder.grad) is not None:
                squares += torch.linalg.vector_norm(own_share(gradient), dtype=_wide(gradient)).double() ** 2
        dist.all_reduce(squares, group=self.session.members if self.has_shares else
                        self.session.group(range(self.session.world)))
        norm = float(squares.sqrt())
        if norm + TINY > limit:
            self.scale(limit / (norm + TINY))
        return norm

    def add_before(self) -> None:
        """Add the gradients that existed when the batch began."""
        for holder, gradient in self._before.items():
            if holder.grad is None:
                holder.grad = gradient
            else:
                holder.grad += gradient
        self._before = {}

    def scale(self, factor: float) -> None:
        """Multiply all gradients of this rank."""
        for gradient in {id(g): g for p in self.parameters if (g := self._final(p).grad) is not None}.values():
            gradient *= factor

    def unscale(self, scaling: LossScale) -> None:
        """Divide gradients by the scale of the loss; drop them if one, on any rank, is not finite."""
        self.scale(1 / scaling.value)
        holders = [self._final(parameter) for parameter in self.parameters]
        fine = all(bool(own_share(holder.grad).isfinite().all()) for holder in holders if holder.grad is not None)
        self.session.watch.doing("asking whether gradients are finite", range(self.session.processes))
        worst = torch.tensor([float(fine)])
        dist.all_reduce(worst, op=dist.ReduceOp.MIN, group=self.session.members)
        if not worst:
            for holder in holders:
                holder.grad = None
        scaling.update(bool(worst))

    def step(self) -> None:
        """The optimizer's step, and the masters' rounding."""
        if self.training.optimizer is not None:
            self.training.optimizer.step()
        if self.training.masters is not None:
            self.training.masters.write_back()

    # -- sums ----------------------------------------------------------------------------------------------------------

    def _lay_out(self, members: Iterable[nn.Parameter]) -> Iterator[_Summed]:
        """The buckets that hold the gradients of ``members`` from now on."""
        for bucket in buckets(self._holder(parameter) for parameter in members):
            sizes = [local_of(holder).numel() for holder in bucket]
            flat = torch.zeros(sum(sizes) + len(bucket), dtype=bucket[0].dtype, device=bucket[0].device)
            *parts, users = torch.split(flat, [*sizes, len(bucket)])
            for holder, memory in zip(bucket, parts, strict=True):
                self._kept[holder] = lying_in(memory.data, holder.detach()), -1  # each counts its own changes
            yield _Summed(flat, bucket, users)

    def _sum_tie(self, tie: Tie, instruction: Reduce) -> None:
        added = [p.grad for p in map(self._holder, tie.added) if p.grad is not None and not self._is_unused(p)]
        local = local_of(gradient := self._gradient(tie.parameters[0]))
        flat = local.new_full((local.numel() + 1,), float(bool(added)))  # the last: how many ranks added something
        total = lying_in(flat[:-1], gradient).zero_()
        for each in added:
            total += each
        if tie.ranks:
            self.session.doing(f"summing the gradients of tied parameters ({instruction})", tie.ranks)
            dist.all_reduce(flat, group=self.session.group(tie.ranks))
        for parameter in tie.parameters:
            if added or flat[-1]:
                self._gradient(parameter).copy_(total)
            elif not self._flat:
                self._holder(parameter).grad = None

    def _holder(self, parameter: nn.Parameter) -> nn.Parameter:
        """The parameter with the gradient of ``parameter``."""
        return parameter if self.training.masters is None else self.training.masters.of(parameter)

    def _final(self, parameter: nn.Parameter) -> nn.Parameter:
        """The parameter with the gradient of ``parameter`` after a step."""
        return self._holder(parameter) if self.sharding is None else self.sharding.of(parameter)

    def _gradient(self, parameter: nn.Parameter) -> Tensor:
        holder = self._holder(parameter)
        kept = self._kept[holder][0] if holder in self._kept else None
        if holder.grad is None:
            holder.grad = torch.zeros_like(holder) if kept is None else kept
        elif self._flat and kept is not None and holder.grad is not kept:  # user code replaced it
            kept.copy_(holder.grad)
            holder.grad = kept
        return holder.grad

    # -- what counts, and what must be equal ---------------------------------------------------------------------------

    def _counted(self) -> Iterator[nn.Parameter]:
        """The parameters whose gradients this rank adds to the norm."""
        tied = {id(parameter) for tie in self.ties for parameter in tie.parameters}
        for stage, module in sorted(self.training.stages.items()):
            for parameter in module.parameters():
                if parameter.requires_grad and id(parameter) not in tied:
                    tied.add(id(parameter))  # once, even if stages of this rank share it
                    if is_sharded(parameter) or self.groups[stage][0] == self.session.rank:
                        yield parameter
        for tie in self.ties:
            if tie.counted:
                yield tie.parameters[0]

    def _sharded(self) -> Sharding:
        if self.counterparts is None:
            raise SessionError("fully_shard divides parameters among the copies of the pipeline, of which there is "
                               "one: give data=, or a mesh with a dimension named data")
        if self.training.masters is not None or self.folding is not None:
            raise SessionError("fully_shard divides what the optimizer updates in the modules' own type: leave dtype "
                               "out (autocast= computes in bf16), or fully_shard")
        names = {id(parameter): f"{name!r} of stage {stage}" for stage, module in self.training.stages.items()
                 for name, parameter in module.named_parameters()}
        return Sharding(self.members, dist.get_process_group_ranks(self.counterparts), self.session.device,
                        lambda p: names[id(p)])

    def _proven(self, plan: Plan, ties: TiedParameters) -> Plan:
        """``plan`` with a REDUCE for each group of parameters; every trained parameter is in one of them."""
        try:
            plan = plan.sharing(ties.shared)
        except ProgramError as error:
            raise SessionError(str(error)) from None
        self.session.agree("the reductions of the plan", [
            [str(i) for i in own if isinstance(i, Reduce)] for own in plan.program.ranks])
        return plan

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


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
