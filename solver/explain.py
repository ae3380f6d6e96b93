"""Why a problem has no schedule, and the least change that gives it one.

Running micro-batches one at a time holds the least memory at any moment, as long as no micro-batch can give back more
than it has taken so far. Then a problem has a schedule exactly if one micro-batch alone fits (on top of what the
micro-batches before it have left behind, if they do not give all back). In which order its blocks need
the least is a small CP-SAT problem.
"""

from __future__ import annotations

from fractions import Fraction

from ortools.sat.python import cp_model

from solver.cpsat import Budget, run
from solver.instance import Instance

__all__ = ["Infeasible", "require_room"]


class Infeasible(ValueError):
    """No schedule fits the devices' memory; the message says where, how much is missing and what would work."""


def require_room(instance: Instance, micro_batches: int, budget: Budget) -> None:
    """Raise :class:`Infeasible` if memory rules out every schedule of ``micro_batches`` micro-batches.

    Returns without a word where it does not, or where this argument does not decide (see the module docstring).
    """
    if not _never_gives_first(instance, budget):
        return
    missing = _least_excess(instance, micro_batches, budget)
    if not missing:
        return
    name, unit = instance.problem.name, instance.problem.memory_unit
    wants = []
    for device, amount in missing.items():
        entry = instance.problem.devices[device]
        has = Fraction(str(entry.memory))
        least = ((instance.capacity[device] or 0) + amount) * instance.memory_unit
        wants.append(f"device {entry.name!r} has {_text(has, unit)}, {_text(least - has, unit)} too little: the least "
                     f"that works is {_text(least, unit)}")
    left = max(sum(instance.change[device].values()) for device in missing) * instance.memory_unit
    remark = "" if left <= 0 else (f" (every micro-batch leaves {_text(left, unit)} behind, and there are "
                                   f"{micro_batches})")
    raise Infeasible(f"{name}: no schedule fits the devices' memory, even with one micro-batch at a time{remark}: "
                     + "; ".join(wants))


def _text(amount: Fraction, unit: str) -> str:
    number = int(amount) if amount.denominator == 1 else float(amount)
    return f"{float(amount) / 2**30:.3f} GiB ({number} B)" if unit == "B" else f"{number} {unit}"


def _never_gives_first(instance: Instance, budget: Budget) -> bool:
    """Whether no prefix of a micro-batch's work can leave any device with less than before."""
    model = cp_model.CpModel()
    ran = [model.new_bool_var(f"ran {i}") for i in instance.blocks]
    for arc in instance.arcs:
        if arc.distance == 0:
            model.add_implication(ran[arc.target], ran[arc.source])
    floors = []
    for device, change in enumerate(instance.change):
        if instance.limited(device):
            floor = model.new_int_var(-sum(abs(amount) for amount in change.values()), 0, f"floor {device}")
            level = cp_model.LinearExpr.weighted_sum([ran[i] for i in change], list(change.values()))
            model.add(floor <= 0)
            chosen = model.new_bool_var(f"device {device}")
            model.add(floor >= level).only_enforce_if(chosen)
            model.add(floor == 0).only_enforce_if(~chosen)
            floors.append(floor)
    if not floors:
        return True
    model.minimize(cp_model.LinearExpr.sum(floors))
    outcome = run(model, budget, deterministic=1.0, workers=1)
    return outcome.optimal and outcome.solver.objective_value == 0


def _least_excess(instance: Instance, micro_batches: int, budget: Budget) -> dict[int, int]:
    """Per device that has too little memory, how much more makes one micro-batch fit; the least in total."""
    model = cp_model.CpModel()
    n = len(instance.durations)
    place = [model.new_int_var(0, n - 1, f"place {i}") for i in instance.blocks]
    for arc in instance.arcs:
        if arc.distance == 0:
            model.add(place[arc.target] >= place[arc.source] + 1)
    before: dict[tuple[int, int], cp_model.IntVar] = {}
    for i, j in instance.shared_pairs():
        before[i, j] = literal = model.new_bool_var(f"order {i} {j}")
        model.add(place[i] + 1 <= place[j]).only_enforce_if(literal)
        model.add(place[j] + 1 <= place[i]).only_enforce_if(~literal)
        before[j, i] = literal.negated()  # type: ignore[assignment]
    excess = {}
    for device, capacity in enumerate(instance.capacity):
        if capacity is None or not instance.limited(device):
            continue
        take, change = instance.take[device], instance.change[device]
        left_behind = max(0, sum(change.values())) * (micro_batches - 1)
        most = sum(take.values()) + left_behind
        excess[device] = model.new_int_var(0, most, f"excess {device}")
        for j in (j for j in take if take[j] > 0):
            others = [i for i in change if i != j and change[i]]
            level = cp_model.LinearExpr.weighted_sum([before[i, j] for i in others], [change[i] for i in others])
            model.add(level - excess[device] <= capacity - take[j] - left_behind)
    if not excess:
        return {}
    model.minimize(cp_model.LinearExpr.sum(list(excess.values())))
    outcome = run(model, budget, deterministic=5.0, workers=1)
    if not outcome.optimal:
        return {}
    return {device: value for device, variable in excess.items() if (value := outcome.solver.value(variable))}
