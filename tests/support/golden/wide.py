"""Golden runs of problems with choices, jobs and classes, of sequences, and of jobs that share GPUs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import weft
from experiments.lib.extended import EXTENSIONS, extended, widened
from tests.support.class_runs import drawn_pipeline
from tests.support.golden.said import UNLIMITED, Run, or_refused, said_wide, starts
from tests.support.paths import ROOT
from tests.support.sharing import one_gpu
from tests.support.wide_problems import keep_or_recompute
from weft.app.share.search import Question, share_jobs
from weft.solver.choices.sequences.solve import solve_sequence
from weft.solver.choices.solve import solve_run
from weft.solver.problem.rounds import Run as WideRun

_PROBLEMS = ROOT / "experiments" / "problems"
#: What is searched of each shipped problem.
_SHIPPED: Mapping[str, Mapping[str, Any]] = {
    "all-reduce-chunks": {"micro_batches": 1}, "two-jobs": {"micro_batches": {"one": 4, "two": 4}},
    "two-lengths": {"micro_batches": ["short", "long", "short", "long"]}}


def runs() -> Iterator[tuple[str, Run]]:
    """By name."""
    for number, extension in enumerate(EXTENSIONS):
        yield f"extended by {extension}", partial(or_refused, partial(_extended, number))
    for name in _SHIPPED:
        yield f"problem {name}", partial(_shipped, name)
    yield "problem two-lengths, reordered", partial(_shipped, "two-lengths", reorder=True)
    for objective in ("span", "rate"):
        yield f"choices for the {objective}", partial(or_refused, partial(_chosen, objective))
    for seed, split in ((1, False), (3, True)):
        yield f"sequence {seed}", partial(or_refused, partial(_sequence, seed, split))
    yield "sequence of any classes", partial(or_refused, partial(_any_sequence, 101))
    yield "share two jobs", partial(_shared, Question())
    yield "share two jobs 2:1, within limits", partial(_shared, Question("2:1", {"a": 1.5, "b": 2.5}))


def _extended(number: int) -> dict[str, Any]:
    problem, run = widened(extended(len(EXTENSIONS), 3)[number])
    return said_wide(solve_run(problem, run, time_limit=UNLIMITED, effort=0.1, seed=number))


def _shipped(name: str, **options: Any) -> dict[str, Any]:
    return said_wide(weft.solve(_PROBLEMS / f"{name}.json", time_limit=UNLIMITED, effort=0.5, seed=1,
                                **_SHIPPED[name], **options))


def _chosen(objective: str) -> dict[str, Any]:
    problem = keep_or_recompute(4, classes=True)
    return said_wide(solve_run(problem, ["short", "long", "short"], objective=objective, time_limit=UNLIMITED,
                                effort=0.5, seed=2))


def _sequence(seed: int, split: bool) -> dict[str, Any]:
    problem = drawn_pipeline(seed, split=split)
    draw = random.Random(seed)
    return said_wide(solve_sequence(problem, WideRun.of(problem, [draw.choice(problem.classes) for _ in range(4)]),
                                    time_limit=UNLIMITED, effort=0.2, seed=seed))


def _any_sequence(seed: int) -> dict[str, Any]:
    problem = drawn_pipeline(seed)
    return said_wide(solve_sequence(problem, WideRun.of_any_class(problem, 4), any_class=True, time_limit=UNLIMITED,
                                    effort=0.5, seed=1))


def _shared(question: Question) -> dict[str, Any]:
    found = share_jobs([one_gpu("a", 6, 4), one_gpu("b", 9, 3)], question,
                       weft.SearchOptions(UNLIMITED, 0.5, seed=1))
    return {"period": found.round.period, "bound": found.round.bound, "jobs": [job.to_json() for job in found.jobs],
            "operations": starts(found.schedule)}
