"""Data parallel training with sharded states: gradients are reduce-scattered, slices updated, parameters all-gathered.

This schedule is RS-C-AG with sliced states in CoCoNet (Jangda et al., ASPLOS 2022), and the first two stages of ZeRO
(Rajbhandari et al., SC 2020). Every rank has 1/N of the states, and computes 1/N of the update.

- A bucket's reduce-scatter starts as soon as the backward has computed its gradients; buckets have the same order on
  all ranks.
- :meth:`ShardedOptimizer.step` updates slices as their sums arrive, and starts gathering in the order of the forward.
- A module waits for its parameters just before its next forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.runtime.communication.buckets import Bucket, BucketSlice, Summing, buckets_of
from weft.runtime.communication.channel import Channel, Pending, all_gather, all_reduce, meeting, reduce_scatter
from weft.runtime.communication.reads import Readers, require_unread
from weft.runtime.communication.rules import RULES, RuleOptions, groups_of, options_in, require_fitting, require_options

BUCKET = 25 * 2**20  # bytes
TINY = 1e-6  # added to a norm before dividing by it, as torch.nn.utils.clip_grad_norm_ does


class ShardedOptimizer(torch.optim.Optimizer):
    """Adam, AdamW or LAMB for ``module``, trained data parallel by the ranks of ``group`` (by default all of them).

    Under ``torchrun``, after ``torch.distributed.init_process_group``::

        optimizer = ShardedOptimizer(module, "lamb", lr=2e-3)
        for x, y in batches:  # this rank's
            loss(module(x), y).backward()
            optimizer.step()

    It replaces ``DistributedDataParallel`` and an optimizer: each rank runs the backward of the mean loss of its part
    of the batch, and :meth:`step` updates the weights by the rule with the mean gradient. All ranks create it together
    and start with rank 0's weights; buffers and untrained parameters are not synchronised.

    ``rule``: ``"adam"``, ``"adamw"`` (as in torch) or ``"lamb"``. Its ``options``, ``lr``, ``betas``, ``eps`` and
    ``weight_decay``, have the published defaults. ``options_of``: returns other options for a parameter, by its name
    (such as no decay for biases). ``clip_norm``: the largest norm of the mean gradient of all parameters.
    ``bucket_bytes``: the size of a bucket. ``timeout``: seconds that a collective waits for other ranks.

    ``.grad`` is ``None`` after the backward, as gradients are moved into buckets. With several backwards per step, all
    but the last run within :meth:`accumulating`. Between :meth:`step` and the next forward, call :meth:`wait` before
    reading parameters; saving and loading the module's state dict do so. A forward that reads a child module's
    parameters before it calls that child must call it, too. Copies of the module have no optimizer.

    Raises ``ValueError`` for invalid options, a module without parameters to train or already with such an optimizer,
    ranks with other parameters or options, and where no process group is initialised.
    """

    def __init__(self, module: nn.Module, rule: str = "adam", *, clip_norm: float | None = None,
                 options_of: Callable[[str, nn.Parameter], Mapping[str, Any]] | None = None,
                 group: dist.ProcessGroup | None = None, bucket_bytes: int = BUCKET, timeout: float = 60.0,
                 **options: Unpack[RuleOptions]) -> None:
        if rule not in RULES:
            raise ValueError(f"there is no rule {rule!r}: take one of {', '.join(RULES)}")
        if not isinstance(module, nn.Module):
            raise ValueError(f"ShardedOptimizer trains a module, not {type(module).__name__}: give the module itself")
        require_unread(module)
        self.rule, self.clip_norm = rule, clip_norm
        own = RULES[rule].defaults
        if unknown := options.keys() - own.keys():
            raise TypeError(f"ShardedOptimizer has no option {min(unknown)!r}: it has {', '.join(own)}")
        defaults: dict[str, Any] = {**own, **options}
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        require_options(named, clip_norm, bucket_bytes)
        groups = list(groups_of(named, defaults, options_of))
        self._channel = Channel(group, named[0][1].device, timeout)
        self._channel.agree({"the rule": rule, "clip_norm": clip_norm, "bucket_bytes": bucket_bytes, **{
            f"the parameter {name!r}": f"of shape {tuple(p.shape)}, {p.dtype}" for name, p in named}, **{
            f"the options of {name!r}": {key: entry[key] for key in defaults}
            for entry in groups for name in entry["names"]}})
        super().__init__([{key: value for key, value in entry.items() if key != "names"} for entry in groups], defaults)
        number = {parameter: i for i, entry in enumerate(groups) for parameter in entry["params"]}
        self.ranks, self.rank = self._channel.size, self._channel.rank
        self.buckets = buckets_of([(name, p, number[p]) for name, p in reversed(named)], self.ranks, self.rank,
                                  bucket_bytes)
        self._slices = [BucketSlice(bucket, rule) for bucket in self.buckets]
        self._bucket_of = {member.parameter: bucket for bucket in self.buckets for member in bucket.members}
        self._next = 0  # the bucket whose sum starts next
        self._accumulates = False
        self._hooks: list[Any] = []
        for bucket in self.buckets:
            with meeting(timeout):
                dist.broadcast(bucket.flat, dist.get_global_rank(self._channel.group, 0), group=self._channel.group)
            self._hooks += [
                member.parameter.register_post_accumulate_grad_hook(self._taking(bucket, i))  # type: ignore[no-untyped-call]
                for i, member in enumerate(bucket.members)]
        self._readers = Readers(module, self._await)

    # -- what users call -----------------------------------------------------------------------------------------------

    @property
    def state_bytes(self) -> int:
        """Bytes of the states on this rank: 1/N of those of all parameters, rounded up to whole slices."""
        return sum(tensor.nbytes for own in self._slices for tensor in own.states.values())

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backwards inside only add to gradients; the last one outside is summed over the ranks with them."""
        before, self._accumulates = self._accumulates, True
        try:
            yield
        finally:
            self._accumulates = before

    def wait(self) -> None:
        """Wait until all parameters are those of the last step."""
        for bucket in self.buckets:
            bucket.wait()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the slices and start gathering the parameters. All ranks call it together.

        Raises :class:`~weft.runtime.communication.failures.RankError` if another rank has failed. After any error, here
        or in a hook of the backward, the optimizer must be made anew on all ranks.
        """
        if closure is not None:
            raise ValueError("ShardedOptimizer takes no closure: its gradients are summed during the backward")
        self._readers.learn()
        with self._channel.others.reporting("the optimizer's step"):
            self._sum_the_rest()
            factor = self._factor()
            norms = [self._advance(own, factor) for own in self._slices]
            for own, sums in reversed([*zip(self._slices, norms, strict=True)]):  # in the order of the forward
                if sums is not None:
                    sums[0].wait()
                    own.apply(self.param_groups[own.bucket.options], sums[1])
                self._gather(own.bucket)
        self._next = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, including those whose sums are under way.

        After a backward, or a part of one that failed, all ranks call it together, and each must have made some
        gradients: missing ones are taken to be 0, so that all ranks end the same sums.
        """
        for parameter in self._bucket_of:
            parameter.grad = None
        if any(any(bucket.came) for bucket in self.buckets):
            for bucket in self.buckets[self._next:]:
                self._start_sum(bucket)
        for bucket in self.buckets:
            if bucket.summing is not None:
                bucket.summing.pending.wait()
            bucket.forget()
        self._next = 0

    def state_dict(self) -> dict[str, Any]:
        """The whole states by the model's names, for any number of ranks; all ranks call it together.

        ``state``: by parameter its ``step`` and moments, on the CPU; ``param_groups`` with names in place of
        parameters, as in ``torch.distributed.checkpoint``.
        """
        state: dict[str, Any] = {}
        for own in self._slices:
            whole = {name: self._whole(own.bucket, tensor).cpu() for name, tensor in own.states.items()}
            for member, step in zip(own.bucket.members, own.steps, strict=True):
                state[member.name] = {"step": torch.tensor(float(step)), **{
                    name: tensor[member.begin:member.end].view(member.parameter.shape).clone()
                    for name, tensor in whole.items()}}
        return {"rule": self.rule, "state": state, "param_groups": [
            {**entry, "params": names} for entry, names in zip(self.param_groups, self._names(), strict=True)]}

    def _names(self) -> list[list[str]]:
        """Of each group of options, its parameters by name."""
        names = {member.parameter: member.name for own in self._slices for member in own.bucket.members}
        return [[names[parameter] for parameter in entry["params"]] for entry in self.param_groups]

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load this rank's slices of whole states from :meth:`state_dict`, and the options of parameters.

        Raises ``ValueError``, before anything is changed, for another rule, names or shapes that do not fit, and where
        parameters of one group of options had different ones.
        """
        require_fitting(state_dict, self.rule, {
            member.name: member.parameter for own in self._slices for member in own.bucket.members})
        options = options_in(state_dict, self._names())
        for own in self._slices:
            own.load(state_dict["state"])
        for entry, found in zip(self.param_groups, options, strict=True):
            entry.update(found)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ``ValueError``: all parameters are in buckets from the beginning."""
        if hasattr(self, "buckets"):
            raise ValueError("ShardedOptimizer takes no more parameters: close it and make it anew of the whole module")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a ShardedOptimizer cannot be copied or pickled, it has a thread and hooks: take its "
                        "state_dict()")

    def close(self) -> None:
        """Remove the module's hooks and end the channel, once the parameters are gathered.

        Raises :class:`~weft.runtime.communication.failures.RankError` if they never will be; the hooks are removed then
        too.
        """
        try:
            self.wait()
        finally:
            self._readers.remove()
            for hook in self._hooks:
                hook.remove()
            self._channel.close()

    # -- gradients -----------------------------------------------------------------------------------------------------

    def _taking(self, bucket: Bucket, number: int) -> Callable[[Tensor], None]:
        """A hook for when the backward has made the gradient of a member."""
        def taken(_: Tensor) -> None:
            if self._accumulates:
                return
            with self._channel.others.reporting("the backward"):
                self._take(bucket, number)
                while self._next < len(self.buckets) and self.buckets[self._next].is_full:
                    self._start_sum(self.buckets[self._next])
        return taken

    def _take(self, bucket: Bucket, number: int) -> None:
        member = bucket.members[number]
        if bucket.came[number]:
            raise ValueError(f"the gradient of {member.name!r} came a second time before step(): run all backwards of "
                             "a step but the last within accumulating()")
        assert member.parameter.grad is not None
        bucket.take(number, member.parameter.grad)
        member.parameter.grad = None

    def _start_sum(self, bucket: Bucket) -> None:
        gradients = bucket.closed()
        mine, group = gradients.new_empty(bucket.width + 1), self._channel.group
        bucket.summing = Summing(self._channel.start(
            f"the sum of gradients of bucket {bucket.number}",
            lambda: reduce_scatter(mine, gradients.view(-1), group),
            (mine, gradients)), mine, tuple(bucket.came))
        self._next += 1

    def _sum_the_rest(self) -> None:
        """Sum gradients accumulated before, and missing ones of this backward."""
        for bucket in self.buckets:
            bucket.require_in_place()
            for i, member in enumerate(bucket.members):
                if member.parameter.grad is not None:
                    self._take(bucket, i)
        for bucket in self.buckets[self._next:]:
            self._start_sum(bucket)

    def _factor(self) -> float | Tensor:
        """The factor for sums of gradients: 1/N, and clipping."""
        if self.clip_norm is None:
            return 1.0 / self.ranks
        square = self.buckets[0].flat.new_zeros((), dtype=torch.float64)
        for bucket in self.buckets:
            assert bucket.summing is not None
            bucket.summing.pending.wait()
            square += torch.linalg.vector_norm(bucket.summing.mine[:-1], dtype=torch.float64) ** 2
        self._add_up("the norm of the gradients", square).wait()
        norm = square.sqrt() / self.ranks
        return (self.clip_norm / (norm + TINY)).clamp(max=1.0) / self.ranks

    # -- the update ----------------------------------------------------------------------------------------------------

    def _advance(self, own: BucketSlice, factor: float | Tensor) -> tuple[Pending, Tensor] | None:
        """Update the states with the gradients, and the weights; a rule by norms first needs sums of squares, which are
        under way."""
        bucket, options = own.bucket, self.param_groups[own.bucket.options]
        assert bucket.summing is not None
        pending, mine, came = bucket.summing
        pending.wait()
        present: Sequence[bool] = came
        if bool(mine[-1]):  # some rank has no gradient of some parameter: the same on all ranks
            counts = torch.tensor(came, dtype=mine.dtype, device=mine.device)
            self._add_up(f"the gradients that bucket {bucket.number} has", counts).wait()
            present = [bool(count) for count in counts]
        bucket.forget()
        bucket.wait()
        own.advance(mine[:-1].mul_(factor), present, options)
        if not own.by_norms:
            return None
        squares = own.squares()
        return self._add_up(f"the norms of bucket {bucket.number}", squares), squares

    def _add_up(self, name: str, tensor: Tensor) -> Pending:
        group = self._channel.group
        return self._channel.start(name, lambda: all_reduce(tensor, group), (tensor,))

    def _gather(self, bucket: Bucket) -> None:
        mine, group = bucket.slice.clone(), self._channel.group
        bucket.gathering = self._channel.start(
            f"the gathering of bucket {bucket.number}",
            lambda: all_gather(bucket.flat, mine, group), (bucket.flat, mine))

    def _await(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter in self._bucket_of:
                self._bucket_of[parameter].wait()

    def _whole(self, bucket: Bucket, mine: Tensor) -> Tensor:
        whole, group = torch.empty_like(bucket.flat), self._channel.group
        self._channel.start(f"the states of bucket {bucket.number}", lambda: all_gather(
            whole, mine, group), (whole, mine)).wait()
        return whole
