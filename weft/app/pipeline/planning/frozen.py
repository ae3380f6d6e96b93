"""Published schedules of models whose first stages are frozen: these have no passes back.

A published schedule is for stages that all train. So it is made with passes back of next to no time for the others,
which are then taken out: what they waited for, and what waited for them, loses a wait, and nothing else moves.
"""

from __future__ import annotations

from dataclasses import replace

from weft.app.pipeline.planning.in_a_row import baseline_in_a_row
from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.division import Division
from weft.runtime.plan.plan import Plan
from weft.solver.problem import Block, BlockKind, Dependency, Problem
from weft.solver.schedule import Schedule
from weft.solver.timing import time_orders

__all__ = ["published", "require_backwards"]

#: Seconds of a pass that is not there.
NOTHING = 1e-9


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
    spared = NOTHING * micro_batches * (len(whole.blocks) - len(problem.blocks))
    return replace(made, problem=problem, operations=time_orders(problem, micro_batches, orders), period=None,
                   makespan_bound=max(0.0, made.makespan_bound - spared), period_bound=None, repetend=None)


def require_backwards(cut: Division, plan: Plan) -> None:
    """Refuse a plan by which a stage that trains would have no gradients.

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
        takers = [other.name[1:] for other in problem.blocks if other.kind == BlockKind.FORWARD and any(
            dependency.block == forward.name for dependency in other.after)]
        free = (0,) * len(forward.memory)
        for letter in letters:
            waits = [f"I{s}"] if letter == "W" else [forward.name, *(f"{letter}{taker}" for taker in takers)]
            blocks.append(Block(f"{letter}{s}", kinds[letter], forward.devices, NOTHING, free, free,
                                tuple(map(Dependency, waits))))
    return replace(problem, blocks=tuple(blocks))
