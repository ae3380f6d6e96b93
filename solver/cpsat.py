"""Running CP-SAT under one budget of time, stoppable by Ctrl-C at any moment without losing what was found."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

__all__ = ["Budget", "Outcome", "run"]


@dataclass
class Budget:
    """How long a search may go on. ``seconds`` is wall time; ``deterministic`` is CP-SAT's machine-independent
    measure (``None``: unlimited). ``interrupted`` is set by Ctrl-C; whoever sees :attr:`spent` returns the best so far.
    """

    seconds: float = float("inf")
    deterministic: float | None = None
    seed: int = 0
    workers: int = 1
    interrupted: bool = False
    started: float = field(default_factory=time.monotonic)
    deterministic_used: float = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the budget was made."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds of wall time left, 0 or more."""
        return max(0.0, self.seconds - self.elapsed)

    @property
    def deterministic_left(self) -> float:
        """Deterministic time left, 0 or more."""
        return float("inf") if self.deterministic is None else max(0.0, self.deterministic - self.deterministic_used)

    @property
    def spent(self) -> bool:
        """Whether the search must stop now."""
        return self.interrupted or self.left <= 0 or self.deterministic_left <= 0


@dataclass(frozen=True)
class Outcome:
    """What CP-SAT said: a solution (``values``), a proof (``optimal`` or ``infeasible``), a bound, or none of these."""

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
    relaxation: bool = True,
    disjunctive: bool = False,
) -> Outcome:
    """Solve ``model`` within what is left of ``budget``, and at most ``deterministic`` of its deterministic time.

    The solve runs in a thread of its own: Python delivers Ctrl-C to the main thread only between bytecodes, and a
    solve is one long native call. On Ctrl-C the solve is stopped, ``budget.interrupted`` set, and the
    incumbent returned. Presolve is off by default: on the models of finite schedules it costs more than it saves.
    Without ``relaxation`` no linear relaxation is kept, which pays where there is no objective. ``disjunctive``
    propagates precedences among the blocks of a device more strongly.
    """
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.random_seed = budget.seed
    parameters.num_workers = workers or budget.workers
    parameters.cp_model_presolve = presolve
    parameters.cp_model_probing_level = 0
    if not relaxation:
        parameters.linearization_level = 0
    if disjunctive:
        parameters.use_strong_propagation_in_disjunctive = True
        parameters.use_dynamic_precedence_in_disjunctive = True
    parameters.catch_sigint_signal = False
    if budget.left < float("inf"):
        parameters.max_time_in_seconds = budget.left
    deterministic_limit = min(deterministic, budget.deterministic_left)
    if deterministic_limit < float("inf"):
        parameters.max_deterministic_time = deterministic_limit

    done = threading.Event()
    result: list[cp_model.CpSolverStatus | BaseException] = []

    def solve() -> None:
        try:
            result.append(solver.solve(model))
        except BaseException as error:  # handed to the waiting thread, which raises it
            result.append(error)
        finally:
            done.set()

    threading.Thread(target=solve, daemon=True).start()
    while True:
        try:
            if done.wait(0.2):
                break
        except KeyboardInterrupt:
            budget.interrupted = True
            solver.stop_search()
    outcome = result[0]
    if isinstance(outcome, BaseException):
        raise outcome
    budget.deterministic_used += solver.response_proto.deterministic_time
    if outcome == cp_model.MODEL_INVALID:
        raise AssertionError(f"CP-SAT refuses the model: {model.validate()}")
    return Outcome(solver, outcome)
