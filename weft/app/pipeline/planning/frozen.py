"""Published schedules for models outside their definition: with frozen first stages, or with stages that are no chain.

Frozen first stages have no backward, but published schedules assume that every stage trains. The schedule is made with
backwards of negligible duration for frozen stages, which are then removed; the order of the rest is unchanged.

A model of two towers may be cut so that the second stage takes no input from the first. Pipeline schedules are defined
for chains, so the schedule is made with dependencies that complete the chain; it stays valid without them.
"""

from __future__ import annotations

from dataclasses import replace

from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.division import ModelDivision
from weft.runtime.plan.plan import Plan
from weft.solver.baselines import baseline
from weft.solver.problem import Block, BlockKind, Dependency, Problem
from weft.solver.schedule import Schedule
from weft.solver.timing import time_orders

#: Seconds of the backward of a frozen stage.
NEGLIGIBLE = 1e-9


def published(name: str, problem: Problem, micro_batches: int) -> Schedule:
    """The published schedule called ``name`` of ``problem``, whose blocks are named by letter and stage.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable`.
    """
    whole = _with_all_backwards(problem)
    made = baseline_in_a_row(name, whole, micro_batches)
    if whole is problem:
        return made
    there = {i: problem.index[block.name] for i, block in enumerate(whole.blocks) if block.name in problem.index}
    orders = [[(there[block], m) for block, m in order if block in there] for order in made.orders]
    spared = NEGLIGIBLE * micro_batches * (len(whole.blocks) - len(problem.blocks))
    return replace(made, problem=problem, operations=time_orders(problem, micro_batches, orders), period=None,
                   makespan_bound=max(0.0, made.makespan_bound - spared), period_bound=None, repetend=None)


def require_backwards(cut: ModelDivision, plan: Plan) -> None:
    """Refuse a plan without a backward of a stage that has trained parameters.

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    graph = plan.vocabulary.graph
    for s, parameters in enumerate(cut.parameters):
        if parameters and graph is not None and s < len(graph.stages) and graph.stages[s].backward is None:
            raise CaptureError(f"the plan has no backward for stage {s}, but "
                               f"{cut.captured.name_of(parameters[0])} in it is trained: plan for this model, or "
                               "freeze it with requires_grad_(False)")


def _with_all_backwards(problem: Problem) -> Problem:
    stages = [int(block.name[1:]) for block in problem.blocks if block.kind == BlockKind.FORWARD]
    letters = sorted({block.name[0] for block in problem.blocks if block.kind != BlockKind.FORWARD})
    if not letters or f"{letters[0]}{min(stages)}" in problem.index:
        return problem
    kinds = {"B": BlockKind.BACKWARD, "I": BlockKind.INPUT_GRAD, "W": BlockKind.WEIGHT_GRAD}
    blocks = list(problem.blocks)
    for s in sorted(stages, reverse=True):
        if f"{letters[0]}{s}" in problem.index:
            continue
        forward = problem.blocks[problem.index[f"F{s}"]]
        consumers = [other.name[1:] for other in problem.blocks if other.kind == BlockKind.FORWARD and any(
            dependency.block == forward.name for dependency in other.after)]
        free = (0,) * len(forward.memory)
        for letter in letters:
            waits = [f"I{s}"] if letter == "W" else [forward.name, *(f"{letter}{consumer}" for consumer in consumers)]
            blocks.append(Block(f"{letter}{s}", kinds[letter], forward.devices, NEGLIGIBLE, free, free,
                                tuple(map(Dependency, waits))))
    return replace(problem, blocks=tuple(blocks))


def in_a_row(problem: Problem) -> Problem:
    """``problem`` with dependencies that make its stages a chain: forwards on the stage before, backwards on the stage
    behind."""
    blocks = []
    for block in problem.blocks:
        waits = {dependency.block for dependency in block.after}
        neighbour = _neighbour(block.name)
        if neighbour in problem.index and neighbour not in waits:
            block = replace(block, after=(*block.after, Dependency(neighbour)))
        blocks.append(block)
    return replace(problem, blocks=tuple(blocks))


def _neighbour(name: str) -> str:
    """The block that ``name`` depends on in a chain: ``"F1"`` for ``"F2"``, ``"B3"`` for ``"B2"``."""
    letter, stage = name[0], name[1:]
    return f"{letter}{int(stage) + (-1 if letter == 'F' else 1)}" if letter in "FBI" and stage.isdecimal() else ""


def baseline_in_a_row(name: str, problem: Problem, micro_batches: int) -> Schedule:
    """The published schedule called ``name`` of ``problem``, whose stages count as a chain.

    Raises :class:`~weft.solver.baselines.NotApplicable` if it does not apply to the chain either.
    """
    chain = in_a_row(problem)
    found = baseline(name, chain, micro_batches)
    if chain == problem:
        return found
    # With fewer dependencies than the chain, schedules may be shorter than its bounds.
    return replace(found, problem=problem, makespan_bound=0.0, period_bound=None)
