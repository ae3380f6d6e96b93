"""What is the least period of a steady state, and which schedule achieves it?

The input is a :class:`~weft.solver.ticks.TickProblem` and any periodic schedule of it. The output is a
:class:`~weft.solver.period.bracket.Bracket`: every period below ``refuted`` is proven impossible, ``best`` is the
shortest steady state found. :func:`~weft.solver.period.search.find_period` is one loop over two registries,
``refuters/`` and ``improvers/``, in the order and with the shares of time of ``strategy``; every constant is in
``params``. Below them: ``periodic`` (a steady state, re-timed to the least period that its order allows),
``modulo_model`` (one fixed period in CP-SAT) and ``decide`` (a schedule, a proof, or neither). ``structure/``
recognises the structure of a problem, ``reductions/`` makes it smaller with the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.solver.public_names import lazily

if TYPE_CHECKING:
    from weft.solver.period.bracket import Bracket
    from weft.solver.period.params import PARAMETERS
    from weft.solver.period.periodic import Periodic
    from weft.solver.period.search import find_period
    from weft.solver.period.shorten import shorten_latency

__all__ = ["PARAMETERS", "Bracket", "Periodic", "find_period", "shorten_latency"]

__getattr__, __dir__ = lazily(__name__)
