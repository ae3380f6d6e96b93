"""From a source (spec, block problem) to candidate placements, and the search over all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solver.bounds import makespan_bound
from solver.files import load_problem
from solver.instance import Instance
from solver.problem import Problem
from solver.schedule import Schedule
from solver.search import Infeasible, Progress, solve

if TYPE_CHECKING:
    from models.build import Candidate
    from models.spec import Spec
    from weft import Source

__all__ = ["Case", "Placement", "case_of", "solve_case", "solve_source"]


@dataclass(frozen=True)
class Placement:
    """One way to put the model on the devices. ``title`` says which, "" where there is only one.

    ``details`` goes into the ``solver`` entry of its schedules: among them ``static_memory``, what every device holds
    all the time (weights, gradients, optimizer state), and ``gpu_memory``, what it has for that and the blocks.
    """

    title: str
    problem: Problem
    details: dict[str, Any]

    def label(self, schedule: Schedule) -> Schedule:
        """``schedule`` with what it says of its placement."""
        return schedule.with_solver(**self.details)


@dataclass(frozen=True)
class Case:
    """What is to be solved: placements to choose from, and how many micro-batches run."""

    name: str
    placements: tuple[Placement, ...]
    micro_batches: int


def case_of(source: Source, micro_batches: int | None = None) -> Case:
    """Read ``source`` and list its placements.

    Raises ``FormatError`` or ``SpecError`` for a file that is not right, and ``Infeasible`` for a model that fits the
    GPUs in no placement.
    """
    if isinstance(source, str | os.PathLike):
        source = _read(source)
    if isinstance(source, Problem):
        if micro_batches is None:
            raise ValueError("a block problem does not say how many micro-batches run: give it (--micro-batches N)")
        return Case(source.name, (Placement("", source, {}),), micro_batches)
    return _case_of_spec(source, micro_batches)


def _read(path: str | os.PathLike[str]) -> Problem | Spec:
    if Path(path).suffix.lower() == ".json":
        return load_problem(path)
    from models.spec import load_spec

    return load_spec(path)


def _case_of_spec(spec: Spec, micro_batches: int | None) -> Case:
    from models.build import candidates
    from models.split import NoSplit

    try:
        found = candidates(spec)
    except NoSplit as error:
        raise Infeasible(str(error)) from None
    count = micro_batches or spec.run.micro_batches
    return Case(spec.name, tuple(_placement(candidate) for candidate in found), count)


def _placement(candidate: Candidate) -> Placement:
    backward = {"full": "B", "split": "I+W", "none": "inference"}[candidate.backward]
    shape = {"chain": "1 stage a GPU", "v": "V, 2 chunks", "loop": "loop, 2 chunks"}[candidate.shape]
    memory = [None if device.memory is None else device.memory + static
              for device, static in zip(candidate.problem.devices, candidate.static_memory, strict=True)]
    return Placement(f"{shape}, {backward}", candidate.problem, {
        "placement": f"{shape}, {backward}",
        "static_memory": list(candidate.static_memory),
        "gpu_memory": memory,
        "layers_of_stage": [list(names) for names in candidate.layers_of_stage],
    })


def solve_source(
    source: Source,
    *,
    micro_batches: int | None = None,
    time_limit: float = 60.0,
    effort: float | None = None,
    seed: int = 0,
    workers: int = 1,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Schedule:
    """See :func:`weft.solve`."""
    return solve_case(case_of(source, micro_batches), time_limit=time_limit, effort=effort, seed=seed, workers=workers,
                      on_progress=on_progress)


def solve_case(
    case: Case,
    *,
    time_limit: float = 60.0,
    effort: float | None = None,
    seed: int = 0,
    workers: int = 1,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Schedule:
    """The best schedule over all placements of ``case``.

    A first round gives every placement a share of the time, those with the smallest bounds first; a placement whose
    lower bound is not below the best makespan is passed over. What time is left goes to the winner.
    """
    from solver.cpsat import Budget

    budget = Budget(seconds=time_limit, seed=seed, workers=workers)
    ranked = sorted(case.placements, key=lambda placement: _bound(placement.problem, case.micro_batches))
    best: Schedule | None = None
    winner: Placement | None = None
    refusals: list[Infeasible] = []
    effort_each = None if effort is None else effort / (2 * len(ranked))

    def report(progress: Progress, placement: Placement) -> None:
        if best is None or progress.best.makespan < best.makespan or placement is winner:
            on_progress(replace(progress, best=placement.label(progress.best), elapsed=budget.elapsed))

    for number, placement in enumerate(ranked):
        if best is not None and (budget.spent or _bound(placement.problem, case.micro_batches) >= best.makespan):
            continue
        share = budget.left / (len(ranked) - number + 1) if len(ranked) > 1 else budget.left
        try:
            found = solve(placement.problem, case.micro_batches, time_limit=share, effort=effort_each, seed=seed,
                          workers=workers, on_progress=lambda p, placement=placement: report(p, placement))  # type: ignore[misc]
        except Infeasible as refusal:
            refusals.append(refusal)
            continue
        if best is None or found.makespan < best.makespan:
            best, winner = found, placement
        if found.solver.get("interrupted"):
            budget.interrupted = True
    if best is None or winner is None:
        raise refusals[0]
    if len(ranked) > 1 and not budget.spent and best.gap > 0:
        chosen = winner
        best = solve(chosen.problem, case.micro_batches, time_limit=budget.left,
                     effort=None if effort is None else effort / 2, seed=seed, workers=workers, start=best,
                     on_progress=lambda progress: report(progress, chosen))
    seconds = round(budget.elapsed, 3)
    bounds = [max(_bound(p.problem, case.micro_batches), best.makespan_bound if p is winner else 0.0) for p in ranked]
    return winner.label(best).with_solver(seconds=seconds, placements=len(ranked),
                                          bound_over_placements=min(*bounds, best.makespan) if bounds else None)


def _bound(problem: Problem, micro_batches: int) -> float:
    instance = Instance.of(problem)
    return instance.bound(makespan_bound(instance, micro_batches))


