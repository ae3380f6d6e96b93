"""A stage that keeps, recomputes and offloads operator by operator, as decided, while it trains.

A stage's forward runs piece by piece (:mod:`~weft.runtime.captured.memory.segments`). What autograd saves meanwhile is
handed to hooks (``torch.autograd.graph.saved_tensors_hooks``), which see by its memory which piece made it, whoever
saves it:

* of a kept piece: it is saved as it is;
* of an offloaded one: its memory is copied to the host (:class:`_Away`), beside what is computed, and given back at
  the end of the next piece; the backward fetches it where it needs it, and begins with the one before;
* of a recomputed one: nothing is saved but what to do (:class:`_Run`). Where the backward first needs any of it, the
  piece runs again, on the same inputs and random numbers, no further than needed; what it saves then is taken at the
  same places in the row of all that it saves.

So what is dropped is what an operator *makes*, not what it reads: dropping the result of an activation drops what the
next linear layer would have saved. Inputs of a recomputed piece are held, and stay on the device where another
recomputed piece made them, or the two would be recomputed together.

Everything happens within the passes of the stage, so that any schedule can run it, and what passes cost is measured as
it is. Without gradients the stage is its plain self.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_unflatten

from weft.runtime.captured.memory.decisions import Decisions
from weft.runtime.captured.memory.segments import Segment, segments_of
from weft.runtime.train.moment import Seeded
from weft.runtime.train.offload import CopyEngine, Copying

__all__ = ["executed"]

#: How far the seeds of shares are from each other.
FAR = 1_000_003
#: What a hook gives in place of a tensor, and what stands for the tensor until the backward.
Held: TypeAlias = "Tensor | _View | _Inner | _Still"


def executed(stage: GraphModule, decisions: Decisions, shares: Mapping[int, GraphModule] | None = None) -> GraphModule:
    """``stage``, changed in place so that its forward does what ``decisions`` says of its operators. ``shares``: the
    same stage for a share of the micro-batch, by how many shares there are, where ``decisions`` has co-shards.

    Parameters, buffers and their names stay. Raises :class:`~weft.runtime.captured.captured.CaptureError` for a part
    that cannot be computed in shares.
    """
    pieces = segments_of(stage, decisions, shares or {})
    if any(piece.mode != "keep" for piece in pieces):
        output, = stage.graph.find_nodes(op="output")
        results = [node.name for node in output.args[0]]
        inputs = [node.name for node in stage.graph.find_nodes(op="placeholder")]
        read = {node.name: str(node.target) for node in output.args[0] if node.op == "get_attr"}
        stage.__dict__["forward"] = _Forward(stage, pieces, inputs, results, read)
        # What tells stages apart for whom it measures.
        stage.__dict__["weft_memory"] = " ".join(f"{piece.mode}{piece.shares}:{len(piece.takes)}" for piece in pieces)
    return stage


class _Forward:
    """What a stage's module calls in place of its own forward."""

    def __init__(self, stage: GraphModule, pieces: Sequence[Segment], inputs: Sequence[str],
                 results: Sequence[str], read: Mapping[str, str]) -> None:
        self.stage, self.pieces, self.inputs, self.results = stage, pieces, inputs, results
        self.read = read  # results that are weights or buffers of the stage
        self.seeded = [part for part in stage.modules() if isinstance(part, Seeded)]

    def __call__(self, *xs: Tensor) -> tuple[Any, ...]:
        """The stage's outputs."""
        if not torch.is_grad_enabled() or any(isinstance(x, FakeTensor) for x in xs):
            plain: tuple[Any, ...] = type(self.stage).forward(self.stage, *xs)
            return plain
        values: dict[str, Any] = dict(zip(self.inputs, xs, strict=True))
        del xs
        passage = _Passage(self.stage, self.seeded, values.values())
        for piece in self.pieces:
            passage.run(piece, values)
        passage.finish()
        values.update((name, _attribute(self.stage, target)) for name, target in self.read.items())
        return tuple(values[name] for name in self.results)


class _Passage:
    """One forward of a stage over one micro-batch: whose memory is whose, by the address of each that is alive."""

    def __init__(self, stage: nn.Module, seeded: Sequence[Seeded], inputs: Any) -> None:
        self.stage, self.seeded = stage, seeded
        self.owners: dict[int, _Owner] = {}
        for tensor in (*stage.parameters(), *stage.buffers(), *_tensors(inputs)):
            self.owners[_address(tensor)] = _KEPT
        self.buffers = {_address(buffer) for buffer in stage.buffers()}
        self.fixed = dict(self.owners)  # inputs too: whoever runs the stage holds them until the forward is over
        self.moved: Callable[[], _Away | None] = lambda: None  # what was moved last
        self.leaving: list[_Away] = []

    def run(self, piece: Segment, values: dict[str, Any]) -> None:
        """Run ``piece`` on ``values``, and put there what it gives."""
        xs = [values[name] for name in piece.takes]
        ys = self._sharded(piece, xs) if piece.shares > 1 else self._whole(piece, xs)
        values.update(zip(piece.gives, ys, strict=True))
        del xs, ys
        for name in piece.drops:
            values.pop(name, None)
        self._settle(values)

    def random(self, device: torch.device, share: int) -> _Random:
        """What random numbers are drawn from now; other ones for each of several shares."""
        return _Random(self.seeded, device, share)

    def finish(self) -> None:
        """What is offloaded is on the host from here on."""
        for away in self.leaving:
            away.leave()
        self.leaving.clear()
        self.owners.clear()

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _whole(self, piece: Segment, xs: Sequence[Any]) -> Sequence[Any]:
        if piece.mode == "recompute":
            run = _Run(self, piece, xs)
            with saved_tensors_hooks(run.put, _fetch):
                ys = piece.run(self.stage, *xs)
            run.begun(ys)
            self._own([None if stays else run for stays in piece.stays], ys)
            return ys
        if piece.mode == "offload":
            with saved_tensors_hooks(self._move, _fetch):
                ys = piece.run(self.stage, *xs)
            for tensor in _tensors(ys):
                self.owners.setdefault(_address(tensor), _MOVING)
            return ys
        if any(self.owners.get(_address(tensor), _KEPT) is not _KEPT for tensor in _tensors(xs)):
            with saved_tensors_hooks(self.hold, _fetch):
                ys = piece.run(self.stage, *xs)
        else:
            ys = piece.run(self.stage, *xs)
        self._own([None] * len(ys), ys)
        return ys

    def _sharded(self, piece: Segment, xs: Sequence[Any]) -> list[Any]:
        """The piece share by share, each recomputed by itself; what they make together is kept."""
        parts = [[x] * piece.shares if dim is None else torch.chunk(x, piece.shares, dim)
                 for x, dim in zip(xs, piece.cut, strict=True)]
        found: list[Sequence[Any]] = []
        for share, own in enumerate(zip(*parts, strict=True)):
            run = _Run(self, piece, own, share)
            with saved_tensors_hooks(run.put, _fetch), nullcontext() if run.random is None else run.random.again():
                found.append(piece.run(self.stage, *own))
            run.begun(())
        with saved_tensors_hooks(self.hold, _fetch):
            ys = [torch.cat(list(each), dim) if dim is not None else each[0]
                  for each, dim in zip(zip(*found, strict=True), piece.joined, strict=True)]
        self._own([None] * len(ys), ys)
        return ys

    def _own(self, runs: Sequence[_Run | None], ys: Sequence[Any]) -> None:
        """What a piece has made is its own; what it was given, as it was."""
        for i, (run, y) in enumerate(zip(runs, ys, strict=True)):
            for tensor in _tensors(y):
                if _address(tensor) not in self.owners:
                    self.owners[_address(tensor)] = _KEPT if run is None else _Result(run, i)

    def _settle(self, values: Mapping[str, Any]) -> None:
        """Give back what has been copied, and forget memory that is no more: its address may be another's soon."""
        for away in [away for away in self.leaving if away.old]:
            away.leave()
            self.leaving.remove(away)
        for away in self.leaving:
            away.begin()
            away.old = True
        alive = {_address(tensor) for tensor in _tensors(list(values.values()))}
        self.owners = {**{place: owner for place, owner in self.owners.items() if place in alive or (
            isinstance(owner, _Away) and owner.here is not None)}, **self.fixed}

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def hold(self, tensor: Tensor) -> Held:
        """What stands for ``tensor``, by who made its memory."""
        place = _address(tensor)
        owner = self.owners.get(place, _KEPT)
        if owner is _KEPT or not place:
            held = tensor.detach()  # an operator that saves its own result would hold itself until its backward
            return _Still(held) if place in self.buffers else held
        if owner is _MOVING:
            return self._move(tensor)
        assert not isinstance(owner, str)
        return _View(owner, tensor)

    def _move(self, tensor: Tensor) -> Held:
        """The same where what is new is to be moved."""
        place = _address(tensor)
        if place and self.owners.get(place, _MOVING) is _MOVING and not _is_weight(tensor):
            away = _Away(tensor, self.moved)
            self.leaving.append(away)
            self.moved = weakref.ref(away)
            self.owners[place] = away
        return self.hold(tensor)


class _Away:
    """One memory that is copied to the host at once, and back when it is fetched. ``uses``: how often that will be;
    ``before``: the memory that was moved before this one, if it is still wanted, which comes back after it."""

    def __init__(self, tensor: Tensor, before: Callable[[], _Away | None]) -> None:
        self.engine = _engine(tensor.device)
        self.here: Tensor | None = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
            tensor.untyped_storage())
        self.copying: Copying | None = None
        self.there: Any = None
        self.uses, self.old, self.coming = 0, False, list[Tensor]()
        self.before = before

    def begin(self) -> None:
        """Begin to copy it, if that has not begun: its operator, which may write one part of it after another, has
        run."""
        if self.there is None:
            assert self.here is not None
            self.there, self.copying = self.engine.to_host([self.here])

    def leave(self) -> None:
        """It is on the host now; the device's memory is given back."""
        self.begin()
        assert self.copying is not None
        self.copying.wait()
        self.here = self.copying = None

    def come(self) -> None:
        """Begin to copy it back, if that has not begun."""
        if self.here is None and self.copying is None and self.uses:
            self.coming, self.copying = self.engine.to_device(self.there)

    def fetch(self) -> torch.UntypedStorage:
        """Its memory on the device, for one of its uses."""
        if self.copying is not None and self.here is not None:
            self.leave()  # the forward was left by an error
        self.come()
        if self.copying is not None:
            self.copying.wait()
            self.here, self.coming, self.copying = self.coming[0], [], None
            self.engine.release(self.there)
            if (before := self.before()) is not None:
                before.come()
        assert self.here is not None
        memory = self.here.untyped_storage()
        self.forget()
        return memory

    def forget(self) -> None:
        """One use is over."""
        self.uses -= 1
        if not self.uses and self.copying is None and self.there is not None:
            self.here = None


class _Run:
    """One piece of one forward that will be run again."""

    def __init__(self, passage: _Passage, piece: Segment, xs: Sequence[Any], share: int = 0) -> None:
        self.passage, self.piece, self.stage = passage, piece, passage.stage
        self.wanted: set[int] = set()  # of all that is saved, by number, what is made inside
        self.uses: Counter[int] = Counter()  # of its results, by number, how often one is fetched
        self.saved: dict[int, Tensor] = {}
        self.results: dict[int, Tensor] = {}
        self.count = 0
        leaves, self.spec = tree_flatten(tuple(xs))
        self.differentiated = [isinstance(x, Tensor) and x.requires_grad for x in leaves]
        self.inputs: list[Any] | None = [passage.hold(x) if isinstance(x, Tensor) else x for x in leaves]
        self.device = next((x.device for x in leaves if isinstance(x, Tensor)), torch.device("cpu"))
        self.random = passage.random(self.device, share) if piece.random else None
        kind = self.device.type
        self.autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind),
                                       cache_enabled=False)

    def put(self, tensor: Tensor) -> Held:
        """What stands for a tensor that the piece saves: its place in the row, where it was made inside."""
        number, self.count = self.count, self.count + 1
        place = _address(tensor)
        if not place or place in self.passage.owners or _is_weight(tensor):
            return self.passage.hold(tensor)
        self.wanted.add(number)
        return _Inner(self, number)

    def begun(self, ys: Sequence[Any]) -> None:
        """The first forward is over."""
        self.passage = None  # type: ignore[assignment]  # and its memory is nobody's business any more
        if not self.wanted and not self.piece.gives:
            self.inputs = None

    def fetch_saved(self, number: int) -> Tensor:
        """What was saved at one place."""
        if number not in self.saved:
            self._again()
        return self.saved.pop(number)

    def fetch_result(self, number: int) -> torch.UntypedStorage:
        """The memory of one result, for one of its uses."""
        if number not in self.results:
            self._again()
        memory = self.results[number].untyped_storage()
        self.uses[number] -= 1
        if not self.uses[number]:
            del self.results[number]
        return memory

    def forget_result(self, number: int) -> None:
        """One use of a result that nobody fetches any more."""
        self.uses[number] -= 1
        if not self.uses[number]:
            self.results.pop(number, None)

    def _again(self) -> None:
        if self.inputs is None:
            raise RuntimeError(_TWICE)
        held, self.inputs = self.inputs, None
        leaves = [_fetch(x).detach().requires_grad_(owed) if isinstance(x, Tensor | _View | _Inner | _Still) else x
                  for x, owed in zip(held, self.differentiated, strict=True)]
        del held
        waiting, results = set(self.wanted), {number for number, uses in self.uses.items() if uses > 0}
        number = -1

        def take(tensor: Tensor) -> None:
            nonlocal number
            number += 1
            if number in waiting:
                waiting.remove(number)
                self.saved[number] = tensor.detach()
            if not waiting and not results:
                raise _Enough

        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(self.autocast)
            stack.enter_context(_unwritten(self.stage, self.piece.buffers))
            if self.random is not None:
                stack.enter_context(self.random.again())
            try:
                with saved_tensors_hooks(take, _never):
                    ys = self.piece.run(self.stage, *tree_unflatten(leaves, self.spec))
                for place in results:
                    self.results[place] = _only(ys[place]).detach()
            except _Enough:
                pass


class _Result:
    """One result of a piece that is recomputed, whose memory others save."""

    def __init__(self, run: _Run, number: int) -> None:
        self.run, self.number = run, number

    @property
    def uses(self) -> int:
        """How often it will be fetched."""
        return self.run.uses[self.number]

    @uses.setter
    def uses(self, value: int) -> None:
        self.run.uses[self.number] = value

    def fetch(self) -> torch.UntypedStorage:
        """Its memory, for one of its uses."""
        return self.run.fetch_result(self.number)

    def forget(self) -> None:
        """One use is over."""
        self.run.forget_result(self.number)


_Owner: TypeAlias = "str | _Away | _Result"
_KEPT, _MOVING = "kept", "moving"
_TWICE = "what a stage had recomputed or offloaded was asked for twice: it goes backward once for each forward"


class _View:
    """A tensor as a view of a memory that is not there now: one use of it, fetched once or never."""

    __slots__ = ("device", "dtype", "memory", "offset", "size", "stride")

    def __init__(self, memory: _Away | _Result, tensor: Tensor) -> None:
        memory.uses += 1
        self.memory: _Away | _Result | None = memory
        self.dtype, self.device = tensor.dtype, tensor.device
        self.size, self.stride, self.offset = tensor.shape, tensor.stride(), int(tensor.storage_offset())

    def fetch(self) -> Tensor:
        """The tensor."""
        if self.memory is None:
            raise RuntimeError(_TWICE)
        memory, self.memory = self.memory, None
        return torch.empty(0, dtype=self.dtype, device=self.device).set_(
            memory.fetch(), self.offset, self.size, self.stride)

    def __del__(self) -> None:
        if self.memory is not None:
            self.memory.forget()


class _Still:
    """A buffer, of which torch asks no more whether it has been written to, as hooks are there."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor, tensor._version

    def fetch(self) -> Tensor:
        """The tensor, as it was saved."""
        if self.tensor._version != self.version:
            raise RuntimeError(f"a buffer of shape {tuple(self.tensor.shape)} has been written to between the forward "
                               "and the backward of a micro-batch that need its numbers: let the model read a clone "
                               "of it")
        return self.tensor


class _Inner:
    """What a recomputed piece saved at one place."""

    __slots__ = ("number", "run")

    def __init__(self, run: _Run, number: int) -> None:
        self.run, self.number = run, number

    def fetch(self) -> Tensor:
        """The tensor."""
        return self.run.fetch_saved(self.number)


class _Enough(Exception):
    """All that a second forward is for is there."""


def _fetch(held: Held) -> Tensor:
    return held if isinstance(held, Tensor) else held.fetch()


def _never(held: object) -> Tensor:
    raise AssertionError("a second forward has no backward")


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
        return
    for leaf in tree_flatten(list(values) if not isinstance(values, list | tuple | dict | int | float | None)
                             else values)[0]:
        if isinstance(leaf, Tensor):
            yield leaf


def _only(value: Any) -> Tensor:
    return next(_tensors(value))


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


class _Random:
    """What random numbers are drawn from at one point of a forward: torch's generators, and the moment of operators
    with seeds of their own."""

    def __init__(self, seeded: Sequence[Seeded], device: torch.device, share: int) -> None:
        self.devices = [device] if device.type == "cuda" else []
        self.here, self.there = torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in self.devices]
        self.moments = [(moment, replace(moment, seed=moment.seed + share * FAR)) for moment in {
            id(part.moment): part.moment for part in seeded}.values()]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Whatever runs inside draws what was drawn then."""
        now = [replace(moment) for moment, _ in self.moments]
        with torch.random.fork_rng(self.devices):
            torch.set_rng_state(self.here)
            for device, state in zip(self.devices, self.there, strict=True):
                torch.cuda.set_rng_state(state, device)
            try:
                for moment, then in self.moments:
                    vars(moment).update(vars(then))
                yield
            finally:
                for (moment, _), own in zip(self.moments, now, strict=True):
                    vars(moment).update(vars(own))


@contextmanager
def _unwritten(stage: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Whatever is written into these buffers inside, afterwards they are as they were."""
    before = [(buffer, buffer.clone()) for name in names for buffer in [_attribute(stage, name)]]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.data.copy_(value)  # for torch, nothing has been written: what others have saved still holds


def _attribute(stage: nn.Module, name: str) -> Tensor:
    value: Any = stage
    for step in name.split("."):
        value = getattr(value, step)
    found: Tensor = value
    return found


_ENGINES: dict[torch.device, CopyEngine] = {}


def _engine(device: torch.device) -> CopyEngine:
    """The one that copies for all stages on ``device``."""
    if device not in _ENGINES:
        _ENGINES[device] = CopyEngine(device)
    return _ENGINES[device]
