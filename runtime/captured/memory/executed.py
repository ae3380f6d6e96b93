"""A stage that keeps, recomputes and offloads operator by operator, as decided, while it trains.

A stage's forward runs piece by piece. Tensors that autograd saves are passed to hooks
(``torch.autograd.graph.saved_tensors_hooks``), which identify by its memory the piece that made each, whatever saves
it:

* of a kept piece: it is saved as it is;
* of an offloaded one: its memory is copied to the host (:class:`~weft.runtime.captured.memory.held.Away`), beside
  computation, and released at the end of the next piece; the backward fetches it where needed, and then begins with
  the one before;
* of a recomputed one: only the recomputation is saved
  (:class:`~weft.runtime.captured.memory.second_run.SecondRun`). Where the backward first needs any of it, the piece
  runs again, on the same inputs and random numbers, no further than needed; its saved tensors are taken at the same
  places in the sequence of saves.

So what is dropped is what an operator *makes*, not what it reads: dropping the result of an activation drops what the
next linear layer would have saved. Inputs of a recomputed piece are kept, and stay on the device where another
recomputed piece made them, or the two would be recomputed together.

Everything happens within the passes of the stage, so that any schedule can run it, and the cost of passes is measured
as it is. Without gradients the stage runs unchanged.

A stage's graph in pieces: neighbouring operators with one decision, as functions of the stage.

A piece reads parameters and buffers from the stage's module when it runs, so that the module keeps its names and
objects, even if they are replaced later. Values without further readers are dropped inside a piece, and between pieces.
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
from weft.runtime.captured.looks import attribute_of
from weft.runtime.captured.memory.decisions import Decisions, Mode
from weft.runtime.captured.memory.held import AbsentView, Away, Held, Still, fetch
from weft.runtime.captured.memory.second_run import RandomState, Result, SecondRun, address_of, is_weight, tensors_in
from weft.runtime.captured.memory.shares import Range, Segment, part_of, range_of, require_equal
from weft.runtime.captured.purity import draws, written
from weft.runtime.train.moment import Seeded

#: The owner of a memory.
_Owner: TypeAlias = str | Away | Result
_KEPT, _MOVING = "kept", "moving"


def executed(stage: GraphModule, decisions: Decisions, shares: Mapping[int, GraphModule] | None = None) -> GraphModule:
    """``stage``, changed in place so that its forward carries out ``decisions``. ``shares``: the same stage for a share
    of the micro-batch, by number of shares, where ``decisions`` has co-shards.

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
        # Distinguishes stages for measurements.
        stage.__dict__["weft_memory"] = " ".join(f"{piece.mode}{piece.shares}:{len(piece.takes)}" for piece in pieces)
    return stage


class _Forward:
    """Replaces the forward of a stage's module."""

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
        values.update((name, attribute_of(self.stage, target)) for name, target in self.read.items())
        return tuple(values[name] for name in self.results)


class _Passage:
    """One forward of a stage over one micro-batch: the owner of each live memory, by address."""

    def __init__(self, stage: nn.Module, seeded: Sequence[Seeded], inputs: Any) -> None:
        self.stage, self.seeded = stage, seeded
        self.owners: dict[int, _Owner] = {}
        for tensor in (*stage.parameters(), *stage.buffers(), *tensors_in(inputs)):
            self.owners[address_of(tensor)] = _KEPT
        self.buffers = {address_of(buffer) for buffer in stage.buffers()}
        self.fixed = dict(self.owners)  # inputs too: the caller of the stage keeps them until the forward is over
        self.moved: Callable[[], Away | None] = lambda: None  # the last one moved
        self.leaving: list[Away] = []

    def run(self, piece: Segment, values: dict[str, Any]) -> None:
        """Run ``piece`` on ``values``, and add its results to them."""
        xs = [values[name] for name in piece.takes]
        ys = self._sharded(piece, xs) if piece.shares > 1 else self._whole(piece, xs)
        values.update(zip(piece.gives, ys, strict=True))
        del xs, ys
        for name in piece.drops:
            values.pop(name, None)
        self._settle(values)

    def random(self, device: torch.device, share: int) -> RandomState:
        """The current random state; a different one for each of several shares."""
        return RandomState(self.seeded, device, share)

    def finish(self) -> None:
        """Complete all offloads to the host."""
        for away in self.leaving:
            away.leave()
        self.leaving.clear()
        self.owners.clear()

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _whole(self, piece: Segment, xs: Sequence[Any]) -> Sequence[Any]:
        if piece.mode == "recompute":
            run = SecondRun(self, piece, xs)
            with saved_tensors_hooks(run.put, fetch):
                ys = piece.run(self.stage, *xs)
            run.begun(ys)
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
        """The piece share by share, each recomputed by itself; their joint results are kept."""
        parts = [[x] * piece.shares if dim is None else torch.chunk(x, piece.shares, dim)
                 for x, dim in zip(xs, piece.cut, strict=True)]
        found: list[Sequence[Any]] = []
        for share, own in enumerate(zip(*parts, strict=True)):
            run = SecondRun(self, piece, own, share)
            with saved_tensors_hooks(run.put, fetch), nullcontext() if run.random is None else run.random.again():
                found.append(piece.run(self.stage, *own))
            run.begun(())
        with saved_tensors_hooks(self.hold, fetch):
            ys = [torch.cat(list(each), dim) if dim is not None else each[0]
                  for each, dim in zip(zip(*found, strict=True), piece.joined, strict=True)]
        self._own([None] * len(ys), ys)
        return ys

    def _own(self, runs: Sequence[SecondRun | None], ys: Sequence[Any]) -> None:
        """Make a piece the owner of its new results; inputs keep their owners."""
        for i, (run, y) in enumerate(zip(runs, ys, strict=True)):
            for tensor in tensors_in(y):
                if address_of(tensor) not in self.owners:
                    self.owners[address_of(tensor)] = _KEPT if run is None else Result(run, i)

    def _settle(self, values: Mapping[str, Any]) -> None:
        """Release copied memory, and forget freed memory: its address may soon be reused."""
        for away in [away for away in self.leaving if away.old]:
            away.leave()
            self.leaving.remove(away)
        for away in self.leaving:
            away.begin()
            away.old = True
        alive = {address_of(tensor) for tensor in tensors_in(list(values.values()))}
        self.owners = {**{place: owner for place, owner in self.owners.items() if place in alive or (
            isinstance(owner, Away) and owner.here is not None)}, **self.fixed}

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def hold(self, tensor: Tensor) -> Held:
        """The stand-in for ``tensor``, by the owner of its memory."""
        place = address_of(tensor)
        owner = self.owners.get(place, _KEPT)
        if owner is _KEPT or not place:
            held = tensor.detach()  # an operator that saves its own result would keep itself alive until its backward
            return Still(held) if place in self.buffers else held
        if owner is _MOVING:
            return self._move(tensor)
        assert not isinstance(owner, str)
        return AbsentView(owner, tensor)

    def _move(self, tensor: Tensor) -> Held:
        """The same where new memory is to be moved."""
        place = address_of(tensor)
        if place and self.owners.get(place, _MOVING) is _MOVING and not is_weight(tensor):
            away = Away(tensor, self.moved)
            self.leaving.append(away)
            self.moved = weakref.ref(away)
            self.owners[place] = away
        return self.hold(tensor)


@dataclass(frozen=True)
class _Piece:
    mode: Mode
    path: str | None
    nodes: tuple[Node, ...]
    takes: tuple[Node, ...]


def segments_of(stage: GraphModule, decisions: Decisions, shares: Mapping[int, GraphModule]) -> list[Segment]:
    """The pieces of ``stage`` in order, as in ``decisions``. ``shares``: the same stage for a share of the micro-batch,
    by number of shares.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a part that cannot be computed in shares.
    """
    pieces = [_Piece(mode, path, nodes, _taken(nodes)) for (mode, path), nodes in _runs(stage, decisions)]
    last: dict[Node, int] = {}
    for i, piece in enumerate(pieces):
        last.update(dict.fromkeys(piece.takes, i))
    output, = stage.graph.find_nodes(op="output")
    last.update(dict.fromkeys(output.all_input_nodes, len(pieces)))
    found = []
    for i, piece in enumerate(pieces):
        gives = tuple(node for node in piece.nodes if last.get(node, -1) > i)
        stays = tuple(any(node in later.takes and (later.mode == "recompute" or i + 1 < k)
                          for k, later in enumerate(pieces) if k > i) for node in gives)
        made = Segment(
            piece.mode, function_of(piece.nodes, piece.takes, gives), _names(piece.takes), _names(gives),
            tuple(node.name for node, end in last.items() if end == i and node.op != "get_attr"), stays,
            any(draws(captured_node(node)) for node in piece.nodes), _buffers(stage, piece.nodes))
        if piece.path is not None:
            count = decisions.shards[piece.path]
            part = part_of(stage, shares[count], Range(piece.path, count, piece.nodes, piece.takes, gives))
            made = replace(made, run=function_of(part.nodes, part.takes, part.gives), shares=count, cut=part.cut,
                           joined=part.joined)
            if not made.random:
                require_equal(stage, function_of(piece.nodes, piece.takes, gives), made, piece.path)
        found.append(made)
    return found


def captured_node(node: Node) -> Node:
    """The node of the captured graph for a stage's node."""
    found = node.meta.get(OPERATOR, node)
    assert isinstance(found, Node)
    return found


def function_of(nodes: Sequence[Node], takes: Sequence[Node], gives: Sequence[Node]) -> Callable[..., Sequence[Any]]:
    """A function of a module and ``takes`` that computes ``nodes`` and returns a tuple of ``gives``."""
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
    made: dict[str, Any] = dict(code.globals)
    exec(compile(code.src, "<a stage's operators>", "exec"), made)  # as a GraphModule does with its own code
    function: Callable[..., Sequence[Any]] = made["forward"]
    return function


def _runs(stage: GraphModule, decisions: Decisions) -> Iterator[tuple[tuple[Mode, str | None], tuple[Node, ...]]]:
    """Neighbouring operators with one decision: a mode, and the module that is computed in shares."""
    run: list[Node] = []
    said: tuple[Mode, str | None] = ("keep", None)
    call: int | None = None
    ranges = {node: path for path in decisions.shards for node in range_of(stage, path)}
    for node in stage.graph.nodes:
        if node.op not in ("call_function", "call_module"):
            continue
        path = ranges.get(node)
        name = captured_node(node).name
        own: tuple[Mode, str | None] = (decisions.of(name) if path is None else "recompute", path)
        before, call = call, None if path is not None else decisions.calls.get(name)
        if run and (own != said or call != before or own[0] == "offload"):  # one by one: memory is released meanwhile
            yield said, tuple(run)
            run = []
        said = own
        run.append(node)
    if run:
        yield said, tuple(run)


def _taken(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The values that ``nodes`` read but do not make."""
    own = set(nodes)
    return tuple(dict.fromkeys(arg for node in nodes for arg in node.all_input_nodes
                               if arg not in own and arg.op != "get_attr"))


def _names(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def _buffers(stage: GraphModule, nodes: Sequence[Node]) -> tuple[str, ...]:
    """The names of the buffers that ``nodes`` may write into."""
    found = {str(arg.target) for node in nodes if any(True for _ in written(captured_node(node)))
             for arg in node.all_input_nodes if arg.op == "get_attr"}
    return tuple(sorted(found - {name for name, _ in stage.named_parameters(remove_duplicate=False)}))
