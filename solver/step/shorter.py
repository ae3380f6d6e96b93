"""Whether any schedule is shorter than a makespan.

One model of all operations (:mod:`weft.solver.step.order_model`) is asked for a schedule that ends in time. Then every
operation has a window, from its head to what its tail leaves, and what CP-SAT propagates among the windows of a device
refutes in a moment makespans that are 4 % above what heads and tails alone prove. A proof counts once it is confirmed.
"""

from __future__ import annotations

from math import ceil

from weft.solver.baselines.lib.at_once import at_once
from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import Attempt, confirmed, race
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.relations.graph import Contracted
from weft.solver.step.order_model import Improvement, OrderModel
from weft.solver.step.proven import Proven


def shorter(proven: Proven, than: int, budget: Budget, deterministic: float, known: FixedOrder | None = None,
            part: Contracted | None = None) -> Improvement:
    """Orders of less than ``than`` ticks; or ``than`` as a bound, where it is proven that there are none; or neither
    within so many ``deterministic`` seconds. ``known``: an order to begin with. No lanes may share a memory. Of a
    problem with less time for its barriers, ``part``, orders may take longer in the whole."""
    instance, count, bound = proven.instance, proven.micro_batches, ceil(proven.bound)
    cut = count * part.cut if part else 0
    orders = next(at_once(instance.problem, count), ("", None))[1] if known is None else known.orders
    if bound < than and orders is not None and budget.suffices(sum(len(row) ** 2 // 2 for row in orders)):
        fixed = known if known and not part else FixedOrder(part.instance if part else instance, count, orders)
        model = OrderModel(fixed, [(0, len(row)) for row in orders], bound - cut, proven.implied, than - cut - 1)
        attempt = Attempt(model.model, deterministic, relaxation=False)
        outcome = confirmed(attempt, race([attempt], budget)[0], budget)
        if outcome.found:
            return Improvement(model.read(outcome.solver), round(outcome.solver.objective_value) + cut, bound)
        bound = than if outcome.infeasible else bound
    return Improvement(None, than, bound)
