"""What a search says of a problem, compared with what the oracle knows. As a script: of many problems, with counts.

    python -m tests.oracles.agreement FIRST COUNT [--operations 9]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction

from tests.oracles.generated import drawn
from tests.oracles.whole import TooLarge, fits, least_makespan
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.judge.validate import validate
from weft.solver.problem import Number, Problem
from weft.solver.step.search import solve
from weft.solver.step.stretch import unroll

__all__ = ["disagreements"]

#: Sums of floats against fractions.
_TOLERANCE = Fraction(1, 10**9)


def disagreements(problem: Problem, micro_batches: int, counts: Counter[str]) -> list[str]:
    """What is wrong with what the search says, in words; what was met is counted.

    Raises :class:`~tests.oracles.whole.TooLarge` where the oracle gives up, and whatever the search raises.
    """
    best = least_makespan(problem, micro_batches)
    counts["problems"] += 1
    try:
        schedule = solve(problem, micro_batches, time_limit=60, effort=20)
    except NoneFound:
        counts["not decided"] += 1
        return ["not decided"]
    except Infeasible as refusal:
        counts["refused"] += 1
        return _wrong_refusal(problem, micro_batches, refusal, counts) if best is None else ["refused, but it fits"]
    if best is None:
        return ["solved, but nothing fits"]
    counts["solved"] += 1
    validate(schedule)
    makespan, bound = Fraction(schedule.makespan), Fraction(schedule.makespan_bound)
    counts["optimal"] += schedule.status == "optimal"
    wrong = []
    if "stopped" in schedule.solver:
        wrong.append(f"stopped: {schedule.solver['stopped']}")
    if makespan < best * (1 - _TOLERANCE):
        wrong.append(f"makespan {float(makespan)} below the optimum {float(best)}")
    if bound > best * (1 + _TOLERANCE):
        wrong.append(f"bound {float(bound)} above the optimum {float(best)}")
    if schedule.status == "optimal" and makespan > best * (1 + _TOLERANCE):
        wrong.append(f"called optimal at {float(makespan)}, the optimum is {float(best)}")
    counts["best but not proven"] += schedule.status != "optimal" and makespan <= best * (1 + _TOLERANCE)
    counts["not the best"] += makespan > best * (1 + _TOLERANCE)
    if schedule.period is not None and schedule.period_bound is not None and \
            schedule.period_bound > schedule.period * (1 + 1e-9):
        wrong.append("period below its bound")
    if schedule.repetend is not None:
        counts["unrolled"] += 1
        step = schedule.repetend.micro_batches
        for more in (1, 3):
            longer = unroll(schedule, micro_batches + more * step)
            if longer.makespan_bound > longer.makespan * (1 + 1e-9):
                wrong.append(f"unrolled by {more}: bound above makespan")
    return wrong


def _wrong_refusal(problem: Problem, micro_batches: int, refusal: Infeasible, counts: Counter[str]) -> list[str]:
    wrong = []
    if refusal.shortages:
        counts["least memory said"] += 1
        counts["least memory exact"] += all(shortage.exact for shortage in refusal.shortages)
        least = {shortage.device: shortage.least for shortage in refusal.shortages}
        if not fits(_with_memory(problem, least), micro_batches):
            wrong.append(f"memory that is said to work does not: {refusal}")
        if all(shortage.exact for shortage in refusal.shortages):
            for device, amount in least.items():  # no less of any one, the others as said
                less = {**least, device: _less(amount)}
                if fits(_with_memory(problem, less), micro_batches):
                    wrong.append(f"less memory than what is called least works: {refusal}")
    if refusal.most_micro_batches is not None:
        counts["most micro-batches said"] += 1
        counts["most micro-batches exact"] += refusal.most_exact
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


def main() -> int:
    """Compare as many problems as asked for; the exit status says whether anything was wrong."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("first", type=int)
    arguments.add_argument("count", type=int)
    arguments.add_argument("--operations", type=int, default=9)
    arguments.add_argument("--idle", type=int)
    options = arguments.parse_args()
    counts: Counter[str] = Counter()
    faults = 0
    for number in range(options.first, options.first + options.count):
        case = drawn(number, most_operations=options.operations, idle=options.idle)
        try:
            wrong = disagreements(case.problem, case.micro_batches, counts)
        except TooLarge:
            counts["too large for the oracle"] += 1
            continue
        except Exception as error:
            counts["crashed"] += 1
            wrong = [f"{type(error).__name__}: {error}"]
        for fault in wrong:
            print(f"problem {number}: {fault}", flush=True)
        faults += bool(wrong)
        if (number - options.first) % 500 == 499:
            print(number + 1 - options.first, dict(counts), "wrong:", faults, flush=True)
    print(dict(counts), "wrong:", faults)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
