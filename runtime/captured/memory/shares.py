"""Co-sharding: a module of a stage computed in equal shares of its batch, one after another.

A captured graph has the batch size as constants of its operators. So the model is captured again for a share of the
micro-batch: the same operators with the constants of a share. Comparing the shapes of values in both graphs shows which
values are cut, and along which dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from weft.runtime.captured.captured import CaptureError, is_item, tensors, where
from weft.runtime.captured.cut import OPERATOR
from weft.runtime.captured.memory.decisions import Mode, in_module
from weft.runtime.captured.purity import STATISTICS, operator_name, written

#: The tolerance between results of shares and of the full batch, by dtype: kernels sum in another order.
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-3}


@dataclass(frozen=True)
class Range:
    """Consecutive operators of a stage, of the module at ``path``, to be computed in ``count`` shares."""

    path: str
    count: int
    nodes: Sequence[Node]
    takes: Sequence[Node]
    gives: Sequence[Node]


@dataclass(frozen=True)
class ShareGraph:
    """The operators of a :class:`Range` in the graph of a share. ``cut``, ``joined``: the dimension along which each of
    ``takes`` is cut and each of ``gives`` is joined (``None``: no tensor, or the same for all shares)."""

    nodes: tuple[Node, ...]
    takes: tuple[Node, ...]
    gives: tuple[Node, ...]
    cut: tuple[int | None, ...]
    joined: tuple[int | None, ...]


@dataclass(frozen=True)
class Segment:
    """A piece of a stage: consecutive operators. ``run(stage, *takes)`` returns a tuple of ``gives``. ``drops``: the
    values without later readers. ``stays``: which of ``gives`` are kept, as a later recomputation starts from them.
    ``random``: whether random numbers are drawn. ``buffers``: the names of mutated buffers. ``shares``: the number of
    shares of the batch (1: not co-sharded); ``cut`` and ``joined`` as in :class:`ShareGraph`."""

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


def range_of(stage: GraphModule, path: str) -> list[Node]:
    """The operators of ``stage`` from the first to the last of the module at ``path``; empty if the stage has none.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` if operators of other modules lie between them.
    """
    calls = [node for node in stage.graph.nodes if node.op in ("call_function", "call_module")]
    inside = [i for i, node in enumerate(calls) if in_module(node, path)]
    if not inside:
        return []
    operators = calls[inside[0]:inside[-1] + 1]
    for node in operators:
        if not in_module(node, path):
            raise CaptureError(f"co_shard names {path!r}, but the operator {node.name}{where(node)} runs between those "
                               "of that module: name a module that runs at one go")
    return operators


def part_of(stage: GraphModule, share: GraphModule, whole: Range) -> ShareGraph:
    """The operators of ``whole``, a range of ``stage``, in ``share``, the stage captured for a share.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for operators that mix samples.
    """
    there = {node.name: node for node in share.graph.nodes}
    for node in (*whole.nodes, *whole.takes):
        if node.name not in there or there[node.name].target != node.target:
            raise CaptureError(f"co_shard: a {whole.count}th of the micro-batch runs other operators than the whole, "
                               f"first {node.name}{where(node)}: take branches on the batch's size out of the model")
    cut = tuple(_dimension(node, there[node.name], whole) for node in whole.takes)
    if all(dim is None for dim in cut):
        raise CaptureError(f"co_shard names {whole.path!r}, but nothing that it is given has the batch's size")
    _require_separate(whole, there, {node for node, dim in zip(whole.takes, cut, strict=True) if dim is not None})
    joined = tuple(_dimension(node, there[node.name], whole) for node in whole.gives)
    nodes, takes, gives = (tuple(there[node.name] for node in own) for own in (whole.nodes, whole.takes, whole.gives))
    return ShareGraph(nodes, takes, gives, cut, joined)


def require_equal(stage: GraphModule, whole: Callable[..., Sequence[Any]], shared: Segment, path: str) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` unless shares and the full batch give equal results
    on random inputs: some operators mix samples without a trace in shapes. Skipped for weights on the meta device."""
    named = {node.name: node for node in stage.graph.nodes}
    fakes = [tensors(named[name]) for name in shared.takes]
    state = [*stage.parameters(), *stage.buffers()]
    if any(fake is None for fake in fakes) or any(tensor.is_meta for tensor in state):
        return
    device = state[0].device if state else torch.device("cpu")
    with torch.random.fork_rng(), torch.no_grad():
        xs = [_example(fake, device) for fake in fakes if fake is not None]
        wanted = whole(stage, *xs)
        parts: list[Sequence[Any]] = [[x] * shared.shares if dim is None else torch.chunk(x, shared.shares, dim)
                 for x, dim in zip(xs, shared.cut, strict=True)]
        try:
            results = [shared.run(stage, *own) for own in zip(*parts, strict=True)]
        except RuntimeError as error:
            raise CaptureError(f"co_shard names {path!r}, which cannot be computed for a share of the batch: "
                               f"{str(error).splitlines()[0]:.200}") from error
    for each, dim, want in zip(zip(*results, strict=True), shared.joined, wanted, strict=True):
        got = each[0] if dim is None else torch.cat(list(each), dim)
        near = CLOSE.get(want.dtype, 0.05) if isinstance(want, Tensor) else 0.0
        if isinstance(want, Tensor) and not torch.allclose(got, want, rtol=near, atol=near, equal_nan=True):
            raise CaptureError(f"co_shard names {path!r}, whose result for a share of the batch is not that share of "
                               "its result: an operator in it mixes samples; name a module that does not")


def _dimension(node: Node, part: Node, whole: Range) -> int | None:
    """The dimension along which the result of ``node`` is cut: there its shape differs from that of ``part``."""
    fake, its = tensors(node), tensors(part)
    if fake is None or its is None:
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(node.meta.get("val"))):
            raise CaptureError(f"co_shard names {whole.path!r}, into or out of which {node.name}{where(node)} goes, "
                               "several tensors in one: name the module around it")
        return None
    differing = [dim for dim, (all_of, some) in enumerate(zip(fake.shape, its.shape, strict=True)) if all_of != some]
    if not differing:
        return None
    dim = differing[0]
    if len(differing) > 1 or fake.shape[dim] != whole.count * its.shape[dim]:
        raise CaptureError(f"co_shard: {node.name}{where(node)} has the shape {tuple(fake.shape)}, and for one of "
                           f"{whole.count} shares {tuple(its.shape)}, which is no equal part of it")
    return dim


def _require_separate(whole: Range, there: dict[str, Node], cut: set[Node]) -> None:
    """Refuse operators that reduce over the batch, and those that write into a buffer."""
    depends = set(cut)
    for node in whole.nodes:
        if not depends.intersection(node.all_input_nodes):
            continue
        depends.add(node)
        fake, its = tensors(node), tensors(there[node.name])
        one = fake is not None and its is not None and fake.shape == its.shape
        captured = node.meta.get(OPERATOR, node)
        writes = list(written(captured))
        mixes = operator_name(captured) in STATISTICS and writes
        if (one and not is_item(node)) or mixes or any(target.op == "get_attr" for target in writes):
            raise CaptureError(f"co_shard names {whole.path!r}, whose operator {node.name}{where(node)} makes one "
                               "thing of all samples of the batch: name a module that does not")


def _example(fake: Tensor, device: torch.device) -> Tensor:
    if fake.is_floating_point():
        return torch.randn(fake.shape, dtype=fake.dtype, device=device)
    return torch.ones(fake.shape, dtype=fake.dtype, device=device)
