"""What rank 0 decides for all: where the model is cut, what its stages cost, and the schedule that they run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from weft.app.lib.judged import judged
from weft.app.pipeline.options import PipelineOptions
from weft.app.pipeline.places import cut_places
from weft.app.pipeline.split import Model, divided, require_stages
from weft.app.pipeline.times import operator_seconds
from weft.runtime.by_modules.trace import Traced
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import crossings
from weft.runtime.captured.division import Division
from weft.runtime.captured.loss import LOSS
from weft.runtime.captured.part import Data, Goal, training_of
from weft.runtime.captured.purity import Purity
from weft.runtime.captured.untouched import untouched
from weft.runtime.measure.measure_stages import measure_stages, measured_ties
from weft.runtime.measure.stage_costs import StageCosts, measured_problem, static_bytes
from weft.runtime.plan.plan import Plan, load_plan, plan_of
from weft.runtime.train.stage import deferrable
from weft.solver.baselines import BASELINES, NotApplicable, baseline
from weft.solver.io.schedule_files import load_schedule
from weft.solver.problem import BlockKind, Device, Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import solve

__all__ = ["Decision", "Example", "decide"]

#: Published schedules that need two stages a device, and where they stand: in a V.
IN_A_V = ("zb-v", "zb-v-auto", "v-block")
SHOWN = 4  # names in a sentence
ROUNDS = 2  # how often stages are measured and cut again


@dataclass(frozen=True)
class Example:
    """One micro-batch: the leaves of the model's arguments, those of the target (``None``: not known), and all of them
    by name."""

    leaves: Sequence[Any]
    target: Sequence[Tensor] | None
    named: Mapping[str, Tensor]


@dataclass(frozen=True)
class Decision:
    """Where the model is cut, the plan that runs its stages, and what was said of it."""

    places: tuple[int, ...]
    plan: Plan
    notes: tuple[str, ...]


def decide(captured: Model, purity: Purity | None, example: Example, goal: Goal, ranks: int, options: PipelineOptions,
           device: torch.device) -> Decision:
    """The plan of ``captured`` on ``ranks`` ranks.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a model that cannot be cut so, and what searching
    and measuring raise.
    """
    schedule, places, micro_batches = options.schedule, options.cuts, options.micro_batches
    given = _given(options, ranks)
    count = ranks if given is None else len(given.stage_groups or ())
    in_a_v = isinstance(schedule, str) and schedule in IN_A_V
    count = 2 * ranks if in_a_v else count
    if isinstance(captured, Traced):
        require_stages(captured, ranks, None if given is None and not in_a_v else count)
        found: tuple[int, ...] = ()
    else:
        assert purity is not None
        found = tuple(places) if places is not None else _places(captured, purity, example, count)
    if len(found) != count - 1 and not isinstance(captured, Traced):
        raise CaptureError(f"cuts has {len(found)} places, but {count} stages have {count - 1} between them")
    if given is not None:
        return Decision(found, given, ("the plan was given, its costs too",))
    costs, found = _measured(captured, purity, example, goal, found, device, fixed=places is not None)
    ties = measured_ties(_training(captured, purity, example, goal, found))
    made = _scheduled(costs, ties, ranks, options)
    made = made.with_solver(static_memory=_static(costs, made.problem, micro_batches))
    notes = [_told(goal, example)]
    if any(block.kind == BlockKind.WEIGHT_GRAD for block in made.problem.blocks):
        notes += _held_back(captured, divided(captured, found, purity))
    return Decision(found, plan_of(made), tuple(notes))


def _given(options: PipelineOptions, ranks: int) -> Plan | None:
    """The plan that the user has given, held against the ranks."""
    schedule, plan, micro_batches = options.schedule, options.plan, options.micro_batches
    if plan is not None:
        found = plan if isinstance(plan, Plan) else load_plan(plan)
    elif schedule is None or (isinstance(schedule, str) and schedule in BASELINES):
        return None
    else:
        if isinstance(schedule, str) and not os.path.exists(schedule):
            raise CaptureError(f"schedule is {schedule!r}, it must be a schedule, its file, or one of "
                               f"{', '.join(BASELINES)}")
        found = plan_of(judged(schedule if isinstance(schedule, Schedule) else load_schedule(schedule), in_turn=False))
    if len(found.program.ranks) != ranks or found.micro_batches != micro_batches:
        raise CaptureError(f"the plan is for {len(found.program.ranks)} ranks and {found.micro_batches} micro-batches, "
                           f"but there are {ranks} ranks and micro_batches is {micro_batches}: start as many, or plan "
                           "for these")
    if found.stage_ranks is None:
        raise CaptureError("the plan's blocks are no stages on one rank each, which is what a captured model is cut "
                           "into: plan for stages in a row")
    return found


# -- cuts --------------------------------------------------------------------------------------------------------------


def _places(captured: Captured, purity: Purity, example: Example, count: int,
            scales: Callable[[int], float] = lambda place: 1.0) -> tuple[int, ...]:
    seconds = [time * scales(i) for i, time in enumerate(operator_seconds(captured, example.leaves))]
    sizes = [None if crossing.refused is not None or not crossing.values else float(crossing.size)
             for crossing in crossings(captured, purity)]
    first = next((i for i, node in enumerate(captured.calls) if _is_trained(captured, node)), None)
    if first is None:
        raise CaptureError(f"{type(captured.model).__name__} has no trained parameter that an operator reads: there is "
                           "nothing to train")
    found = cut_places(seconds, sizes, count, first + 1)
    if found is None:
        raise CaptureError(f"{type(captured.model).__name__} has {len(captured.calls)} operators, of which too few can "
                           f"be cut between for {count} stages: start fewer ranks")
    return tuple(found)


def _is_trained(captured: Captured, node: Node) -> bool:
    return any(arg.op == "get_attr" and isinstance(value := captured.attribute(arg), nn.Parameter)
               and value.requires_grad for arg in node.all_input_nodes)


def _measured(captured: Model, purity: Purity | None, example: Example, goal: Goal, places: tuple[int, ...],
              device: torch.device, fixed: bool) -> tuple[list[StageCosts], tuple[int, ...]]:
    """What the stages cost, measured as the executor runs them; and the cuts, moved once by what was measured."""
    best: tuple[float, list[StageCosts], tuple[int, ...]] | None = None
    for _ in range(1 if fixed or not places else ROUNDS):
        with untouched(captured.model):
            found = measure_stages(_training(captured, purity, example, goal, places), device=device, repeats=3)
        costs = _chain(found)
        whole = [sum(cost.passes["full"][letter].time.seconds for letter in "FB") for cost in costs]
        if best is None or max(whole) < best[0]:
            best = max(whole), costs, places
        if fixed or not places or isinstance(captured, Traced) or purity is None:
            break
        moved = _places(captured, purity, example, len(places) + 1, _scales(captured, example, places, whole))
        if moved == places:
            break
        places = moved
    assert best is not None
    return best[1], best[2]


def _scales(captured: Captured, example: Example, places: Sequence[int],
            whole: Sequence[float]) -> Callable[[int], float]:
    """By how much an operator takes longer in its stage than alone, by its number."""
    seconds = operator_seconds(captured, example.leaves)
    ends = [0, *places, len(seconds)]
    factors = [measured / max(sum(seconds[begin:end]), 1e-9)
               for measured, begin, end in zip(whole, ends, ends[1:], strict=False)]
    return lambda i: factors[sum(place <= i for place in places)]


def _training(captured: Model, purity: Purity | None, example: Example, goal: Goal, places: Sequence[int]) -> Any:
    """All stages, fed with the example; a loss that needs a target that nobody has given is made of the result."""
    known = goal if goal.loss is None or example.target is not None else Goal(_stand_in, None)
    cut = divided(captured, places, purity)
    return training_of(cut, range(cut.count), known, Data([example.named]))


def _stand_in(output: Any, target: Any) -> Tensor:
    """The mean of all numbers of the result: what a loss costs where no target is known to call it with."""
    return torch.stack([leaf.double().mean() for leaf in tree_leaves(output)
                        if isinstance(leaf, Tensor) and leaf.is_floating_point()]).sum()


def _chain(costs: Sequence[StageCosts]) -> list[StageCosts]:
    """The same, said to be a chain where each stage takes from the one before, and owes it a gradient."""
    is_chain = all(set(cost.takes or ()) == set(cost.owes or ()) == ({cost.stage - 1} if cost.stage else set())
                   for cost in costs)
    return [replace(cost, takes=None, owes=None) if is_chain else cost for cost in costs]


# -- schedules ---------------------------------------------------------------------------------------------------------


def _scheduled(costs: Sequence[StageCosts], ties: Sequence[tuple[str, Sequence[int]]], ranks: int,
               options: PipelineOptions) -> Schedule:
    """The published schedule asked for, or the best that a short search finds, with whole backwards or split."""
    name = options.schedule if isinstance(options.schedule, str) else None
    problems = {backward: _placed(measured_problem(costs, backward=backward, memory=options.memory, optimizer_copies=2,
                                                   name="captured stages", ties=ties), ranks)
                for backward in ("full", "split")}
    if name is not None:
        why = ""
        for problem in problems.values():
            try:
                return baseline(name, problem, options.micro_batches)
            except NotApplicable as error:
                why = str(error)
        raise CaptureError(f"schedule {name!r} does not fit {len(costs)} stages on {ranks} ranks: {why}")
    found = [solve(problem, options.micro_batches, time_limit=options.time_limit / len(problems))
             for problem in problems.values()]
    return min(found, key=lambda schedule: schedule.makespan)


def _placed(problem: Problem, ranks: int) -> Problem:
    """Stages on their ranks: one each, or two each in a V."""
    count = len(problem.devices)
    if count == ranks:
        return problem
    rank_of = [s if s < ranks else 2 * ranks - 1 - s for s in range(count)]
    limits = [[problem.devices[s].memory for s in range(count) if rank_of[s] == rank] for rank in range(ranks)]
    devices = tuple(Device(f"rank{rank}", None if None in own else min(limit for limit in own if limit is not None))
                    for rank, own in enumerate(limits))
    return replace(problem, devices=devices, blocks=tuple(
        replace(block, devices=tuple(rank_of[s] for s in block.devices)) for block in problem.blocks))


def _static(costs: Sequence[StageCosts], problem: Problem, micro_batches: int) -> list[int]:
    """Bytes that each rank holds all the time, with an optimizer of two values a weight."""
    held = [0] * len(problem.devices)
    for cost in costs:
        device, = problem.blocks[problem.index[f"F{cost.stage}"]].devices
        held[device] += static_bytes(costs, cost.stage, micro_batches=micro_batches)
    return held


def _held_back(captured: Model, cut: Division) -> list[str]:
    """What a split backward computes in I all the same: a sentence, where there is any."""
    waiting = {id(parameter) for module in cut.stages().modules.values() for layer in deferrable(module)
               for parameter in layer.parameters(recurse=False)}
    trained = {id(p): p for own in cut.parameters for p in own}
    held = [p for p in trained.values() if id(p) not in waiting]
    if not held:
        return []
    names = sorted((str(captured.name_of(p)) for p in held), key=len)
    share = sum(p.numel() for p in held) / sum(p.numel() for p in trained.values())
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"of {share:.1%} of the parameters the gradient comes in I, not W: {', '.join(names[:SHOWN])}{more}"]


def _told(goal: Goal, example: Example) -> str:
    known = goal.loss is None or example.target is not None
    return ("stages were measured on rank 0, the others idle" + (
        "" if known else f"; no target was given, so in place of {LOSS} the mean of the result was measured"))
