"""Recomputation of a piece of a forward, when the backward first needs one of its saved tensors.

The second forward draws the random numbers of the first, and leaves buffers unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from weft.runtime.captured.memory.packed import TWICE, Packed, SavedBuffer, StorageView, fetch, is_weight
from weft.runtime.captured.memory.shares import Segment
from weft.runtime.captured.metadata_reads import attribute_of
from weft.runtime.train.moment import Seeded


class FirstForward(Protocol):
    """The forward in which a piece first runs. ``owners``: the owner of each tracked storage, by address."""

    stage: nn.Module

    @property
    def owners(self) -> Mapping[int, object]:
        ...

    def hold(self, tensor: Tensor) -> Packed:
        """The packed form of a tensor that the piece does not produce."""

    def random(self, device: torch.device, share: int) -> RandomState:
        """The current random state, for one share of the batch."""


class Recomputation:
    """A piece of one forward that the backward will run again."""

    def __init__(self, forward_pass: FirstForward, piece: Segment, xs: Sequence[Any], share: int = 0) -> None:
        self.forward_pass: FirstForward | None = forward_pass
        self.piece, self.stage = piece, forward_pass.stage
        self.wanted: set[int] = set()  # the numbers of saved tensors that the piece produces
        self.uses: Counter[int] = Counter()  # outstanding uses, by number of the result
        self.saved: dict[int, Tensor] = {}
        self.results: dict[int, Tensor] = {}
        self.count = 0
        leaves, self.spec = tree_flatten(tuple(xs))
        self.differentiated = [isinstance(x, Tensor) and x.requires_grad for x in leaves]
        self.inputs: list[Any] | None = [forward_pass.hold(x) if isinstance(x, Tensor) else x for x in leaves]
        self.device = next((x.device for x in leaves if isinstance(x, Tensor)), torch.device("cpu"))
        self.random = forward_pass.random(self.device, share) if piece.random else None
        kind = self.device.type
        self.autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind),
                                       cache_enabled=False)

    def pack(self, tensor: Tensor) -> Packed:
        """The packed form of a tensor that the piece saves: its number in the sequence if the piece produces it."""
        number, self.count = self.count, self.count + 1
        assert self.forward_pass is not None
        place = address_of(tensor)
        if not place or place in self.forward_pass.owners or is_weight(tensor):
            return self.forward_pass.hold(tensor)
        self.wanted.add(number)
        return RecomputedTensor(self, number)

    def end_forward(self, ys: Sequence[Any]) -> None:
        """End the first forward."""
        self.forward_pass = None  # its storages are no longer tracked
        if not self.wanted and not self.piece.gives:
            self.inputs = None

    def fetch_saved(self, number: int) -> Tensor:
        """The saved tensor with this number in the sequence."""
        if number not in self.saved:
            self._recompute()
        return self.saved.pop(number)

    def fetch_result(self, number: int) -> torch.UntypedStorage:
        """The storage of one result, for one use."""
        if number not in self.results:
            self._recompute()
        memory = self.results[number].untyped_storage()
        self.uses[number] -= 1
        if not self.uses[number]:
            del self.results[number]
        return memory

    def discard_result(self, number: int) -> None:
        """End one use of a result without fetching it."""
        self.uses[number] -= 1
        if not self.uses[number]:
            self.results.pop(number, None)

    def _recompute(self) -> None:
        if self.inputs is None:
            raise RuntimeError(TWICE)
        packed, self.inputs = self.inputs, None
        leaves = [fetch(x).detach().requires_grad_(differentiated)
                  if isinstance(x, Tensor | StorageView | RecomputedTensor | SavedBuffer) else x
                  for x, differentiated in zip(packed, self.differentiated, strict=True)]
        del packed
        waiting, results = set(self.wanted), {number for number, uses in self.uses.items() if uses > 0}
        number = -1

        def take(tensor: Tensor) -> None:
            nonlocal number
            number += 1
            if number in waiting:
                waiting.remove(number)
                self.saved[number] = tensor.detach()
            if not waiting and not results:
                raise _Finished

        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(self.autocast)
            stack.enter_context(preserved_buffers(self.stage, self.piece.buffers))
            if self.random is not None:
                stack.enter_context(self.random.again())
            try:
                with saved_tensors_hooks(take, _never):
                    ys = self.piece.run(self.stage, *tree_unflatten(leaves, self.spec))
                for place in results:
                    self.results[place] = next(tensors_in(ys[place])).detach()
            except _Finished:
                pass


class PieceResult:
    """A result of a recomputed piece whose storage other pieces save."""

    def __init__(self, run: Recomputation, number: int) -> None:
        self.run, self.number = run, number

    @property
    def uses(self) -> int:
        """The number of outstanding uses."""
        return self.run.uses[self.number]

    @uses.setter
    def uses(self, value: int) -> None:
        self.run.uses[self.number] = value

    def fetch(self) -> torch.UntypedStorage:
        """The storage, for one use."""
        return self.run.fetch_result(self.number)

    def discard(self) -> None:
        """End one use."""
        self.run.discard_result(self.number)


class RecomputedTensor:
    """A tensor that a recomputed piece saves, by its number in the sequence of saves."""

    __slots__ = ("number", "run")

    def __init__(self, run: Recomputation, number: int) -> None:
        self.run, self.number = run, number

    def fetch(self) -> Tensor:
        """The tensor."""
        return self.run.fetch_saved(self.number)


class _Finished(Exception):
    """The second forward has computed all required tensors."""


def _never(packed: object) -> Tensor:
    raise AssertionError("a second forward has no backward")


def address_of(tensor: Tensor) -> int:
    """The address of a tensor's storage; 0 without data."""
    return tensor.untyped_storage().data_ptr()


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors of a nested structure."""
    if isinstance(values, Tensor):
        yield values
        return
    for leaf in tree_flatten(list(values) if not isinstance(values, list | tuple | dict | int | float | None)
                             else values)[0]:
        if isinstance(leaf, Tensor):
            yield leaf


#: The difference between the seeds of consecutive shares.
SHARE_SEED_STRIDE = 1_000_003


class RandomState:
    """The random state at one point of a forward: the states of torch's generators, and the seeds of seeded operators.
    """

    def __init__(self, seeded: Sequence[Seeded], device: torch.device, share: int) -> None:
        self.devices = [device] if device.type == "cuda" else []
        self.on_cpu, self.on_gpus = torch.get_rng_state(), [torch.cuda.get_rng_state(gpu) for gpu in self.devices]
        self.moments = [(moment, replace(moment, seed=moment.seed + share * SHARE_SEED_STRIDE)) for moment in {
            id(part.moment): part.moment for part in seeded}.values()]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Inside, restore this state: the same random numbers are drawn."""
        now = [replace(moment) for moment, _ in self.moments]
        with torch.random.fork_rng(self.devices):
            torch.set_rng_state(self.on_cpu)
            for device, state in zip(self.devices, self.on_gpus, strict=True):
                torch.cuda.set_rng_state(state, device)
            try:
                for moment, then in self.moments:
                    vars(moment).update(vars(then))
                yield
            finally:
                for (moment, _), own in zip(self.moments, now, strict=True):
                    vars(moment).update(vars(own))


@contextmanager
def preserved_buffers(stage: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Restore these buffers of ``stage`` on exit."""
    before = [(buffer, buffer.clone()) for name in names for buffer in [attribute_of(stage, name)]]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.data.copy_(value)  # without a new version, so that tensors saved elsewhere stay valid
