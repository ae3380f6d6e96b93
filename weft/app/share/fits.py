"""Whether jobs fit together into the memory of their GPUs; if not, the missing amount, and the jobs that do fit.

Steps of jobs can always run sequentially, so jobs fit together exactly if one step of each fits into the remaining
memory: the GPU's memory less the static memory of all jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

from weft.models.share.job import Job, amount_text
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import Infeasible, NoneFound, require_room
from weft.solver.problem import Device, Number, Problem, ProblemError
from weft.solver.ticks import TickProblem
from weft.text.counts import listed

#: Maximum number of assignments of a job's choices tested for fit.
_MOST = 64


@dataclass(frozen=True, slots=True)
class Lack:
    """``amount`` by which a GPU's memory is too small; ``job``: the job whose step does not fit, ``None`` if no step
    would."""

    amount: Number
    job: str | None


def require_fit(jobs: Sequence[Job], budget: Budget) -> None:
    """Raise :class:`~weft.solver.feasibility.infeasible.Infeasible` if the jobs do not fit together, with the missing
    amount and the jobs that do fit."""
    lacking = missing(jobs, budget)
    if not lacking:
        return
    unit = jobs[0].problem.memory_unit
    names = [device.name for device in jobs[0].problem.devices if device.lane_of is None]
    parts: dict[str, list[str]] = {}
    for gpu, lack in lacking.items():
        held = ", ".join(f"{job.name} {amount_text(job.held[gpu], unit)}" for job in jobs if job.held[gpu])
        why = f"all the time they hold {held}" if held else "they hold nothing all the time"
        parts.setdefault(f"{amount_text(lack.amount, unit)} too little ({why}" + (
            ")" if lack.job is None else f"; what is left is too little for one step of {lack.job})"), []).append(
                names[gpu])
    raise Infeasible(f"{listed([job.name for job in jobs])} do not fit together: " + "; ".join(
        f"{listed(gpus)} {'have each' if len(gpus) > 1 else 'has'} {what}" for what, gpus in parts.items()) + ". "
                     + _which_do(jobs, budget))


def _which_do(jobs: Sequence[Job], budget: Budget) -> str:
    """The combinations that fit: pairs of more than two jobs, or each of two jobs alone."""
    unit = jobs[0].problem.memory_unit
    parts = []
    for own in combinations(jobs, 2 if len(jobs) > 2 else 1):
        lacking = missing(own, budget)
        most = max((lack.amount for lack in lacking.values()), default=0)
        whose = listed([job.name for job in own])
        verb = "fit" if len(own) > 1 else "fits"
        parts.append(f"{whose} {verb}" if not lacking else
                     f"{whose} {'lack' if len(own) > 1 else 'lacks'} {amount_text(most, unit)}")
    return ("Of the pairs, " if len(jobs) > 2 else "Alone, ") + "; ".join(parts)


def missing(jobs: Sequence[Job], budget: Budget) -> dict[int, Lack]:
    """By GPU, the missing memory for all ``jobs`` together; nothing if they fit, or if that is undecided."""
    found: dict[int, Lack] = {}
    held = [sum(amounts) for amounts in zip(*(job.held for job in jobs), strict=True)]
    left = [None if whole is None else whole - amount for whole, amount in zip(jobs[0].capacity, held, strict=True)]
    for gpu, amount in enumerate(left):
        if amount is not None and amount < 0:
            found[gpu] = Lack(-amount, None)
    for job in jobs:
        for gpu, more in _of_step(job, left, budget).items():
            lack = more + max(0, -(left[gpu] or 0))
            if gpu not in found or lack > found[gpu].amount:
                found[gpu] = Lack(lack, job.name)
    return dict(sorted(found.items()))


def _of_step(job: Job, left: Sequence[Number | None], budget: Budget) -> Mapping[int, Number]:
    """By GPU, the memory that one step of ``job`` needs beyond ``left``, under the options that need the least."""
    best: dict[int, Number] | None = None
    for options in islice(job.problem.assignments, _MOST):
        try:
            lacking = _of_plain(job.problem.under(options), left, budget)
        except ProblemError:  # these options are invalid
            continue
        if best is None or sum(lacking.values()) < sum(best.values()):
            best = lacking
        if not best:
            break
    return best or {}


def _of_plain(problem: Problem, left: Sequence[Number | None], budget: Budget) -> dict[int, Number]:
    own = [number for number, device in enumerate(problem.devices) if device.lane_of is None]
    devices: list[Device] = list(problem.devices)
    for number, amount in zip(own, left, strict=True):
        devices[number] = replace(devices[number], memory=None if amount is None else max(amount, 0))
    try:
        require_room(TickProblem.of(replace(problem, devices=tuple(devices)).plain()), 1, budget)
    except NoneFound:
        return {}
    except Infeasible as refusal:
        return {own.index(entry.device): entry.least - entry.capacity for entry in refusal.shortages
                if entry.device in own}
    return {}
