"""The search: schedules for the work of one micro-batch, repeated, on devices with limited memory.

The input is a :class:`Problem`: blocks with durations, memory and dependencies, on devices. The output is a
:class:`Schedule` with a proven lower bound on its makespan, and a steady state if there is one. Two stages that fit one
micro-batch each, forward 1 and backward 2:

>>> from weft.solver import Block, BlockKind, Dependency, Device, Problem, baseline, solve, validate
>>> blocks = (
...     Block("F0", BlockKind.FORWARD, devices=(0,), duration=1, memory=(1,)),
...     Block("F1", BlockKind.FORWARD, devices=(1,), duration=1, memory=(1,), after=(Dependency("F0"),)),
...     Block("B1", BlockKind.BACKWARD, devices=(1,), duration=2, memory=(-1,), after=(Dependency("F1"),)),
...     Block("B0", BlockKind.BACKWARD, devices=(0,), duration=2, memory=(-1,), after=(Dependency("B1"),)))
>>> problem = Problem("two stages", (Device("gpu0", memory=2), Device("gpu1", memory=1)), blocks)
>>> schedule = solve(problem, micro_batches=8, effort=1.0)
>>> schedule.makespan, schedule.makespan_bound, schedule.period
(27.0, 27.0, 3.0)
>>> validate(schedule)  # raises InvalidSchedule for a schedule that breaks a rule
>>> baseline("gpipe", problem, 8).peak_memory  # published schedules by name: BASELINES lists them
(8, 8)

Importing this package costs nothing: the libraries behind a name (numpy, OR-Tools) are loaded when it is first used.
The rooms, from the ground up: input and output (:mod:`~weft.solver.problem`, :mod:`~weft.solver.schedule`,
:mod:`~weft.solver.timing`, :mod:`~weft.solver.ticks`, :mod:`~weft.solver.judge`, :mod:`~weft.solver.io`,
:mod:`~weft.solver.control`), relations true of every schedule (:mod:`~weft.solver.relations`), calls of CP-SAT
(:mod:`~weft.solver.cpsat`), why nothing fits (:mod:`~weft.solver.feasibility`), lower bounds
(:mod:`~weft.solver.bounds`), published schedules (:mod:`~weft.solver.baselines`), the least period
(:mod:`~weft.solver.period`), the whole step (:mod:`~weft.solver.step`), the least latency
(:mod:`~weft.solver.latency`), and the weaknesses of a schedule (:mod:`~weft.solver.diagnose`). Beside them: operator
graphs onto devices (:mod:`~weft.solver.placement`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.solver.public_names import lazily

if TYPE_CHECKING:
    from weft.solver.baselines import BASELINES, baseline
    from weft.solver.baselines.lib.base import NotApplicable
    from weft.solver.cpsat.budget import Budget
    from weft.solver.feasibility.infeasible import Infeasible, NoneFound
    from weft.solver.io.problem_files import load_problem, save_problem
    from weft.solver.io.schedule_files import load_schedule, save_schedule
    from weft.solver.judge.validate import InvalidSchedule, validate, violations
    from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem, ProblemError
    from weft.solver.schedule import Operation, Repetend, Schedule
    from weft.solver.step.report import Progress
    from weft.solver.step.search import solve
    from weft.solver.step.stretch import unroll
    from weft.solver.timing import time_orders

__all__ = ["BASELINES", "Block", "BlockKind", "Budget", "Dependency", "Device", "Infeasible", "InvalidSchedule", "Link",
           "NoneFound", "NotApplicable", "Operation", "Problem", "ProblemError", "Progress", "Repetend", "Schedule",
           "baseline", "load_problem", "load_schedule", "save_problem", "save_schedule", "solve", "time_orders",
           "unroll", "validate", "violations"]

__getattr__, __dir__ = lazily(__name__)
