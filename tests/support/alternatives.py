"""Random small pipelines whose stages have alternatives that change everything: durations, devices, memory, subgraphs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from tests.support.builders import valid
from weft.solver.cpsat.budget import Budget
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Number, Problem, per_class
from weft.solver.problem.rounds import Rounds, Run
from weft.solver.schedule import RELATIVE_TOLERANCE, Operation, Schedule
from weft.solver.step.search import Infeasible, Search

_PATTERNS = ("keep", "recompute", "offload", "split", "move", "faster")


def drawn_alternatives(seed: int, *, classes: bool = False, jobs: bool = False, lanes: bool = False) -> Problem:
    """One or two stages, forward and backward; what a stage's options are is drawn from six patterns."""
    draw = random.Random(seed)
    stages = 1 if draw.random() < 0.4 else 2
    devices = [Device(f"gpu{s}", draw.choice([None, 1, 2, 3, 4])) for s in range(2)]
    if lanes:
        devices += [Device(f"copy{s}", lane_of=f"gpu{s}") for s in range(2)]
    taken: dict[str, tuple[str, ...]] = {}
    blocks: list[Block] = []
    together = draw.random() < 0.3
    moves = False
    for job in ("one", "two") if jobs else (None,):
        for s in range(stages):
            choice = f"{job or ''}memory" if together else f"{job or ''}memory{s}"
            options = taken.get(choice) or tuple(draw.sample(_PATTERNS, draw.choice([2, 2, 3])))
            taken[choice] = options
            moves = moves or "move" in options
            for option in options:
                blocks += _stage(draw, s, stages, option, {choice: option}, job, lanes, classes)
    links: tuple[Link, ...] = ()
    if stages == 2 and not moves and draw.random() < 0.4:
        links = (Link("0 to 1", 0, 1), Link("1 to 0", 1, 0))
        blocks = [_linked(block) for block in blocks]
    return Problem(f"alternatives{seed}", tuple(devices), tuple(blocks), links, choices=taken)


def _stage(draw: random.Random, s: int, stages: int, option: str, when: Mapping[str, str], job: str | None, lanes: bool,
           classes: bool) -> list[Block]:
    mark = "" if job is None else f" {job}"
    here = 1 - s if option == "move" else s
    copy = 2 + here if lanes else here
    kept = draw.randint(1, 2)

    def lasts(most: int) -> Number | dict[str, Number]:
        short = draw.randint(1, most)
        return {"short": short, "long": short + draw.randint(0, 2)} if classes else short

    def block(name: str, device: int, amount: int, after: list[Dependency], most: int = 3, space: int = 0
              ) -> Block:
        kind = {"F": BlockKind.FORWARD, "B": BlockKind.BACKWARD}.get(name[0], BlockKind.OTHER)
        return Block(f"{name}{s}{mark}", kind, (device,), after=tuple(after), when=when, job=job, **per_class(
            duration=lasts(most), memory=(amount,), workspace=(space,)))

    def wait(name: str, of: int = s, lag: int = 0) -> Dependency:
        return Dependency(f"{name}{of}{mark}", lag)

    into = [] if s == 0 else [wait("F", s - 1, draw.choice([0, 1]))]
    back = [wait("F")] + ([wait("B", s + 1, draw.choice([0, 1]))] if s + 1 < stages else [])
    build: Mapping[str, Callable[[], list[Block]]] = {
        "keep": lambda: [block("F", here, kept, into), block("B", here, -kept, back)],
        "move": lambda: [block("F", here, kept, into), block("B", here, -kept, back)],
        "faster": lambda: [block("F", here, kept + 1, into, 1), block("B", here, -kept - 1, back, 1)],
        "recompute": lambda: [block("F", here, 0, into), block("R", here, kept, [wait("F")], 2),
                              block("B", here, -kept, [*back, wait("R")])],
        "offload": lambda: [block("F", here, kept, into, space=1), block("out", copy, -kept, [wait("F")], 1),
                            block("in", copy, kept, [wait("out")], 1), block("B", here, -kept, [*back, wait("in")])],
        "split": lambda: [block("F", here, 2, into), block("B", here, -1, back, 2),
                          block("W", here, -1, [wait("B")], 2)],
    }
    return build[option]()


def _linked(block: Block) -> Block:
    def over(wait: Dependency) -> Dependency:
        link = {("F0", "F1"): "0 to 1", ("B1", "B0"): "1 to 0"}.get((wait.block[:2], block.name[:2]))
        return Dependency(wait.block, 1 if link else wait.lag, link, wait.distance, wait.when)

    return replace(block, after=tuple(map(over, block.after)))


def mapped(schedule: Schedule, rounds: Rounds, common: Problem) -> Schedule:
    """``schedule``, one of ``rounds``, as one of the ``common`` problem: the same starts. Raises ``InvalidSchedule``
    where it is none."""
    target = Rounds(common, rounds.run)
    problem = target.problem
    starts = {}
    for operation in schedule.operations:
        block, m = rounds.apart(operation.block, operation.micro_batch)
        starts[rounds.origin.blocks[block].name, m] = operation.start
    operations = []
    for number, block_ in enumerate(problem.blocks):
        for round_ in range(rounds.run.rounds):
            block, m = target.apart(number, round_)
            start = starts[common.blocks[block].name, m]
            operations.append(Operation(number, round_, start, start + float(block_.duration)))
    first = min(operation.start for operation in operations)
    return valid(Schedule(problem, rounds.run.rounds, tuple(
        Operation(block, m, start - first, end - first) for block, m, start, end in operations), 0.0))


def least_over(problem: Problem, run: Run, objective: str = "makespan") -> float:
    """What the best schedule of any assignment comes to, each searched alone to a proof; infinite where none has one.
    """
    best = inf
    for options in problem.assignments:
        search = Search(Rounds(problem.under(options), run).problem, run.rounds, Budget(60), objective=objective)
        try:
            for _ in search.steps():
                if search.value_bound >= search.value * (1 - RELATIVE_TOLERANCE):
                    break
            else:
                raise AssertionError(f"{problem.name} under {options}: no proof")
        except Infeasible:
            continue
        best = min(best, search.value)
    return best
