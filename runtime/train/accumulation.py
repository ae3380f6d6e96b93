"""Detects when a gradient is complete: each is then passed to :class:`~weft.runtime.interface.optim.AdamA`, and freed.

AdamA squares a micro-batch's gradient, so it needs all its contributions first. They come from:

- *A full backward* (B). Autograd adds up all uses of a parameter in the stage before it writes ``grad``, so the written
  gradient is complete, and is folded at once, while the backward goes on below.
- *A split backward* (I, W). The same holds for a parameter of no deferred linear layer: complete in I. One of such a
  layer is complete in W, with the last of the layer's uses; its part from I (an embedding whose table is also the
  head's weight) waits until then, by micro-batch.
- *A tied parameter*, one that is in ``Training.ties`` or in several stages of a rank: a micro-batch's contributions
  come far apart in time and on several ranks. Keeping them by micro-batch would take as many gradients as there are
  micro-batches under way, and a message each. Its gradient is accumulated over the batch instead, summed over the tie
  and over replicas (:mod:`weft.runtime.train.reduction`), and folded once: for this parameter AdamA is Adam, and M
  replicas of N micro-batches still equal one of M N. That costs one gradient of the tied parameters, kept through the
  step.

So beside those of tied parameters, the gradients alive at once are those that autograd has written for one parameter,
never more than the largest layer's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.runtime.interface.optim import AdamA
from weft.runtime.interface.training import Training
from weft.runtime.ranks.session import SessionError
from weft.runtime.train.stage import StageRunner

BUCKET = 25 * 2**20  # bytes that are summed over replicas at once
AnyTensor = TypeVar("AnyTensor", bound=Tensor)


def tied_parameters(training: Training) -> set[nn.Parameter]:
    """The parameters of this rank whose gradients come from several stages: named in ties, or shared by stages."""
    found = set[nn.Parameter]()
    holders = Counter(parameter for module in training.stages.values() for parameter in set(module.parameters()))
    found.update(parameter for parameter, count in holders.items() if count > 1)
    for tie in training.ties:
        for stage in set(tie) & set(training.stages):
            named = dict(training.stages[stage].named_parameters(remove_duplicate=False))
            found.update(named[name] for name in (tie[stage],) if name in named)
    return found


class Folding:
    """Folds the gradients of one rank's stages, run by ``runners``, into the moments of ``training.optimizer``.

    Raises :class:`~weft.runtime.ranks.session.SessionError` for settings that AdamA cannot support.
    """

    def __init__(self, training: Training, runners: Mapping[int, StageRunner]) -> None:
        assert isinstance(training.optimizer, AdamA)
        if training.clip_norm is not None:
            raise SessionError(f"clip_norm is {training.clip_norm}, but AdamA cannot clip: the norm is known when all "
                               "micro-batches' gradients have been summed, and AdamA has folded each into its moments "
                               "and freed it by then; give clip_norm=None, or torch.optim.Adam")
        self.optimizer, self.masters = training.optimizer, training.masters
        self.tied = tied_parameters(training)
        self.deferred = {stage: {p for layer in runner.deferring for p in layer.parameters()} - self.tied
                         for stage, runner in runners.items()}
        self._waiting: dict[tuple[int, int], dict[Tensor, Tensor]] = {}
        self._now: tuple[int, int, str] = (-1, -1, "")
        self._seen: set[Tensor] = set()  # parameters that this pass has folded
        for runner in runners.values():
            runner.complete = self.complete
        everything = dict.fromkeys(p for module in training.stages.values() for p in module.parameters())
        self._hooks = [p.register_post_accumulate_grad_hook(self._written)  # type: ignore[no-untyped-call]
                       for p in everything if p.requires_grad and p not in self.tied]

    def enter(self, stage: int, letter: str, micro_batch: int) -> None:
        """Begin the pass of that letter."""
        self._now = stage, micro_batch, letter
        self._seen.clear()
        if letter == "W":
            for parameter, gradient in self._waiting.pop((stage, micro_batch), {}).items():
                self.holder(parameter).grad = gradient

    def leave(self) -> None:
        """End the pass."""
        stage, _, letter = self._now
        if letter == "W":  # parameters whose layers had no use in this micro-batch
            for parameter in self.deferred[stage]:
                if self.holder(parameter).grad is not None:
                    self.complete(parameter)

    def complete(self, parameter: Tensor) -> None:
        """The gradient of ``parameter`` has all contributions of this micro-batch: fold it, and free it."""
        if parameter in self.tied:
            return
        holder = self.holder(parameter)
        gradient, holder.grad = holder.grad, None
        if gradient is not None and self.optimizer.holds(holder):
            if parameter in self._seen:
                raise SessionError("a parameter's gradient came in two parts in one backward, as under "
                                   "torch.utils.checkpoint with use_reentrant=True; AdamA must square their sum: use "
                                   "use_reentrant=False, or let the plan recompute")
            self._seen.add(parameter)
            self.optimizer.fold(holder, gradient)

    def fold_tied(self, parameters: Iterable[Tensor]) -> None:
        """Fold tied gradients: after the last backward of a batch that adds to ``parameters``, and after ties and
        replicas have been summed."""
        for parameter in parameters:
            holder = self.holder(parameter)
            if holder.grad is not None and self.optimizer.holds(holder):
                self.optimizer.fold(holder, holder.grad, whole=True)
            holder.grad = None

    def sum_over(self, replicas: dist.ProcessGroup | None, members: Iterable[nn.Parameter],
                 gradient: Callable[[nn.Parameter], Tensor]) -> None:
        """Sum over ``replicas`` the moments of ``members``, and the ``gradient`` of those that are tied."""
        def summed(tensors: Iterable[Tensor]) -> None:
            for bucket in buckets(tensors):
                flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
                dist.all_reduce(flat, group=replicas)
                for tensor in bucket:
                    tensor.copy_(flat[:tensor.numel()].view_as(tensor))
                    flat = flat[tensor.numel():]

        summed([gradient(parameter) for parameter in members if parameter in self.tied])
        held = [self.holder(parameter) for parameter in members if parameter not in self.tied]
        self.optimizer.reduce([p for p in held if self.optimizer.holds(p)], summed)

    def holder(self, parameter: Tensor) -> Tensor:
        """The tensor with the gradient of ``parameter``: itself, or its master."""
        return parameter if self.masters is None else self.masters.of(parameter)  # type: ignore[arg-type]

    def close(self) -> None:
        """Remove the hooks: gradients are no longer touched."""
        for hook in self._hooks:
            hook.remove()

    def _written(self, parameter: Tensor) -> None:
        """Handle a gradient of ``parameter`` that autograd has written (and masters have taken over)."""
        stage, micro_batch, letter = self._now
        holder = self.holder(parameter)
        if letter != "B" and parameter in self.deferred[stage]:
            waiting = self._waiting.setdefault((stage, micro_batch), {})
            if holder.grad is not None:
                waiting[parameter] = waiting[parameter] + holder.grad if parameter in waiting else holder.grad
                holder.grad = None
        else:
            self.complete(parameter)


def buckets(tensors: Iterable[AnyTensor]) -> Iterator[list[AnyTensor]]:
    """Tensors of one type together, up to :data:`BUCKET` bytes."""
    kinds: defaultdict[tuple[torch.dtype, torch.device], list[AnyTensor]] = defaultdict(list)
    for tensor in {id(t): t for t in tensors}.values():
        kind = kinds[tensor.dtype, tensor.device]
        kind.append(tensor)
        if sum(t.nbytes for t in kind) >= BUCKET:
            yield kinds.pop((tensor.dtype, tensor.device))
    yield from kinds.values()
