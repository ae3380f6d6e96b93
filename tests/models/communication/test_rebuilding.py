"""Convexity against its other definition, that making one stage of a set leaves no circle; and orders to run in."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from weft.communication import Builder, fuse, overlap
from weft.models.communication.program import CommunicationError, CommunicationProgram
from weft.models.communication.rebuilding import detour, in_order, is_needed

Graph = list[tuple[int, int]]


def program_of(reads: Graph, outputs: set[int]) -> CommunicationProgram:
    """Stage i reads two earlier ones, or the input."""
    step = Builder("graph", 2)
    names = [step.input("given", (4,))]
    for i, (one, other) in enumerate(reads):
        names.append(step.pointwise(f"s{i}", "add", names[one], names[other]))
    return step.build(*(f"s{i}" for i in sorted(outputs)))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, set[int], set[int]]:
    count = draw(st.integers(2, 9))
    reads = [(draw(st.integers(0, i)), draw(st.integers(0, i))) for i in range(count)]
    stages = st.integers(0, count - 1)
    return reads, draw(st.sets(stages, min_size=1)), draw(st.sets(stages, min_size=2))


@for_all(graphs(), tries=100)
def test_a_set_is_fused_exactly_where_nothing_then_waits_for_itself(case: tuple[Graph, set[int], set[int]]) -> None:
    reads, outputs, chosen = case
    program = program_of(reads, outputs)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(reads)))
    graph.add_edges_from((read - 1, i) for i, pair in enumerate(reads) for read in pair if read > 0)
    merged: nx.DiGraph[int] = nx.DiGraph()
    merged.add_edges_from(pair for one, other in graph.edges
                          if len(set(pair := (-1 if one in chosen else one, -1 if other in chosen else other))) == 2)
    convex = nx.is_directed_acyclic_graph(merged)
    needed = all(outputs & {i, *nx.descendants(graph, i)} for i in chosen)
    names = {f"s{i}" for i in chosen}
    path = detour(program, names)
    assert (path is None) == convex
    if path is not None:
        assert {path[0], path[2]} <= names and path[1] not in names
        leaves, outside, back = (int(name[1:]) for name in path)
        assert nx.has_path(graph, leaves, outside) and graph.has_edge(outside, back)
    assert all(is_needed(program, f"s{i}") for i in chosen) == needed
    try:
        assert len(fuse(program, names).stages) == len(reads) - len(chosen) + 1
        fused = True
    except CommunicationError as error:
        fused = False
        assert ("not convex" in str(error)) != ("no output depends" in str(error))
    assert fused == (convex and needed)


def test_chains_that_wait_for_each_other_are_refused() -> None:
    step = Builder("crossed", 2)
    one, other = step.input("one", (8,), "local"), step.input("other", (8,), "local")
    a, b = step.all_reduce("a", one), step.all_reduce("b", other)
    program = step.build(step.pointwise("c", "add", a, b), step.pointwise("d", "sub", a, b))
    chunked = overlap(program, ["a", "c"], 2)
    assert [stage.name for unit in in_order(chunked) for stage in chunked.members(unit)] == ["b", "a", "c", "d"]
    with pytest.raises(CommunicationError, match="the chains in chunks wait for each other"):
        overlap(chunked, ["b", "d"], 2)
