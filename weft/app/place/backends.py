"""The choice of backends for the parts of a captured model: find and measure candidates, search a cover, run it
whole."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.runtime.backends.assignment import AssignedPart, Assignment
from weft.runtime.backends.build import Choice, captured_of, device_of
from weft.runtime.backends.candidates import SimilarParts, candidates_of, cover_problem
from weft.runtime.backends.graph import UnitGraph
from weft.runtime.backends.measuring import Measuring, boundaries_of, machine_name, measuring
from weft.runtime.backends.registry import EAGER, Backend, backends_named
from weft.runtime.backends.trial import TrialResult
from weft.solver.cpsat.budget import Budget
from weft.solver.io.writing import default_folder
from weft.solver.placement.cover.problem import Cover, CoverProblem
from weft.solver.placement.cover.search import FASTER, alone, climb, find_cover

#: Number of covers run as a whole: the best by the parts, each backend alone, and neighbours.
TRIES = 8
#: How often the choice is compared with the best single backend, each run in a separate process: it must win all.
DUELS = 3


@dataclass(frozen=True)
class BackendChoice:
    """``assignment``: the choice; ``cover``: the same in the search's terms, with its bound. ``notes``: a sentence for
    each part that was skipped, refused or not measured."""

    assignment: Assignment
    cover: Cover
    candidates: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The ``weft.backends/1`` object."""
        return self.assignment.to_json()

    def __str__(self) -> str:
        chosen, cover = self.assignment, self.cover
        lines = [f"{chosen.model}: {cover.problem.operators} operators, {self.candidates} kinds of parts measured on "
                 f"{chosen.machine}", f"{'backend':<16}{'parts':>6}{'operators':>11}{'ms':>10}{'alone ms':>10}"]
        parts, operators, seconds = Counter[str](), Counter[str](), Counter[str]()
        for part in cover.parts:
            parts[part.backend] += 1
            operators[part.backend] += len(part.operators)
            seconds[part.backend] += part.seconds  # type: ignore[assignment]
        for backend in sorted({*parts, *(chosen.alone or {})}):
            by_itself = (chosen.alone or {}).get(backend)
            lines.append(f"{backend:<16}{parts[backend]:>6}{operators[backend]:>11}{seconds[backend] * 1e3:>10.3f}"
                         f"{'' if by_itself is None else f'{by_itself * 1e3:.3f}':>10}")
        lines.append(f"predicted   {cover.seconds * 1e3:.3f} ms, {cover.boundaries * 1e3:.3f} between backends; "
                     f"nothing of these parts takes less than {cover.bound * 1e3:.3f} ms")
        if chosen.measured is not None and chosen.eager is not None:
            lines.append(f"measured    {chosen.measured * 1e3:.3f} ms, eager {chosen.eager * 1e3:.3f} ms beside it")
        return "\n".join([*lines, *(f"note        {note}" for note in self.notes)])


def choose_backends(path: str | os.PathLike[str], backends: str | Sequence[str], *, time_limit: float,
                    measure_limit: float, trial_limit: float, trains: bool = False,
                    on_progress: Callable[[str], None] = lambda text: None,
                    folder: Path | None = None) -> BackendChoice:
    """See :func:`weft.place_backends`."""
    graph = UnitGraph(captured_of(path))
    device = device_of(graph.captured).type
    usable, notes = backends_named(backends, device, trains)
    with measuring(path, usable, folder=default_folder() / "backends" if folder is None else folder,
                   limit=trial_limit, trains=trains, shared=device == "cuda") as own:
        eager = own.eager(usable[0], graph.captured.digest)
        found = _measured(graph, own, usable, measure_limit, notes, on_progress)
        used = [backend for backend in usable if backend.name == EAGER or any(
            alike.backend is backend and trial.refused is None for alike, trial in found)]
        on_progress("boundaries between backends")
        problem = cover_problem(graph, eager, found, boundaries_of(own, used))
        budget = Budget(time_limit)
        with budget.part(0.5) as part:
            best = find_cover(problem, part)
        cover, measured = _run_whole(own, best, eager, budget, on_progress, notes)
    assignment = Assignment(Path(path).stem, graph.captured.digest, machine_name(), tuple(
        AssignedPart(part.backend, tuple(node.name for unit in sorted(part.operators) for node in graph.units[unit]),
                     part.seconds) for part in (cover.parts[number] for number in cover.order)),
        cover.seconds, cover.bound, measured[cover.chosen], eager.seconds, _alone(problem, measured), trains)
    return BackendChoice(assignment, cover, len(found), tuple(notes))


def _measured(graph: UnitGraph, own: Measuring, usable: Sequence[Backend], limit: float, notes: list[str],
              on_progress: Callable[[str], None]) -> list[tuple[SimilarParts, TrialResult]]:
    """Candidates with their measurements, until ``limit`` seconds have passed; known results are reused. The next
    backend is the one with the least time so far, and one part may take no more than an even share of it."""
    found, late, refused = list[tuple[SimilarParts, TrialResult]](), Counter[str](), dict[str, list[str]]()
    listed = [candidates_of(graph, backend)[::-1] for backend in usable]
    total, used = sum(map(len, listed)), Counter[str]()
    while left := [each for each in listed if each]:
        alike = min(left, key=lambda each: (used[each[-1].backend.name], len(each))).pop()
        name, began = alike.backend.name, time.monotonic()
        trial = own.kept(alike.backend, alike.key)
        if trial is None:
            if used.total() >= limit:
                late[name] += 1
                continue
            on_progress(f"part {total - sum(map(len, listed))} of {total}, {len(alike.places[0])} operators, {name}")
            trial = own.part(alike.backend, alike.key, alike.places[0], limit / len(left))
            used[name] += time.monotonic() - began  # type: ignore[assignment]
        found.append((alike, trial))
        if trial.refused is not None:
            refused.setdefault(name, []).append(f"{trial.refused} on {graph.units[alike.places[0][0]][0].name}"
                                                f" ({len(alike.places[0])} operators)")
    for name, reasons in refused.items():
        more = f", and so refused for {len(reasons) - 1} more kinds of parts" if len(reasons) > 1 else ""
        notes.append(f"{name}: {reasons[0]}{more}: not used there")
    notes += [f"{name}: {count} kinds of parts were not measured in {limit:g} s; another call goes on from there"
              "" for name, count in late.items()]
    return found


def _run_whole(own: Measuring, best: Cover, eager: TrialResult, budget: Budget, on_progress: Callable[[str], None],
               notes: list[str]) -> tuple[Cover, dict[tuple[int, ...], float]]:
    """The cover that is fastest as a whole, and the time of each one run, as a share of eager measured beside it."""
    measured: dict[tuple[int, ...], float] = {}

    def clock(cover: Cover) -> float:
        if cover.chosen == plain.chosen:
            return eager.seconds
        on_progress(f"whole model {len(measured) + 1} of {TRIES}")
        trial = own.whole(choice_of(cover))
        if trial.refused is not None:
            notes.append(f"a whole of {', '.join(sorted({part.backend for part in cover.parts}))} {trial.refused}: not "
                         "used")
        measured[cover.chosen] = (math.inf if trial.refused is not None else
                                  trial.seconds / max(trial.eager, 1e-12) * eager.seconds)
        return measured[cover.chosen]

    plain = alone(best.problem, EAGER)
    measured[plain.chosen] = eager.seconds
    cover, _ = climb(best, clock, budget, TRIES)
    lone = min((alone(best.problem, backend) for backend in best.problem.backends),
               key=lambda one: measured.get(one.chosen, math.inf))
    for _ in range(DUELS):
        if cover.chosen == lone.chosen:
            break
        on_progress("the choice beside the best single backend")
        trial = own.whole(choice_of(cover), choice_of(lone))
        if trial.refused is not None or trial.seconds > FASTER * trial.eager:
            cover = replace(lone, bound=best.bound)
    return cover, measured


def choice_of(cover: Cover) -> Choice:
    """The backend and the units of each part."""
    return [(part.backend, sorted(part.operators)) for part in cover.parts]


def _alone(problem: CoverProblem, measured: dict[tuple[int, ...], float]) -> dict[str, float]:
    """The time of each backend alone, for those that were run."""
    covers = {backend: alone(problem, backend) for backend in problem.backends}
    return {backend: measured[cover.chosen] for backend, cover in covers.items()
            if math.isfinite(measured.get(cover.chosen, math.inf))}
