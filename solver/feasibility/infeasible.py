"""Why a problem has no schedule, and the least change with which it has one.

Running micro-batches one at a time needs the least memory at any moment, as long as no micro-batch can give back more
than it has taken so far, or leaves memory occupied: remove all micro-batches of a schedule but one, and the level of no
device rises. Then a problem has a schedule exactly if one micro-batch alone fits. The order of its blocks that needs
the least is a small CP-SAT problem. The blocks that collide there are found by
:mod:`weft.solver.feasibility.memory_conflict`.

If memory is left occupied, or given back before it is taken, all operations are considered together
(:mod:`weft.solver.feasibility.memory_order`). Every refusal is proven to be impossible; and a change that "works" is
the least, or is called "at most".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.memory_conflict import Collision, Shortage, in_units, shortages
from weft.solver.feasibility.memory_order import Excess, PlaceModel, find_room
from weft.solver.problem import Number
from weft.solver.relations.fixed_order import Op
from weft.solver.relations.min_dist import never_gives_first
from weft.solver.ticks import TickProblem

#: Deterministic seconds for the least memory of one micro-batch, and of all of them.
_ONE, _ALL = 5.0, 2.0
#: The same for a second opinion on one micro-batch, and for each number of micro-batches that is tested for whether
#: they fit.
_AGAIN, _EACH = 0.2, 0.25
#: Up to this number of operations, the least memory of all micro-batches together is searched for.
_MOST_OPERATIONS = 120


def require_room(instance: TickProblem, micro_batches: int, budget: Budget,
                 deterministic: float = float("inf")) -> tuple[Op, ...] | None:
    """An order of all operations that fits the memory, or None if none is found within ``budget`` and about
    ``deterministic`` seconds of it.

    Raises :class:`Infeasible` if it is proven that no schedule of ``micro_batches`` micro-batches fits.
    """
    instance = instance.in_sequence
    in_turn = never_gives_first(instance)
    one = PlaceModel(instance, 1, more=True).least_excess(budget, _ONE) if in_turn else None
    if one is not None and one.missing and one.least and find_room(instance, 1, budget, _AGAIN).order is None:
        raise _Refusal(instance, micro_batches, budget, in_turn).of_one(one)
    if one is not None and not one.missing and not _left_behind(instance):
        return tuple((block, m) for m in range(micro_batches) for block, _ in one.order)
    if not any(_piles_up(instance, device, micro_batches) for device in range(len(instance.capacity))):
        room = find_room(instance, micro_batches, budget, deterministic)
        if not room.impossible:
            return room.order
    raise _Refusal(instance, micro_batches, budget, in_turn).of_all()


def _left_behind(instance: TickProblem) -> dict[int, int]:
    """The memory that every micro-batch leaves occupied, by device with limited memory."""
    return {device: left for device, change in enumerate(instance.change)
            if instance.limited(device) and (left := sum(change.values())) > 0}


def _piles_up(instance: TickProblem, device: int, micro_batches: int) -> bool:
    """Whether the memory that all micro-batches leave occupied is too much in any order."""
    capacity = instance.capacity[device]
    return capacity is not None and instance.limited(device) and _least_at_last(
        instance, device, micro_batches) > capacity


def _least_at_last(instance: TickProblem, device: int, micro_batches: int) -> int:
    """The least level of the device when its last operation starts.

    The last operation on the device, whichever it is, starts after all others have taken and given back.
    """
    take, change = instance.take[device], instance.change[device]
    return sum(change.values()) * micro_batches + min(take[i] - change[i] for i in change)


class _Refusal:
    """The refusal if ``micro_batches`` micro-batches do not fit. ``in_turn``: no micro-batch gives back more than it
    has taken so far."""

    def __init__(self, instance: TickProblem, micro_batches: int, budget: Budget, in_turn: bool) -> None:
        self.instance = instance
        self.micro_batches = micro_batches
        self.budget = budget
        self.in_turn = in_turn
        self.left = _left_behind(instance)

    def of_one(self, one: Excess) -> Infeasible:
        """The refusal if one micro-batch alone does not fit."""
        if self.left:
            return self.of_all(fewer=False)
        return self._said(shortages(self.instance, one.missing, {}, [block for block, _ in one.order]), None)

    def of_all(self, *, fewer: bool = True) -> Infeasible:
        """The refusal if all micro-batches together do not fit; ``fewer``: perhaps fewer do."""
        most = self._most_micro_batches() if fewer and self.in_turn and self.left else None
        in_turn = self._one_after_another() if self.in_turn else None
        if in_turn is not None and in_turn.least:
            left = {device: self.left.get(device, 0) * (self.micro_batches - 1) for device in in_turn.missing}
            return self._said(shortages(self.instance, in_turn.missing, left, [block for block, _ in in_turn.order]),
                              most)
        found = in_turn
        if self.micro_batches * len(self.instance.durations) <= _MOST_OPERATIONS:
            found = PlaceModel(self.instance, self.micro_batches, more=True).least_excess(self.budget, _ALL) or in_turn
        return self._said(() if found is None else tuple(self._shortage(device, amount, found)
                                                         for device, amount in found.missing.items()), most)

    def _one_after_another(self) -> Excess | None:
        """The need of one micro-batch after the other; the least if the memory left occupied alone needs as much."""
        kept = {device: left * (self.micro_batches - 1) for device, left in self.left.items()}
        found = PlaceModel(self.instance, 1, more=True, kept=kept).least_excess(self.budget, _ONE)
        if found is None:
            return None
        least = all(_least_at_last(self.instance, device, self.micro_batches) >= capacity + amount
                    for device, amount in found.missing.items()
                    if (capacity := self.instance.capacity[device]) is not None)
        order = tuple((block, m) for m in range(self.micro_batches) for block, _ in found.order)
        return replace(found, order=order if not least else found.order, least=least)

    def _shortage(self, device: int, missing: int, found: Excess) -> Shortage:
        """The shortage of the device if all operations run in the order of ``found``, and its contents at the worst
        moment."""
        instance, capacity = self.instance, self.instance.capacity[device] or 0
        level, worst, at = 0, -1, -1
        row = [op for op in found.order if op[0] in instance.take[device]]
        for place, (block, _) in enumerate(row):
            if level + instance.take[device][block] > worst:
                worst, at = level + instance.take[device][block], place
            level += instance.change[device][block]
        amounts = _held(row[:at], instance.change[device])
        amounts[row[at][0]] = amounts.get(row[at][0], 0) + instance.take[device][row[at][0]]
        held = Collision(row[at][0], tuple(amounts.items()), 0, forced=False)
        return Shortage(device, instance.problem.devices[device].memory or 0, in_units(instance, capacity + missing),
                        row[at][0], tuple((block, in_units(instance, amount)) for block, amount
                                          in held.least(capacity).held if held.total == worst), 0, False, found.least)

    def _most_micro_batches(self) -> tuple[int, bool] | None:
        """The largest number of micro-batches known to fit, and whether one more does not; None if one does not.

        Fewer fit if more do: remove the last, and the level of no device rises.
        """
        fits, too_many, proven = 0, self.micro_batches, True
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if any(_piles_up(self.instance, device, middle) for device in self.left):
                too_many, proven = middle, True
                continue
            room = find_room(self.instance, middle, self.budget, _EACH)
            if room.order is not None:
                fits = middle
            else:
                too_many, proven = middle, room.impossible
        return (fits, proven) if fits else None

    def _said(self, found: tuple[Shortage, ...], most: tuple[int, bool] | None) -> Infeasible:
        instance, n = self.instance, self.micro_batches
        name, unit = instance.problem.name, instance.problem.memory_unit
        behind = in_units(instance, max(self.left.values(), default=0))
        if not self.in_turn:
            remark = f" of {n} micro-batches" if n > 1 else ""
            sentences = [f"{name}: no schedule{remark} fits the devices' memory, in whichever order operations run"]
        else:
            remark = f" (every micro-batch leaves {_text(behind, unit)} behind, and there are {n})" if behind else ""
            single = "even with one micro-batch at a time" if not behind else "in whichever order operations run"
            sentences = [f"{name}: no schedule fits the devices' memory, {single}{remark}"]
        sentences[0] += ": " if found else ""
        sentences[0] += "; ".join(_lack(instance, shortage) for shortage in found)
        if found:
            worst = max(found, key=lambda shortage: shortage.missing)
            sentences += [_collision(instance, worst)] if worst.held else []
        if most is not None:
            count, exact = most
            sentences.append(f"{'' if exact else 'at least '}{count} micro-batch{'es' if count != 1 else ''} would fit")
        return Infeasible("; ".join(sentences), found, None if most is None else most[0],
                          most_exact=most is None or most[1])


def _held(row: list[Op], change: Mapping[int, int]) -> dict[int, int]:
    """The memory occupied after ``row``, by the blocks that took it: an amount given back was taken by the latest block
    of the same micro-batch, or of any."""
    taken: list[list[int]] = []  # block, micro-batch, amount
    for block, m in row:
        amount = change[block]
        if amount > 0:
            taken.append([block, m, amount])
        for entry in sorted(reversed(taken), key=lambda entry: entry[1] != m):
            given = min(entry[2], max(0, -amount))
            entry[2] -= given
            amount += given
    held: dict[int, int] = {}
    for block, _, amount in taken:
        if amount:
            held[block] = held.get(block, 0) + amount
    return held


def _lack(instance: TickProblem, shortage: Shortage) -> str:
    entry, unit = instance.problem.devices[shortage.device], instance.problem.memory_unit
    missing = Fraction(str(shortage.least)) - Fraction(str(entry.memory))
    if not shortage.exact:
        return (f"device {entry.name!r} has {_text(entry.memory or 0, unit)}, at most {_text(missing, unit)} too "
                f"little: {_text(shortage.least, unit)} works, and less may")
    return (f"device {entry.name!r} has {_text(entry.memory or 0, unit)}, {_text(missing, unit)} too little: the least "
            f"that works is {_text(shortage.least, unit)}")


def _collision(instance: TickProblem, shortage: Shortage) -> str:
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


class Infeasible(ValueError):
    """No schedule fits the devices' memory; the message says where, how much is missing and what would work.

    ``shortages`` says the same device by device, if known. ``most_micro_batches`` is the number that fit if each leaves
    memory occupied, None if their number does not matter; ``most_exact``: one more does not.
    """

    def __init__(self, message: str, shortages: tuple[Shortage, ...] = (),
                 most_micro_batches: int | None = None, *, most_exact: bool = True) -> None:
        super().__init__(message)
        self.shortages = shortages
        self.most_micro_batches = most_micro_batches
        self.most_exact = most_exact


class NoneFound(Infeasible):
    """No schedule or placement was found within the limit, and it is not proven that there is none."""


class NoWholePeriod(NoneFound):
    """The steady states found take more micro-batches than run: none shows between warm-up and cool-down."""
