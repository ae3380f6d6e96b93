"""The units of a captured graph, their dependencies, and sets of units as separate modules.

A *unit* is indivisible: an operator with the calls that select its results, or several operators, namely those that
write in place into a tensor, all that produce or read its memory (:mod:`weft.runtime.captured.purity`), and all between
them. Units are numbered in a topological order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map

from weft.runtime.backends.registry import BackendError
from weft.runtime.captured.captured import Captured, is_item, tensors, where
from weft.runtime.captured.cut import register
from weft.runtime.captured.purity import Purity, draws, operator_name, written
from weft.solver.late import nx
from weft.solver.placement.cover.problem import between


@dataclass(frozen=True, eq=False)
class GraphPart:
    """Some units of a graph as a separate module.

    ``units``: their numbers. ``operators``: the kinds of operators, such as ``"linear"``, in order. ``module`` computes
    ``gives`` from ``takes``, which are nodes of the graph. ``inputs``: example values of ``takes`` from a run, or
    empty. ``key``: equal for parts with the same operators on tensors of the same shapes and dtypes.
    """

    units: tuple[int, ...]
    operators: tuple[str, ...]
    module: GraphModule
    takes: tuple[Node, ...]
    gives: tuple[Node, ...]
    key: str
    inputs: tuple[Any, ...] = ()

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the first result."""
        fake = tensors(self.gives[0]) if self.gives else None
        return None if fake is None else fake.dtype


@dataclass(frozen=True, eq=False)
class UnitGraph:
    """``captured`` divided into units."""

    captured: Captured
    purity: Purity = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "purity", Purity(self.captured))

    @cached_property
    def units(self) -> tuple[tuple[Node, ...], ...]:
        """The operators of each unit, in the graph's order."""
        whole = nx.condensation(self._order())
        members: dict[int, list[Node]] = {number: sorted(data["members"], key=self.purity.place.__getitem__)
                                          for number, data in whole.nodes(data=True)}
        first = {number: self.purity.place[nodes[0]] for number, nodes in members.items()}
        return tuple(tuple(members[number]) for number in nx.lexicographical_topological_sort(
            whole, key=first.__getitem__))

    @cached_property
    def unit_of(self) -> dict[Node, int]:
        """The number of each operator's unit."""
        return {node: number for number, nodes in enumerate(self.units) for node in nodes}

    @cached_property
    def order(self) -> tuple[tuple[int, int], ...]:
        """The dependencies: pairs of units where the first produces an input of the second, or reads memory into which
        the second writes."""
        return tuple(sorted({(self.unit_of[a], self.unit_of[b]) for a, b in self._order().edges
                             if self.unit_of[a] != self.unit_of[b]}))

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """The direct successors of each unit."""
        after: list[list[int]] = [[] for _ in self.units]
        for a, b in self.order:
            after[a].append(b)
        return tuple(map(tuple, after))

    @cached_property
    def values(self) -> tuple[tuple[int, tuple[int, ...], int], ...]:
        """The values between units: the producer, the readers, and the bytes of each."""
        values = []
        for node in self.captured.calls:
            readers = {self.unit_of[user] for user in node.users if user in self.unit_of} - {self.unit_of[node]}
            fake = tensors(node)
            if readers and fake is not None:
                values.append((self.unit_of[node], tuple(sorted(readers)), fake.numel() * fake.element_size()))
        return tuple(values)

    def kinds(self, unit: int) -> tuple[str, ...]:
        """The names of a unit's operators, without calls that select results."""
        return tuple(operator_name(node) for node in self.units[unit] if not is_item(node))

    def is_plain(self, unit: int) -> bool:
        """Whether backends other than eager may compute ``unit``: it draws no random numbers, writes into no buffer or
        input, and has no submodule calls."""
        return all(node.op == "call_function" and not draws(node) and not any(
            self.purity.base[target].op != "call_function" for target in written(node)) for node in self.units[unit])

    def require_part(self, units: Collection[int], backend: str) -> None:
        """Raise :class:`~weft.runtime.backends.registry.BackendError` unless ``units`` are a connected and convex set.
        """
        own = set(units)
        if not own or not all(0 <= unit < len(self.units) for unit in own):
            raise BackendError(f"backend {backend!r} has a part of the units {sorted(own)}: it must have some of the "
                               f"{len(self.units)} that the graph has")
        if (inside := between(self.after, own)) is not None:
            raise BackendError(f"backend {backend!r} has a part that is not convex, {self._shown(own)}: "
                               f"{self._shown([inside])} reads some of it and is read by the rest")
        if len(self.components(own)) > 1:
            raise BackendError(f"backend {backend!r} has a part that hangs together by no value, {self._shown(own)}")

    def components(self, units: Collection[int]) -> list[set[int]]:
        """The connected components of ``units``."""
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(units)
        graph.add_edges_from((a, b) for a in units for b in self.after[a] if b in graph)
        return [set(component) for component in nx.connected_components(graph)]

    def part(self, units: Iterable[int]) -> GraphPart:
        """These units as a separate module."""
        numbers = tuple(sorted(units))
        own = {node for number in numbers for node in self.units[number]}
        nodes = [node for node in self.captured.calls if node in own]
        takes = tuple(dict.fromkeys(arg for node in nodes for arg in node.all_input_nodes
                                    if arg not in own and arg.op != "get_attr"))
        results = {leaf for leaf in self.captured.results if isinstance(leaf, Node)}
        gives = tuple(node for node in nodes if tensors(node) is not None and (
            node in results or any(user not in own and user.op != "output" for user in node.users)))
        graph, env = FxGraph(), dict[Node, Node]()
        root = nn.Module()
        for node in takes:
            env[node] = graph.placeholder(node.name)
        copy_nodes(self.captured, nodes, graph, root, env)
        graph.output(tuple(env[node] for node in gives))
        module = GraphModule(root, graph, class_name="GraphPart")
        return GraphPart(numbers, tuple(operator_name(node) for node in nodes if not is_item(node)), module, takes,
                         gives,
                         self._key(nodes, takes, gives))

    def _order(self) -> nx.DiGraph[Node]:
        """The dependencies of operators; the operators of one unit form a cycle."""
        graph: nx.DiGraph[Node] = nx.DiGraph()
        calls = self.captured.calls
        graph.add_nodes_from(calls)
        for node in calls:
            graph.add_edges_from((arg, node) for arg in node.all_input_nodes if arg in self.purity.place)
            if isinstance(node.meta.get("val"), tuple | list):
                graph.add_edges_from((user, node) for user in node.users if user.op != "output")
        for writer in calls:
            for target in written(writer):
                memory = self.purity.base[target]
                own = [node for node in calls if self.purity.base[node] is memory or node is writer or (
                    memory.op == "get_attr" and any(self.purity.base[arg] is memory for arg in node.all_input_nodes))]
                graph.add_edges_from((node, other) for a, b in pairwise(own)
                                     for node, other in ((a, b), (b, a)))
                early = [node for node in calls[:self.purity.place[writer]]
                         if any(self.purity.base[arg] is memory for arg in node.all_input_nodes)]
                graph.add_edges_from((node, writer) for node in early)
        return graph

    def _key(self, nodes: Sequence[Node], takes: Sequence[Node], gives: Sequence[Node]) -> str:
        numbers = {node: f"%{i}" for i, node in enumerate((*takes, *nodes))}

        def described(leaf: Any) -> str:
            if not isinstance(leaf, Node):
                return repr(leaf)
            return numbers[leaf] if leaf in numbers else f"w{_metadata(self.captured.attribute(leaf))}"

        lines = [f"{_metadata(node.meta.get('val'))}" for node in takes]
        lines += [f"{node.target} {tree_map(described, (node.args, dict(node.kwargs)))}" for node in nodes]
        lines.append(" ".join(numbers[node] for node in gives))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def _shown(self, units: Collection[int]) -> str:
        names = [node.name + where(node) for unit in sorted(units) for node in self.units[unit][:1]]
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def copy_nodes(captured: Captured, nodes: Iterable[Node], graph: FxGraph, root: nn.Module,
               env: dict[Node, Node]) -> None:
    """Copy ``nodes`` into ``graph``, and the tensors and modules that they use into ``root``; ``env`` maps nodes to
    their copies."""
    def own(node: Node) -> Node:
        if node not in env:
            register(root, str(node.target), captured.attribute(node))
            env[node] = graph.get_attr(str(node.target))
        return env[node]

    for node in nodes:
        if node.op == "call_module":
            register(root, str(node.target), captured.graph_module.get_submodule(str(node.target)))
            env[node] = graph.call_module(str(node.target), *tree_map(
                lambda leaf: own(leaf) if isinstance(leaf, Node) else leaf, (node.args, dict(node.kwargs))))
        else:
            env[node] = graph.node_copy(node, own)
        env[node].meta.update(node.meta)


def _metadata(value: Any) -> str:
    return str(tree_map(lambda leaf: (tuple(leaf.shape), leaf.stride(), str(leaf.dtype), str(leaf.device.type),
                                      leaf.requires_grad) if isinstance(leaf, Tensor) else str(leaf), value))
