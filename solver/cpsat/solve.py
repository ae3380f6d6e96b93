"""Running CP-SAT under one budget of time, stoppable by Ctrl-C at any moment without losing its results.

One way to confirm a proof of infeasibility: a second configuration of CP-SAT gets the chance to find a solution.

CP-SAT releases have had wrong proofs of infeasibility, each in one part of the solver (presolve, the propagators of
disjunctive devices). A proof counts here only if another configuration, given the time that the first one took, finds
no solution either.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from weft.solver.control.clock import is_over
from weft.solver.control.stopping import STOP, shielded
from weft.solver.cpsat.budget import Budget
from weft.solver.late import cp_model

#: Seconds of its thread's CPU time that a solve may take, and more for each deterministic second that it may. If
#: domains are wide and constraints push each other on a tick at a time, deterministic time nearly stops: such a solve,
#: of three blocks whose times have 15 digits, did not end in minutes. Any other takes a second or two for each. A limit
#: in wall-clock seconds also ended other solves on a busy machine, and runs did not repeat: it is used only if a thread
#: has no clock of its own, and with several workers.
_LEAST_CPU, _CPU = 5.0, 30.0
#: Whether a thread has such a clock.
_CLOCKED = sys.platform not in ("win32", "darwin")
#: Seconds between polls for a stop while one model is solved.
_LOOK = 0.1
#: Seconds that a stopped solve gets to end, before it is left behind.
_GRACE = 0.5


@dataclass(frozen=True)
class Outcome:
    """The outcome of CP-SAT: a solution (``values``), a proof (``optimal`` or ``infeasible``), a bound, or none."""

    solver: cp_model.CpSolver
    status: cp_model.CpSolverStatus

    @property
    def found(self) -> bool:
        """Whether there is a solution to read from ``solver``."""
        return self.status in (cp_model.OPTIMAL, cp_model.FEASIBLE)

    @property
    def optimal(self) -> bool:
        """Whether the solution is proven optimal (for a problem without objective: found)."""
        return bool(self.status == cp_model.OPTIMAL)

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that there is no solution."""
        return bool(self.status == cp_model.INFEASIBLE)


def run(
    model: cp_model.CpModel,
    budget: Budget,
    *,
    deterministic: float = float("inf"),
    workers: int | None = None,
    presolve: bool = False,
    relaxation: bool | Literal["whole"] = True,
) -> Outcome:
    """Solve ``model`` within the rest of ``budget``, and at most ``deterministic`` of its deterministic time.

    On Ctrl-C the solve is stopped, ``budget.interrupted`` set, and the incumbent returned. Presolve is off by default:
    on the models of finite schedules it costs more than it saves. Without ``relaxation`` there is no linear relaxation,
    which is faster without an objective; a ``"whole"`` one contains every constraint, clauses too, which is faster if
    it is nearly exact.
    """
    attempt = Attempt(model, deterministic, presolve, relaxation)
    return _finish([_Solve(attempt, budget, workers or budget.workers)], budget)[0]


@dataclass(frozen=True)
class Attempt:
    """A model and how to solve it, with the parameters of :func:`run`; ``disjunctive`` propagates precedences among the
    blocks of a device more strongly. Without ``precedences`` these are left to the literals that order blocks, which is
    faster if starts have no known end: otherwise two blocks can push each other on a tick at a time."""

    model: cp_model.CpModel
    deterministic: float = float("inf")
    presolve: bool = False
    relaxation: bool | Literal["whole"] = True
    disjunctive: bool = False
    precedences: bool = True


def race(attempts: Sequence[Attempt], budget: Budget,
         decided: Callable[[Outcome], bool] = lambda _: False) -> list[Outcome]:
    """All attempts in parallel, a worker each; the others are stopped as soon as one outcome is ``decided``.

    The outcomes come in the order of ``attempts``. Which of several wins may differ from run to run.
    """
    return _finish([_Solve(attempt, budget, 1) for attempt in attempts], budget, decided)


class _Solve:
    """A solve under way, in a thread of its own: Python delivers Ctrl-C to the main thread only between bytecodes, and
    a solve is one long native call."""

    def __init__(self, attempt: Attempt, budget: Budget, workers: int) -> None:
        self.left_behind = False
        self.solver = cp_model.CpSolver()
        parameters = self.solver.parameters
        parameters.random_seed = budget.seed
        parameters.num_workers = workers
        parameters.cp_model_presolve = attempt.presolve
        parameters.cp_model_probing_level = 0
        if attempt.relaxation is not True:
            parameters.linearization_level = 2 if attempt.relaxation else 0
        if attempt.disjunctive:
            parameters.use_strong_propagation_in_disjunctive = True
            parameters.use_dynamic_precedence_in_disjunctive = True
        if not attempt.precedences:
            parameters.use_precedences_in_disjunctive_constraint = False
        parameters.catch_sigint_signal = False
        limit = min(attempt.deterministic, budget.deterministic_left) / budget.pace.second
        if limit < float("inf"):
            parameters.max_deterministic_time = limit
        self._most_cpu = _LEAST_CPU + _CPU * limit
        self._clock: int | None = None
        wall = min(budget.left, float("inf") if _CLOCKED and workers == 1 else self._most_cpu)
        if wall < float("inf"):
            parameters.max_time_in_seconds = wall
        self.done = threading.Event()
        self._model = attempt.model
        self._pace = budget.pace
        self._result: cp_model.CpSolverStatus | BaseException | None = None
        threading.Thread(target=self._solve, daemon=True).start()

    def _solve(self) -> None:
        if sys.platform != "win32" and sys.platform != "darwin":
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            self._result = self.solver.solve(self._model)
        except BaseException as error:  # passed to the waiting thread, which raises it
            self._result = error
        finally:
            self.done.set()

    @property
    def endless(self) -> bool:
        """Whether its thread has computed for far longer than its deterministic time takes."""
        if self._clock is None or self._most_cpu == float("inf"):
            return False
        with suppress(OSError):  # the thread has ended
            return time.clock_gettime(self._clock) > self._most_cpu
        return False

    @property
    def charge(self) -> float:
        """Deterministic seconds of the finished solve; 0 if it was left behind."""
        if self.left_behind:
            return 0.0
        return self._pace.charge(self.solver.response_proto.deterministic_time, len(self._model.Proto().constraints))

    @property
    def outcome(self) -> Outcome:
        """The outcome of the finished solve."""
        if self.left_behind:
            return Outcome(self.solver, cp_model.UNKNOWN)
        if isinstance(self._result, BaseException):
            raise self._result
        if self._result is None or self._result == cp_model.MODEL_INVALID:
            raise AssertionError(f"CP-SAT refuses the model: {self._model.validate()}")
        return Outcome(self.solver, self._result)


def _finish(solves: Sequence[_Solve], budget: Budget,
            decided: Callable[[Outcome], bool] = lambda _: False) -> list[Outcome]:
    """Wait for ``solves``, or stop the rest once one is ``decided``, time is over or Ctrl-C comes.

    A solve that does not stop in time (a large model that is still being loaded) is left behind, its outcome unknown.
    """
    running, stopped = list(solves), False
    over: float | None = None  # since when time is
    with shielded():  # a stop raised between two solves' ends would leave one running
        while running:
            try:
                running[0].done.wait(_LOOK if len(running) == 1 else 0.005)
            except KeyboardInterrupt:
                budget.interrupted = True
            budget.interrupted = budget.interrupted or STOP.hear()
            if over is None and (budget.left <= 0 or is_over()):
                over, stopped = time.monotonic(), True
            if over is not None and time.monotonic() - over > _GRACE:
                for solve in running:
                    solve.left_behind = not solve.done.is_set()
            ended = [solve for solve in running if solve.done.is_set() or solve.left_behind]
            running = [solve for solve in running if solve not in ended]
            stopped = stopped or budget.interrupted or any(decided(solve.outcome) for solve in ended)
            for solve in running:
                if stopped or solve.endless:  # repeatedly: one that has not begun yet does not react
                    solve.solver.stop_search()
    outcomes = [solve.outcome for solve in solves]
    budget.deterministic_used += sum(solve.charge for solve in solves)
    return outcomes


#: Deterministic seconds of the second configuration beyond the time of the first: tiny models take none.
_FURTHER = 0.05


def confirmed(attempt: Attempt, outcome: Outcome, budget: Budget) -> Outcome:
    """``outcome`` of ``attempt``; if that is a proof of infeasibility, a solution that disproves it, if one is found.

    The second configuration inverts presolve, and has no linear relaxation, no stronger propagation on devices and one
    worker. Its time counts in ``budget``.
    """
    if not outcome.infeasible:
        return outcome
    used = outcome.solver.response_proto.deterministic_time
    again = replace(attempt, presolve=not attempt.presolve, relaxation=False, disjunctive=False,
                    deterministic=used + _FURTHER)
    second, = race([again], budget)
    return second if second.found else outcome


def proven(model: cp_model.CpModel, budget: Budget, *, deterministic: float = float("inf")) -> Outcome:
    """Solve ``model`` like :func:`weft.solver.cpsat.solve.run`, with presolve; a proof is :func:`confirmed`.

    ``deterministic``: CP-SAT's deterministic seconds that the first solve may take.
    """
    outcome = run(model, budget, deterministic=deterministic, presolve=True)
    return confirmed(Attempt(model, deterministic, presolve=True), outcome, budget)
