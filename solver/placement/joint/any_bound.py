"""A bound on the step of any graph of stages, at any sizes of micro-batch, in any order.

For a stage of given operators in micro-batches of b samples, of B in a step, for any other stages:

    step >= head(b) + (B / b) load(b) + tail(b)

``load(b)`` is what its blocks take, transfers at their least. ``head(b)``: before its first forward the first b samples
come down every way of operators before it. On such a way each operator takes at least its shortest forward of any size
once, and one of them, any one, runs all b samples: in micro-batches of c that is max(1, b / c) forwards of size c, one
after another, for the best c. (Others may run the samples at the same time, so it counts for one alone; and where two
operators are in one stage, the blocks are the same, and the sum only less than what they take.) ``tail(b)`` is the same
backwards, and 0 without a backward. The least over b is the stage's contribution to every step. By convexity a way
never comes back into the stage, so it is the longest to an operator directly before it. As in
:mod:`weft.solver.placement.dag.levels.least_step` the dynamic program over levels finds the least step that some graph
of stages allows, and the largest value that it refutes is the bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.bracket import simple_bound
from weft.solver.placement.dag.levels.ideals import TooWide
from weft.solver.placement.dag.levels.least_step import least_step
from weft.solver.placement.dag.levels.ways import LongestWays, longest_ways
from weft.solver.placement.groups import Groups, groups_of, neighbours, waits
from weft.solver.placement.joint.sized import SizedProblem


def any_bound(sized: SizedProblem, budget: Budget, most: float) -> float:
    """The bound, as far as it is below ``most``, in the problem's time unit."""
    groups = groups_of(sized.roomiest)
    ways = {size: _ways_of(sized, groups, size) for size in sized.sizes}
    first, steps = ways[sized.sizes[0]], groups.problem.micro_batches or 1
    least = simple_bound(groups)
    found = min(most, max(least * steps, *first.ahead, *first.back))
    if budget.spent or not most < float("inf"):
        return found
    stages = _Stages(sized, groups, ways)
    with suppress(TooWide):
        found = max(found, least_step(groups, budget, least=found / steps, most=most, load_of=stages.load).bound)
    return found


def _ways_of(sized: SizedProblem, groups: Groups, samples: int) -> LongestWays:
    """Per group the longest way that ends with it, for ``samples`` samples: forwards, and backwards."""
    before, _ = neighbours(groups.count, waits(groups))
    ahead, back = (longest_ways(before, every, once) for once, every in (
        _passes(sized, groups, samples, forward=True), _passes(sized, groups, samples, forward=False)))
    return LongestWays(ahead, back, before)


def _passes(sized: SizedProblem, groups: Groups, samples: int, *, forward: bool) -> tuple[list[float], list[float]]:
    """Per group the least time of one pass, and of the passes of ``samples`` samples one after another."""
    once, every = [], []
    for members in groups.members:
        single, whole = float("inf"), float("inf")
        for size, problem in sized.by_size.items():
            for times in ([node.times for node in problem.nodes], *(degree.times for degree in problem.degrees)):
                for k, kind in enumerate(problem.kinds):
                    if not kind.count or any(times[node][k] is None for node in members):
                        continue
                    time = sum((problem.nodes[node].forward if forward else 1 - problem.nodes[node].forward)
                               * (times[node][k] or 0.0) for node in members)
                    single, whole = min(single, time), min(whole, max(1, samples // size) * time)
        once.append(single)
        every.append(whole)
    return once, every


class _Stages:
    """The contributions to a step of stages of given groups, divided by the micro-batches of ``groups``."""

    def __init__(self, sized: SizedProblem, groups: Groups, ways: Mapping[int, LongestWays]) -> None:
        self.sized, self.groups, self.ways = sized, groups, ways
        self.at = {size: groups_of(problem) for size, problem in sized.by_size.items()}
        self.kind = next(k for k, kind in enumerate(groups.problem.kinds) if kind.count)
        self.devices = [devices for devices, _ in groups.degrees]

    def load(self, inside: Sequence[int], degree: int) -> float:
        """The load of groups ``inside`` on the number of devices with that index, at any size; infinite if it fits at
        none."""
        among, devices, steps = set(inside), self.devices[degree], self.groups.problem.micro_batches or 1
        crossing = [i for i in {i for group in inside for i in self.groups.nets_of[group]}
                    if not among.issuperset(self.groups.nets[i].groups)]
        best = float("inf")
        for size, groups in self.at.items():
            times = dict(groups.degrees).get(devices)
            kind = groups.problem.kinds[self.kind]
            held = sum(float(groups.resident[g] + groups.per_micro_batch[g] / devices) for g in inside)
            if times is None or (kind.memory is not None and held > kind.memory * (1 + 1e-9)):
                continue
            cut = sum(min(size // part * other.nets[i].cost for part, other in self.at.items() if part <= size)
                      for i in crossing) * kind.transfer_factor / devices
            load = sum(float(times[g, self.kind]) for g in inside) + cut
            best = min(best, load * (self.sized.mini_batch // size) + sum(self.ways[size].to(among)))
        return best / steps
