"""The least work of each device, whatever is decided: a bound that sees blocks that move, split or come and go.

Blocks whose existence hangs on a common choice make a *group*, as do groups with a common block; what one group is like
has nothing to do with another. So the work of a device for the whole run is at least the sum over the groups of the
least that any case of a group's choices puts there. A device runs one block at a time: no step is shorter, and none
takes less time of a device from its first start to its last end; nor can steady rounds follow each other sooner than
after a round's work. Links carry one transfer at a time too, but are left to the relaxed problem
(:mod:`weft.solver.choices.relaxed.problem`), which in turn has to leave a block that moves out of every device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from weft.solver.choices.relaxed.certain import cases, choices_of
from weft.solver.late import nx
from weft.solver.problem import Number
from weft.solver.wide.block import WideBlock, holds
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Run

__all__ = ["least_work", "load_bound"]


def load_bound(problem: WideProblem, run: Run, objective: str = "makespan") -> float:
    """What no schedule of any assignment is below by the devices' work, in the problem's time unit: of the makespan and
    the span that of the whole run, of the rate that of a round."""
    most = max(least_work(problem, run), default=Fraction(0))
    return float(most if objective != "rate" else most / run.rounds)


def least_work(problem: WideProblem, run: Run) -> tuple[Fraction, ...]:
    """Per device, the least time that any assignment keeps it busy with the whole of ``run``."""
    least = [Fraction(0)] * len(problem.devices)
    for choices, blocks in _groups(problem):
        every = cases(problem.choices, choices)
        if every is None:
            continue
        works = [_work(problem, blocks, case, run) for case in every]
        for device in range(len(least)):
            least[device] += min(work.get(device, Fraction(0)) for work in works)
    return tuple(least)


def _groups(problem: WideProblem) -> list[tuple[frozenset[str], list[WideBlock]]]:
    """The blocks apart by what they depend on, with the choices that they do."""
    joined: nx.Graph[str] = nx.Graph()
    joined.add_nodes_from(problem.choices)
    for alternatives in problem.alternatives.values():
        nx.add_path(joined, sorted(choices_of(alternatives)))
    groups = [frozenset(choices) for choices in nx.connected_components(joined)]
    of_choice = {choice: group for group in groups for choice in group}
    blocks: dict[frozenset[str], list[WideBlock]] = {group: [] for group in (frozenset[str](), *groups)}
    for block in problem.blocks:
        blocks[of_choice[next(iter(block.when))] if block.when else frozenset()].append(block)
    return list(blocks.items())


def _work(problem: WideProblem, blocks: list[WideBlock], case: Mapping[str, str], run: Run) -> dict[int, Fraction]:
    work: dict[int, Fraction] = {}
    for block in blocks:
        if holds(block.when, case):
            for device in block.devices:
                work[device] = work.get(device, Fraction(0)) + _time(block, run)
    return work


def _time(block: WideBlock, run: Run) -> Fraction:
    """What all micro-batches of a block take, exactly."""
    if not isinstance(block.duration, Mapping):
        return _exact(block.duration) * len(run.classes[block.job])
    counted = Counter(run.classes[block.job])
    return sum((_exact(block.of_class(name).duration) * count for name, count in counted.items()), Fraction(0))


def _exact(value: Number) -> Fraction:
    """The decimal number that was written."""
    return Fraction(str(value))
