"""What is the least period of a steady state, and which schedule has it?

A :class:`~weft.solver.ticks.TickProblem` and any periodic schedule of it come in. A
:class:`~weft.solver.period.bracket.Bracket` goes out: every period below ``refuted`` is proven impossible, ``best`` is
the shortest steady state found. :func:`~weft.solver.period.search.find_period` is one loop over two registries,
``refuters/`` and ``improvers/``, in the order and with the shares of time of ``strategy``; every constant is in
``params``. Below them: ``periodic`` (a steady state, re-timed to the least period that its order allows),
``modulo_model`` (one fixed period in CP-SAT) and ``decide`` (a schedule, a proof, or neither). ``structure/`` says what
a problem looks like, ``reductions/`` makes it smaller with the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.solver.public_names import listed, loaded

if TYPE_CHECKING:
    from weft.solver.period.bracket import Bracket
    from weft.solver.period.params import PARAMETERS
    from weft.solver.period.periodic import Periodic
    from weft.solver.period.search import find_period
    from weft.solver.period.shorten import shorten_latency

__all__ = ["PARAMETERS", "Bracket", "Periodic", "find_period", "shorten_latency"]

#: Loaded when first used: models need CP-SAT.
_FILES = {"Bracket": "bracket", "PARAMETERS": "params", "Periodic": "periodic", "find_period": "search",
          "shorten_latency": "shorten"}


def __getattr__(name: str) -> Any:
    return loaded(__name__, _FILES, name)


def __dir__() -> list[str]:
    return listed(__name__)
