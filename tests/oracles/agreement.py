"""What a search says of a problem, compared with what the oracle knows."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from tests.oracles.whole import fits, least_makespan
from weft.solver import Infeasible, NoneFound, solve, unroll, validate
from weft.solver.problem import Number, Problem

#: Sums of floats against fractions.
_TOLERANCE = Fraction(1, 10**9)


def disagreements(problem: Problem, micro_batches: int) -> list[str]:
    """What is wrong with what the search says, in words.

    Raises :class:`~tests.oracles.whole.TooLarge` where the oracle gives up, and whatever the search raises.
    """
    best = least_makespan(problem, micro_batches)
    try:
        schedule = solve(problem, micro_batches, time_limit=3000, effort=5)
    except NoneFound:
        return ["not decided"]
    except Infeasible as refusal:
        return _wrong_refusal(problem, micro_batches, refusal) if best is None else ["refused, but it fits"]
    if best is None:
        return ["solved, but nothing fits"]
    validate(schedule)
    makespan, bound = Fraction(schedule.makespan), Fraction(schedule.makespan_bound)
    wrong = []
    if "stopped" in schedule.solver:
        wrong.append(f"stopped: {schedule.solver['stopped']}")
    if makespan < best * (1 - _TOLERANCE):
        wrong.append(f"makespan {float(makespan)} below the optimum {float(best)}")
    if bound > best * (1 + _TOLERANCE):
        wrong.append(f"bound {float(bound)} above the optimum {float(best)}")
    if schedule.status == "optimal" and makespan > best * (1 + _TOLERANCE):
        wrong.append(f"called optimal at {float(makespan)}, the optimum is {float(best)}")
    if schedule.period is not None and schedule.period_bound is not None and \
            schedule.period_bound > schedule.period * (1 + 1e-9):
        wrong.append("period below its bound")
    if schedule.repetend is not None:
        step = schedule.repetend.micro_batches
        for more in (1, 3):
            longer = unroll(schedule, micro_batches + more * step)
            if longer.makespan_bound > longer.makespan * (1 + 1e-9):
                wrong.append(f"unrolled by {more}: bound above makespan")
    return wrong


def _wrong_refusal(problem: Problem, micro_batches: int, refusal: Infeasible) -> list[str]:
    wrong = []
    if refusal.shortages:
        least = {shortage.device: shortage.least for shortage in refusal.shortages}
        if not fits(_with_memory(problem, least), micro_batches):
            wrong.append(f"memory that is said to work does not: {refusal}")
        if all(shortage.exact for shortage in refusal.shortages):
            for device, amount in least.items():  # no less of any one, the others as said
                less = {**least, device: _less(amount)}
                if fits(_with_memory(problem, less), micro_batches):
                    wrong.append(f"less memory than what is called least works: {refusal}")
    if refusal.most_micro_batches is not None:
        most = refusal.most_micro_batches
        if not fits(problem, most):
            wrong.append(f"{most} micro-batches do not fit: {refusal}")
        if refusal.most_exact and fits(problem, most + 1):
            wrong.append(f"{most + 1} micro-batches fit: {refusal}")
    return wrong


def _less(amount: Number) -> Number:
    return float(Fraction(str(amount)) - Fraction(1, 10))


def _with_memory(problem: Problem, memory: dict[int, Number]) -> Problem:
    return replace(problem, devices=tuple(replace(device, memory=memory.get(d, device.memory))
                                          for d, device in enumerate(problem.devices)))
