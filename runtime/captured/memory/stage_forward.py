"""The forward of a stage that keeps, recomputes and offloads saved tensors as decided, operator by operator.

The forward runs in pieces: consecutive operators with one decision. Hooks
(``torch.autograd.graph.saved_tensors_hooks``) receive the tensors that autograd saves, and identify the piece that
produced each by its storage, whichever operator saves it:

* from a kept piece: the tensor is saved unchanged;
* from an offloaded piece: its storage is copied to the host
  (:class:`~weft.runtime.captured.memory.packed.OffloadedStorage`) concurrently with computation, and its device memory
  is released after the next piece. The backward fetches it when needed, and then prefetches the storage offloaded
  before it;
* from a recomputed piece: only a handle is saved
  (:class:`~weft.runtime.captured.memory.recomputation.Recomputation`). When the backward first needs one of its
  tensors, the piece runs again on the same inputs and random numbers, as far as needed; tensors are matched by their
  number in the sequence of saves.

So a decision drops what an operator *produces*, not what it reads: dropping the result of a GELU drops the input that
the next linear layer would have saved. The inputs of a recomputed piece are kept, and stay on the device if another
recomputed piece produced them; otherwise both pieces would be recomputed together.

All this happens within the passes of the stage, so it works with any schedule, and measured costs of passes include it.
Without gradients the stage runs unchanged.

A piece reads parameters and buffers from the stage's module when it runs, so the module keeps its names and objects,
even if they are replaced later. Values without further readers are dropped within and between pieces.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import Graph, GraphModule, Node

from weft.runtime.captured.cut import OPERATOR
from weft.runtime.captured.memory.decisions import Decisions, Mode
from weft.runtime.captured.memory.packed import OffloadedStorage, Packed, SavedBuffer, StorageView, fetch, is_weight
from weft.runtime.captured.memory.recomputation import PieceResult, RandomState, Recomputation, address_of, tensors_in
from weft.runtime.captured.memory.shares import Range, Segment, part_of, range_of, require_equal
from weft.runtime.captured.metadata_reads import attribute_of
from weft.runtime.captured.purity import draws, written
from weft.runtime.train.moment import Seeded

#: The owner of a storage.
_Owner: TypeAlias = str | OffloadedStorage | PieceResult
_KEPT, _MOVING = "kept", "moving"


def apply_decisions(stage: GraphModule, decisions: Decisions, shares: Mapping[int, GraphModule]) -> GraphModule:
    """Make the forward of ``stage`` carry out ``decisions``; in place. ``shares``: the same stage captured for a share
    of the micro-batch, by number of shares, for co-shards.

    Parameters, buffers and their names do not change. Raises
    :class:`~weft.runtime.captured.captured.CaptureError` for a module that cannot be computed in shares.
    """
    pieces = segments_of(stage, decisions, shares)
    if any(piece.mode != "keep" for piece in pieces):
        output, = stage.graph.find_nodes(op="output")
        results = [node.name for node in output.args[0]]
        inputs = [node.name for node in stage.graph.find_nodes(op="placeholder")]
        read = {node.name: str(node.target) for node in output.args[0] if node.op == "get_attr"}
        stage.__dict__["forward"] = _Forward(stage, pieces, inputs, results, read)
        # A key that distinguishes stages with equal operators when their costs are measured.
        stage.__dict__["weft_memory"] = " ".join(f"{piece.mode}{piece.shares}:{len(piece.takes)}" for piece in pieces)
    return stage


class _Forward:
    """The forward that replaces that of a stage's module."""

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
        forward_pass = _ForwardPass(self.stage, self.seeded, values.values())
        for piece in self.pieces:
            forward_pass.run(piece, values)
        forward_pass.finish()
        values.update((name, attribute_of(self.stage, target)) for name, target in self.read.items())
        return tuple(values[name] for name in self.results)


class _ForwardPass:
    """One forward of a stage over one micro-batch. ``owners``: the owner of each live storage, by address."""

    def __init__(self, stage: nn.Module, seeded: Sequence[Seeded], inputs: Any) -> None:
        self.stage, self.seeded = stage, seeded
        self.owners: dict[int, _Owner] = {}
        for tensor in (*stage.parameters(), *stage.buffers(), *tensors_in(inputs)):
            self.owners[address_of(tensor)] = _KEPT
        self.buffers = {address_of(buffer) for buffer in stage.buffers()}
        self.fixed = dict(self.owners)  # inputs included: the caller keeps them alive during the forward
        self.last_offload: Callable[[], OffloadedStorage | None] = lambda: None
        self.leaving: list[OffloadedStorage] = []

    def run(self, piece: Segment, values: dict[str, Any]) -> None:
        """Run ``piece`` on ``values``, add its results, and drop values without further readers."""
        xs = [values[name] for name in piece.takes]
        ys = self._sharded(piece, xs) if piece.shares > 1 else self._unsharded(piece, xs)
        values.update(zip(piece.gives, ys, strict=True))
        del xs, ys
        for name in piece.drops:
            values.pop(name, None)
        self._settle(values)

    def random(self, device: torch.device, share: int) -> RandomState:
        """The current random state; shares have different seeds."""
        return RandomState(self.seeded, device, share)

    def finish(self) -> None:
        """Complete all copies to the host."""
        for offloaded in self.leaving:
            offloaded.finish_copy()
        self.leaving.clear()
        self.owners.clear()

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _unsharded(self, piece: Segment, xs: Sequence[Any]) -> Sequence[Any]:
        if piece.mode == "recompute":
            run = Recomputation(self, piece, xs)
            with saved_tensors_hooks(run.pack, fetch):
                ys = piece.run(self.stage, *xs)
            run.end_forward(ys)
            self._own([None if stays else run for stays in piece.stays], ys)
            return ys
        if piece.mode == "offload":
            with saved_tensors_hooks(self._move, fetch):
                ys = piece.run(self.stage, *xs)
            for tensor in tensors_in(ys):
                self.owners.setdefault(address_of(tensor), _MOVING)
            return ys
        if any(self.owners.get(address_of(tensor), _KEPT) is not _KEPT for tensor in tensors_in(xs)):
            with saved_tensors_hooks(self.hold, fetch):
                ys = piece.run(self.stage, *xs)
        else:
            ys = piece.run(self.stage, *xs)
        self._own([None] * len(ys), ys)
        return ys

    def _sharded(self, piece: Segment, xs: Sequence[Any]) -> list[Any]:
        """Run the piece share by share, each recomputed separately; the joined results are kept."""
        parts = [[x] * piece.shares if dim is None else torch.chunk(x, piece.shares, dim)
                 for x, dim in zip(xs, piece.cut, strict=True)]
        results: list[Sequence[Any]] = []
        for share, own in enumerate(zip(*parts, strict=True)):
            run = Recomputation(self, piece, own, share)
            with saved_tensors_hooks(run.pack, fetch), nullcontext() if run.random is None else run.random.again():
                results.append(piece.run(self.stage, *own))
            run.end_forward(())
        with saved_tensors_hooks(self.hold, fetch):
            ys = [torch.cat(list(each), dim) if dim is not None else each[0]
                  for each, dim in zip(zip(*results, strict=True), piece.joined, strict=True)]
        self._own([None] * len(ys), ys)
        return ys

    def _own(self, runs: Sequence[Recomputation | None], ys: Sequence[Any]) -> None:
        """Record the owner of new results; inputs among them keep their owners."""
        for i, (run, y) in enumerate(zip(runs, ys, strict=True)):
            for tensor in tensors_in(y):
                if address_of(tensor) not in self.owners:
                    self.owners[address_of(tensor)] = _KEPT if run is None else PieceResult(run, i)

    def _settle(self, values: Mapping[str, Any]) -> None:
        """Release offloaded storages, and stop tracking freed storages, as their addresses may be reused."""
        for offloaded in [offloaded for offloaded in self.leaving if offloaded.is_due]:
            offloaded.finish_copy()
            self.leaving.remove(offloaded)
        for offloaded in self.leaving:
            offloaded.start_copy()
            offloaded.is_due = True
        alive = {address_of(tensor) for tensor in tensors_in(list(values.values()))}
        self.owners = {**{place: owner for place, owner in self.owners.items() if place in alive or (
            isinstance(owner, OffloadedStorage) and owner.on_device is not None)}, **self.fixed}

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def hold(self, tensor: Tensor) -> Packed:
        """The packed form of ``tensor``, according to the owner of its storage."""
        place = address_of(tensor)
        owner = self.owners.get(place, _KEPT)
        if owner is _KEPT or not place:
            saved = tensor.detach()  # otherwise an operator that saves its own result would be a reference cycle
            return SavedBuffer(saved) if place in self.buffers else saved
        if owner is _MOVING:
            return self._move(tensor)
        assert not isinstance(owner, str)
        return StorageView(owner, tensor)

    def _move(self, tensor: Tensor) -> Packed:
        """The packed form of ``tensor`` in an offloaded piece: new storages are offloaded."""
        place = address_of(tensor)
        if place and self.owners.get(place, _MOVING) is _MOVING and not is_weight(tensor):
            offloaded = OffloadedStorage(tensor, self.last_offload)
            self.leaving.append(offloaded)
            self.last_offload = weakref.ref(offloaded)
            self.owners[place] = offloaded
        return self.hold(tensor)


@dataclass(frozen=True)
class _Piece:
    mode: Mode
    path: str | None
    nodes: tuple[Node, ...]
    takes: tuple[Node, ...]


def segments_of(stage: GraphModule, decisions: Decisions, shares: Mapping[int, GraphModule]) -> list[Segment]:
    """The pieces of ``stage`` in order, according to ``decisions``. ``shares``: the same stage captured for a share of
    the micro-batch, by number of shares.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a module that cannot be computed in shares.
    """
    pieces = [_Piece(mode, path, nodes, _taken(nodes)) for (mode, path), nodes in _runs(stage, decisions)]
    last: dict[Node, int] = {}
    for i, piece in enumerate(pieces):
        last.update(dict.fromkeys(piece.takes, i))
    output, = stage.graph.find_nodes(op="output")
    last.update(dict.fromkeys(output.all_input_nodes, len(pieces)))
    segments = []
    for i, piece in enumerate(pieces):
        gives = tuple(node for node in piece.nodes if last.get(node, -1) > i)
        stays = tuple(any(node in later.takes and (later.mode == "recompute" or i + 1 < k)
                          for k, later in enumerate(pieces) if k > i) for node in gives)
        segment = Segment(
            piece.mode, function_of(piece.nodes, piece.takes, gives), _names(piece.takes), _names(gives),
            tuple(node.name for node, end in last.items() if end == i and node.op != "get_attr"), stays,
            any(draws(captured_node(node)) for node in piece.nodes), _buffers(stage, piece.nodes))
        if piece.path is not None:
            count = decisions.shards[piece.path]
            part = part_of(stage, shares[count], Range(piece.path, count, piece.nodes, piece.takes, gives))
            segment = replace(segment, run=function_of(part.nodes, part.takes, part.gives), shares=count, cut=part.cut,
                              joined=part.joined)
            if not segment.random:
                require_equal(stage, function_of(piece.nodes, piece.takes, gives), segment, piece.path)
        segments.append(segment)
    return segments


def captured_node(node: Node) -> Node:
    """The node of the captured graph for a stage's node."""
    operator = node.meta.get(OPERATOR, node)
    assert isinstance(operator, Node)
    return operator


def function_of(nodes: Sequence[Node], takes: Sequence[Node], gives: Sequence[Node]) -> Callable[..., Sequence[Any]]:
    """A function of the stage's module and the values ``takes`` that computes ``nodes`` and returns ``gives``."""
    graph, env = Graph(), dict[Node, Node]()
    for node in takes:
        env[node] = graph.placeholder(node.name)
    for node in nodes:
        for read in node.all_input_nodes:
            if read.op == "get_attr" and read not in env:
                env[read] = graph.get_attr(str(read.target))
        env[node] = graph.node_copy(node, lambda arg: env[arg])
    graph.output(tuple(env[node] for node in gives))
    code = graph.python_code("self")
    namespace: dict[str, Any] = dict(code.globals)
    exec(compile(code.src, "<a stage's operators>", "exec"), namespace)  # as a GraphModule does with its code
    function: Callable[..., Sequence[Any]] = namespace["forward"]
    return function


def _runs(stage: GraphModule, decisions: Decisions) -> Iterator[tuple[tuple[Mode, str | None], tuple[Node, ...]]]:
    """Consecutive operators with one decision: a mode, and the path of the module that is computed in shares."""
    run: list[Node] = []
    decision: tuple[Mode, str | None] = ("keep", None)
    call: int | None = None
    ranges = {node: path for path in decisions.shards for node in range_of(stage, path)}
    for node in stage.graph.nodes:
        if node.op not in ("call_function", "call_module"):
            continue
        path = ranges.get(node)
        name = captured_node(node).name
        own: tuple[Mode, str | None] = (decisions.of(name) if path is None else "recompute", path)
        before, call = call, None if path is not None else decisions.calls.get(name)
        if run and (own != decision or call != before or own[0] == "offload"):  # offloads one by one, to release memory
            yield decision, tuple(run)
            run = []
        decision = own
        run.append(node)
    if run:
        yield decision, tuple(run)


def _taken(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The values that ``nodes`` read and do not produce."""
    own = set(nodes)
    return tuple(dict.fromkeys(arg for node in nodes for arg in node.all_input_nodes
                               if arg not in own and arg.op != "get_attr"))


def _names(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def _buffers(stage: GraphModule, nodes: Sequence[Node]) -> tuple[str, ...]:
    """The names of the buffers that ``nodes`` may write into."""
    names = {str(arg.target) for node in nodes if any(True for _ in written(captured_node(node)))
             for arg in node.all_input_nodes if arg.op == "get_attr"}
    return tuple(sorted(names - {name for name, _ in stage.named_parameters(remove_duplicate=False)}))
