"""Why a problem has no schedule, and the least change that gives it one.

Running micro-batches one at a time holds the least memory at any moment, as long as no micro-batch can give back more
than it has taken so far. Then a problem has a schedule exactly if one micro-batch alone fits (on top of what the
micro-batches before it have left behind, if they do not give all back). In which order its blocks need
the least is a small CP-SAT problem. Which blocks are in each other's way there is the word of :mod:`solver.collision`.
"""

from __future__ import annotations

from fractions import Fraction

from ortools.sat.python import cp_model

from solver.collision import Shortage, in_units, shortages
from solver.cpsat import Budget, run
from solver.instance import Instance
from solver.problem import Number

__all__ = ["Infeasible", "NotFound", "require_room"]


class Infeasible(ValueError):
    """No schedule fits the devices' memory; the message says where, how much is missing and what would work.

    ``shortages`` says the same device by device, where that is known. ``most_micro_batches`` is how many fit
    where each leaves memory behind, None where their number is not what matters.
    """

    def __init__(self, message: str, shortages: tuple[Shortage, ...] = (),
                 most_micro_batches: int | None = None) -> None:
        super().__init__(message)
        self.shortages = shortages
        self.most_micro_batches = most_micro_batches


class NotFound(Infeasible):
    """No schedule or placement was found within the limit; none is proven impossible."""


def require_room(instance: Instance, micro_batches: int, budget: Budget) -> None:
    """Raise :class:`Infeasible` if memory rules out every schedule of ``micro_batches`` micro-batches.

    Returns without a word where it does not, or where this argument does not decide (see the module docstring).
    """
    if not _never_gives_first(instance, budget):
        return
    missing, order = _least_excess(instance, micro_batches, budget)
    if not missing:
        return
    left = {device: max(0, sum(instance.change[device].values())) for device in missing}
    most = None
    if any(left.values()) and not _least_excess(instance, 1, budget)[0]:
        if not any(_piles_up(instance, device, micro_batches) for device in missing):
            return
        most = _most_micro_batches(instance, micro_batches, budget)
    found = shortages(instance, missing, {device: amount * (micro_batches - 1) for device, amount in left.items()},
                      order)
    name, unit = instance.problem.name, instance.problem.memory_unit
    behind = in_units(instance, max(left.values()))
    remark = "" if behind <= 0 else (f" (every micro-batch leaves {_text(behind, unit)} behind, and there are "
                                     f"{micro_batches})")
    works = "" if most is None else f"; {most} micro-batch{'es' if most != 1 else ''} would fit"
    worst = max(found, key=lambda shortage: shortage.missing)
    raise Infeasible(f"{name}: no schedule fits the devices' memory, even with one micro-batch at a time{remark}: "
                     + "; ".join(_lack(instance, shortage) for shortage in found) + "; "
                     + _collision(instance, worst) + works, found, most)


def _lack(instance: Instance, shortage: Shortage) -> str:
    entry, unit = instance.problem.devices[shortage.device], instance.problem.memory_unit
    missing = Fraction(str(shortage.least)) - Fraction(str(entry.memory))
    return (f"device {entry.name!r} has {_text(entry.memory or 0, unit)}, {_text(missing, unit)} too little: the least "
            f"that works is {_text(shortage.least, unit)}")


def _collision(instance: Instance, shortage: Shortage) -> str:
    problem, unit = instance.problem, instance.problem.memory_unit
    held = [f"{problem.blocks[block].name} ({_text(amount, unit)})" for block, amount in shortage.held]
    if shortage.left_behind:
        held.append(f"what earlier micro-batches leave ({_text(shortage.left_behind, unit)})")
    order = "in every order" if shortage.forced else "in the order that needs least"
    return (f"when block {problem.blocks[shortage.at].name!r} starts, {problem.devices[shortage.device].name!r} holds, "
            f"{order}, {' and '.join(held)}")


def _text(amount: Number | Fraction, unit: str) -> str:
    exact = Fraction(str(amount))
    number = int(exact) if exact.denominator == 1 else float(exact)
    return f"{float(exact) / 2**30:.3f} GiB ({number} B)" if unit == "B" and abs(exact) >= 2**20 else f"{number} {unit}"


def _piles_up(instance: Instance, device: int, micro_batches: int) -> bool:
    """Whether what all micro-batches leave behind is too much, whatever the order.

    Whichever operation on the device is the last one, it starts where everything else has been taken and given back.
    """
    take, change = instance.take[device], instance.change[device]
    all_left = sum(change.values()) * micro_batches
    return all_left + min(take[i] - change[i] for i in change) > (instance.capacity[device] or 0)


def _most_micro_batches(instance: Instance, too_many: int, budget: Budget) -> int:
    """The largest number of micro-batches that fit one after the other; one does."""
    fits = 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if _least_excess(instance, middle, budget)[0]:
            too_many = middle
        else:
            fits = middle
    return fits


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


def _least_excess(instance: Instance, micro_batches: int, budget: Budget) -> tuple[dict[int, int], list[int]]:
    """Per device that has too little memory, how much more makes one micro-batch fit, the least in total; and the
    order of its blocks that needs no more. Nothing where all fits, or where that is not known."""
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
        return {}, []
    model.minimize(cp_model.LinearExpr.sum(list(excess.values())))
    outcome = run(model, budget, deterministic=5.0, workers=1)
    if not outcome.optimal:
        return {}, []
    order = sorted(instance.blocks, key=lambda i: (outcome.solver.value(place[i]), i))
    return {device: value for device, variable in excess.items() if (value := outcome.solver.value(variable))}, order
