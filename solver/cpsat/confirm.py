"""One way to confirm a proof of infeasibility: a second configuration of CP-SAT gets the chance to find a solution.

CP-SAT releases have had wrong proofs of infeasibility, each in one part of the solver (presolve, the propagators of
disjunctive devices). A proof counts here only if another configuration, given the time that the first one took, finds
no solution either.
"""

from __future__ import annotations

from dataclasses import replace

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import Attempt, Outcome, race, run
from weft.solver.late import cp_model

__all__ = ["confirmed", "proven"]

#: Deterministic seconds that the second configuration gets beside what the first one took: tiny models take none.
_FURTHER = 0.05


def confirmed(attempt: Attempt, outcome: Outcome, budget: Budget) -> Outcome:
    """``outcome`` of ``attempt``; where that is a proof of infeasibility, a solution that disproves it.

    The second configuration has presolve where the first one had none and none where it had some, no linear relaxation,
    no stronger propagation on devices and one worker. Its time counts in ``budget``.
    """
    if not outcome.infeasible:
        return outcome
    used = outcome.solver.response_proto.deterministic_time
    again = replace(attempt, presolve=not attempt.presolve, relaxation=False, disjunctive=False,
                    deterministic=used + _FURTHER)
    second, = race([again], budget)
    return second if second.found else outcome


def proven(model: cp_model.CpModel, budget: Budget, *, deterministic: float = float("inf")) -> Outcome:
    """Solve ``model`` as :func:`weft.solver.cpsat.solve.run` does, with presolve; a proof is :func:`confirmed`.

    ``deterministic``: CP-SAT's deterministic seconds that the first solve may take.
    """
    outcome = run(model, budget, deterministic=deterministic, presolve=True)
    return confirmed(Attempt(model, deterministic, presolve=True), outcome, budget)
