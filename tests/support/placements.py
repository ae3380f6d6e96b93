"""Every placement of a small problem, tried one by one; and small problems at random."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from weft.solver.placement import DeviceKind, Node, PlacedStage, PlacementProblem, PlacementTensor, judge
from weft.solver.placement.groups import Groups

GPU = DeviceKind("gpu", 2)


def graph(nodes: list[Node], tensors: list[PlacementTensor], *kinds: DeviceKind) -> PlacementProblem:
    """Operators, by default on two devices of one kind."""
    return PlacementProblem("graph", kinds or (GPU,), tuple(nodes), tuple(tensors))


def chain(times: Sequence[float], transfer: float = 0.0, *, devices: int = 2, memory: float | None = None,
          held: Sequence[float] = (), flying: Sequence[float] = ()) -> PlacementProblem:
    """A row of operators on devices of one kind."""
    nodes = tuple(Node(f"n{i}", (time,), held[i] if held else 0.0, flying[i] if flying else 0.0)
                  for i, time in enumerate(times))
    tensors = tuple(PlacementTensor(i, (i + 1,), transfer) for i in range(len(nodes) - 1))
    return PlacementProblem("chain", (DeviceKind("gpu", devices, memory),), nodes, tensors)


def tensors_between(draw: st.DrawFn, count: int) -> tuple[PlacementTensor, ...]:
    """At random what ``count`` nodes, in this order, give to later ones."""
    tensors = []
    for i in range(count - 1):
        targets = draw(st.sets(st.integers(i + 1, count - 1), max_size=2))
        if targets:
            tensors.append(PlacementTensor(i, tuple(sorted(targets)), draw(st.sampled_from([0.0, 0.5, 2.0]))))
    return tuple(tensors)


def every_placement(problem: PlacementProblem, parts: Sequence[Sequence[int]] | None = None,
                    order: Sequence[tuple[int, int]] = ()) -> Iterator[tuple[PlacedStage, ...]]:
    """All placements that break no rule, in which each of ``parts`` (default: the colocation classes) is in one stage,
    and part a is not after part b for each (a, b) of ``order``."""
    parts = problem.classes if parts is None else parts
    devices = [k for k, kind in enumerate(problem.kinds) for _ in range(kind.count)]
    for used in range(1, len(devices) + 1):
        for stage_of in itertools.product(range(used), repeat=len(parts)):
            if set(stage_of) != set(range(used)) or any(stage_of[a] > stage_of[b] for a, b in order):
                continue
            for kinds in set(itertools.permutations(devices, used)):
                stages = judge.stages_of(problem, [
                    (kinds[s], [node for part, at in zip(parts, stage_of, strict=True) if at == s for node in part])
                    for s in range(used)])
                if not judge.breaches(problem, stages):
                    yield stages


def best_load(problem: PlacementProblem, groups: Groups | None = None) -> float:
    """The least largest load of all placements, or infinity; with ``groups``, of those that keep its groups whole and
    in its order."""
    found = (every_placement(problem) if groups is None else
             every_placement(problem, groups.members, groups.order))
    return min((max(stage.load for stage in stages) for stages in found), default=float("inf"))


def ideal_program(problem: PlacementProblem) -> float:
    """The least largest load by dynamic programming over the sets of operators that nothing outside comes before:
    on devices of one kind without a limit of memory, and operators without colocation.

    Every placement is a chain of such sets, so this is exact; it shares no step with the encoding.
    """
    count = len(problem.nodes)
    needs = [0] * count
    for first, second in problem.order:
        needs[second] |= 1 << first
    ideals, fresh = {0}, [0]
    while fresh:
        grown = fresh.pop()
        for node in range(count):
            larger = grown | 1 << node
            if needs[node] & grown == needs[node] and larger not in ideals:
                ideals.add(larger)
                fresh.append(larger)
    nets = [(sum(1 << node for node in {tensor.producer, *tensor.consumers}), tensor.time)
            for tensor in problem.tensors]
    times = [node.times[0] or 0.0 for node in problem.nodes]
    ordered = sorted(ideals, key=int.bit_count)

    def load(stage: int) -> float:
        return (sum(time for node, time in enumerate(times) if stage >> node & 1)
                + sum(cost for net, cost in nets if net & stage and net & ~stage))

    loads = {(small, large): load(large & ~small) for large in ordered for small in ordered
             if small != large and small & large == small}
    best = {ideal: 0.0 if ideal == 0 else float("inf") for ideal in ordered}
    for _ in range(problem.kinds[0].count):
        before = dict(best)
        for (small, large), cost in loads.items():
            best[large] = min(best[large], max(before[small], cost))
    return best[(1 << count) - 1]


@st.composite
def problems(draw: st.DrawFn, *, tight: bool = True, cpus: bool = True, memory: tuple[int, int] = (2, 16)
             ) -> PlacementProblem:
    """Up to six operators on up to three devices: branches, backward twins, CPUs, operators that a kind does not run,
    memory that may not suffice."""
    count = draw(st.integers(1, 6))
    kinds = [DeviceKind("gpu", draw(st.integers(1, 3)),
                        draw(st.none() | st.integers(*memory)) if tight else None,
                        draw(st.sampled_from((1.0, 1.0, 0.5))))]
    if cpus and draw(st.booleans()):
        kinds.append(DeviceKind("cpu", draw(st.integers(0, 1)), None, 0.0))
    amount = st.integers(0, 6) | st.sampled_from((0.1, 0.2, 0.3, 1 / 3))
    backward_from = draw(st.integers(1, count))
    nodes = []
    for index in range(count):
        time = draw(amount)
        times: list[float | None] = [time]
        if len(kinds) == 2:
            times.append(draw(st.sampled_from((3 * time, time, 0.0))))
            if kinds[1].count and draw(st.integers(0, 5)) == 0:
                times[0] = None
        color = draw(st.sampled_from((None, None, None, "a", "b")))
        nodes.append(Node(f"n{index}", tuple(times), draw(st.integers(0, 4)), draw(st.sampled_from((0, 0, 1, 2))),
                          color, index >= backward_from))
    tensors = []
    for index in range(count - 1):
        targets = tuple(t for t in range(index + 1, count) if draw(st.integers(0, 2)) == 0)
        if targets:
            tensors.append(PlacementTensor(index, targets, draw(st.integers(0, 4) | st.just(0.25))))
    # Operators of one class that share no kind make no problem: leave them unsupported nowhere instead.
    plain = [Node(n.name, tuple(0.5 if t is None and n.colocation is not None else t for t in n.times), n.resident,
                  n.per_micro_batch, n.colocation, n.backward) for n in nodes]
    return PlacementProblem("random", tuple(kinds), tuple(plain), tuple(tensors), draw(st.none() | st.integers(1, 2)))
