"""A stage's graph in pieces: neighbouring operators of which one thing was decided, as functions of the stage.

A piece reads parameters and buffers from the stage's module when it runs, so that the module stays what it is: the same
names, the same objects, whoever replaces them later. Values that nothing reads any more are dropped inside a piece, and
between pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import Graph, GraphModule, Node

from weft.runtime.captured.cut import OPERATOR
from weft.runtime.captured.memory.decisions import Decisions, Mode
from weft.runtime.captured.memory.shares import Range, part_of, range_of, require_equal
from weft.runtime.captured.purity import draws, written

__all__ = ["Segment", "captured_node", "function_of", "segments_of"]

@dataclass(frozen=True)
class Segment:
    """Operators in a row. ``run(stage, *takes)`` gives a tuple of ``gives``; ``drops`` are the values that nothing
    reads after it. ``stays``: which of ``gives`` a later second forward starts from, so that they are not dropped.
    ``random``: whether random numbers are drawn. ``buffers``: the names of those that are written to. ``shares``: how
    many shares of the batch one after another make the result (1: it is computed as it stands); then ``cut`` and
    ``joined`` say along which dimension each of ``takes`` is cut and each of ``gives`` is put together (``None``: it is
    the same for all shares)."""

    mode: Mode
    run: Callable[..., Sequence[Any]]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    drops: tuple[str, ...]
    stays: tuple[bool, ...]
    random: bool = False
    buffers: tuple[str, ...] = ()
    shares: int = 1
    cut: tuple[int | None, ...] = ()
    joined: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class _Piece:
    mode: Mode
    path: str | None
    nodes: tuple[Node, ...]
    takes: tuple[Node, ...]


def segments_of(stage: GraphModule, decisions: Decisions, shares: Mapping[int, GraphModule]) -> list[Segment]:
    """The pieces of ``stage`` in order, as ``decisions`` has them. ``shares``: the same stage for a share of the
    micro-batch, by how many shares there are.

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
    """What a stage's node is in the captured graph."""
    found = node.meta.get(OPERATOR, node)
    assert isinstance(found, Node)
    return found


def function_of(nodes: Sequence[Node], takes: Sequence[Node], gives: Sequence[Node]) -> Callable[..., Sequence[Any]]:
    """A function of a module and ``takes`` that computes ``nodes`` and gives a tuple of ``gives``."""
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
    exec(compile(code.src, "<a stage's operators>", "exec"), made)  # what a GraphModule does with its own code
    function: Callable[..., Sequence[Any]] = made["forward"]
    return function


def _runs(stage: GraphModule, decisions: Decisions) -> Iterator[tuple[tuple[Mode, str | None], tuple[Node, ...]]]:
    """Neighbouring operators with what was decided of them: a mode, and the module that is computed in shares."""
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
        if run and (own != said or call != before or own[0] == "offload"):  # one by one: memory is given back meanwhile
            yield said, tuple(run)
            run = []
        said = own
        run.append(node)
    if run:
        yield said, tuple(run)


def _taken(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The values that ``nodes`` read and do not make."""
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
