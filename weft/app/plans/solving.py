"""Search of a plan's order and its other open decisions by weft's engine; the result is again a plan.

Each combination of open decisions is a plan (:mod:`weft.models.transform.choices`), each plan a block problem
(:mod:`weft.models.transform.as_blocks.problem`); they share one budget like the placements of a spec
(:mod:`weft.app.solving.solve`), so the bound holds over all of them, and the answer is no worse than any plan in its
own order. The best schedule becomes an order of the plan, and the result is checked again: its communications are
derived a second time, and its times are compared with the inputs of every part (:mod:`weft.models.transform.auditing`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, Unpack

from weft.app.lib.case import Case, CasePlacement
from weft.app.lib.options import OptionsTaken, SearchKeywords, SearchOptions
from weft.app.plans.placing import placements, put
from weft.app.solving.solve import solve_case
from weft.models.layouts.conversion import LayoutPrices, device_prices, uniform
from weft.models.transform.as_blocks.costs import GivenCosts, ModelledCosts, OperatorCosts
from weft.models.transform.as_blocks.problem import PlanBlocks, Pricing, plan_blocks
from weft.models.transform.auditing import breaches
from weft.models.transform.choices import PlanChoice, Refused, Variant, unassigned, variants
from weft.models.transform.plan import InSequence, Preserved, TransformPlan
from weft.models.transform.planned import Part, Planned
from weft.models.transform.program import PlanError
from weft.solver.judge.validate import violations
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Infeasible, NoneFound
from weft.text.units import shown_time

#: A device of :data:`weft.models.hardware.devices.DEVICES`, seconds by pattern, or a custom model.
Costs: TypeAlias = str | Mapping[str, float] | OperatorCosts

#: Maximum number of combinations of open decisions searched.
_MOST = 256
#: Deterministic seconds of each search for stages.
_STAGES = 1.0
#: The work after the search takes at most this many times as long as making a plan's blocks, and is reserved at most
#: this share of the time.
_AFTERWARDS, _MOST_AFTERWARDS = 1.5, 0.4


@dataclass(frozen=True)
class PlanMachine:
    """The machine of a plan. ``costs``: seconds of operators. ``prices``: of communications, by default those of the
    device named by ``costs``, all in one machine, otherwise of uniform links. ``devices``: their number, for unplaced
    operators. ``memory``, ``overlap``, ``split_backward`` and ``grain``: as in
    :class:`~weft.models.transform.as_blocks.problem.Pricing`."""

    costs: Costs
    prices: LayoutPrices | None = None
    devices: int | None = None
    memory: int | tuple[int, ...] | None = None
    overlap: bool = True
    split_backward: bool = True
    grain: int | None = None

    def __post_init__(self) -> None:
        whole = {"devices": self.devices, "grain": self.grain}
        for name, number in whole.items():
            if number is not None and (type(number) is not int or number < 1):
                raise PlanError(f"{name} is {number!r}, it must be a whole number of at least 1")
        amounts = self.memory if isinstance(self.memory, tuple | list) else (self.memory,)
        if any(amount is not None and (type(amount) is not int or amount < 0) for amount in amounts):
            raise PlanError(f"memory is {self.memory!r}, it must be bytes of a device, or of each: whole numbers")
        if not isinstance(self.costs, str | Mapping) and not hasattr(self.costs, "seconds"):
            raise PlanError(f"costs is {self.costs!r}, it must be the name of a device, seconds by pattern of "
                            "operators, or a model of costs")
        if self.prices is not None and not hasattr(self.prices, "messages"):
            raise PlanError(f"prices is {self.prices!r}, it must be prices such as plans.uniform() gives")

    @cached_property
    def pricing(self) -> Pricing:
        """The pricing of its blocks. Raises :class:`~weft.models.transform.program.PlanError` for meaningless costs."""
        costs: OperatorCosts
        if isinstance(self.costs, str):
            costs = ModelledCosts(self.costs)
        elif isinstance(self.costs, Mapping):
            costs = GivenCosts(self.costs)
        else:
            costs = self.costs
        return Pricing(costs, self.memory, self.overlap, self.split_backward, self.grain)

    @property
    def joined(self) -> LayoutPrices:
        """The prices of its communications."""
        if self.prices is not None:
            return self.prices
        return device_prices(ModelledCosts(self.costs).type, 1 << 30) if isinstance(self.costs, str) else uniform()


@dataclass(frozen=True)
class SolvedPlan:
    """The best plan found. ``plan``: with the order found by the search; ``done``: preserved. ``schedule``: the judged
    order of its blocks, with the plan's number of micro-batches if they are alike, else one. ``options``: the decisions
    made. ``considered``: the number of combinations searched, ``refused``: invalid ones with the reasons; ``complete``:
    whether there are no others. ``written``: seconds of the same plan in the order of its listed operators."""

    plan: TransformPlan
    done: Preserved
    schedule: Schedule
    blocks: PlanBlocks
    options: Mapping[str, str]
    considered: int
    written: float
    refused: tuple[Refused, ...] = ()
    complete: bool = True

    @property
    def makespan(self) -> float:
        """Seconds of a step."""
        return self.schedule.makespan

    @property
    def bound(self) -> float:
        """A lower bound on all orders of all plans considered, with these blocks."""
        over: float | None = self.schedule.solver.get("bound_over_placements")
        return self.schedule.makespan_bound if over is None else min(over, self.makespan)

    @property
    def proven(self) -> bool:
        """Whether nothing considered is better."""
        return self.makespan <= self.bound * (1 + RELATIVE_TOLERANCE)

    @property
    def period(self) -> tuple[float, float] | None:
        """Seconds of a micro-batch in a steady state that begins one a period, and a lower bound on it; ``None`` if the
        plan's micro-batches are not alike, or no steady state was searched."""
        entries = self.schedule.solver
        if self.blocks.turns is None or "repetend_period" not in entries:
            return None
        return entries["repetend_period"], entries["repetend_period_bound"]

    @cached_property
    def times(self) -> dict[Part, tuple[float, float]]:
        """Start and end of each part's block."""
        return {part: (operation.start, operation.end) for operation in self.schedule.operations
                for part in self.blocks.block_of(operation.block, operation.micro_batch).parts}

    def __str__(self) -> str:
        step, bound, written = (shown_time(value, "s") for value in (self.makespan, self.bound, self.written))
        proof = f"{'proven the shortest' if self.proven else f'none below {bound}'} of {len(self.blocks.blocks)} blocks"
        plans = f"{self.considered} plans" if self.considered > 1 else "one plan"
        of = f", over {'all' if self.complete else 'the'} {plans} considered" * (
            self.considered > 1 or not self.complete)
        lines = [f"step       {step}, {proof}{of}", f"as listed  {written}"]
        lines += [f"chosen     {name}: {option}" for name, option in self.options.items()]
        lines += [str(entry) for entry in self.done.communications]
        return "\n".join(lines)


def solve_plan(plan: TransformPlan, machine: PlanMachine, options: SearchOptions | None = None,
               **keywords: Unpack[SearchKeywords]) -> SolvedPlan:
    """The plan with its open decisions made so that a step is shortest, with a proven lower bound.

    Open decisions are the order of all parts and communications not fixed by ``order`` or ``pipeline``, the options of
    ``choose`` and :func:`~weft.models.transform.choices.one_of`, and the devices of operators without ``assign``
    (``machine.devices`` is their number). The result's ``plan`` has the order found as an additional rule and runs like
    any other; it was judged as a schedule of blocks, its communications derived again, and its times checked against
    the inputs of every part.

    ``options``, or ``time_limit``, ``effort``, ``seed`` and ``workers`` as keywords, limit the search as those of
    :func:`weft.solve`: one limit covers everything, from listing the plans to checking the answer. As many of the open
    plans are made as its first two fifths allow, at least one, and ``complete`` of the result says whether these are
    all; only assembling and checking one plan may exceed the limit.

    Raises :class:`PlanError` for an impossible plan (with the cycle, if data and orders form one),
    :class:`weft.solver.step.search.Infeasible` if no order of any plan fits the memory, and its subclass ``NoneFound``
    if none was found and the question is open.
    """
    options = OptionsTaken().given(options, keywords)
    if not isinstance(plan, TransformPlan):
        raise PlanError(f"a plan is to be solved, not a {type(plan).__name__}: write plans.Plan(...)")
    if not plan.program.operations:
        raise PlanError(f"the program {plan.program.name!r} has no operators")
    made, refused, complete, longest = _made(plan, machine, options)
    if not made and not complete and options.for_preparation <= 0:
        raise NoneFound(f"{plan.program.name}: found no plan within the time for listing them, {refused[0].reason}, "
                        "and there are more; give more time")
    if not made:
        raise PlanError(refused[0].reason)
    counts = {blocks.micro_batches for _, blocks in made.values()}
    if len(counts) > 1:  # the placements of a case run equal numbers of micro-batches
        made = {title: (variant, replace(blocks, turns=None)) for title, (variant, blocks) in made.items()}
        counts = {1}
    placed = tuple(CasePlacement(title if len(made) > 1 else "", blocks.folded, {"placement": title},
                                 start=_start(blocks))
                   for title, (_, blocks) in made.items())
    # The answer is assembled and checked again, which takes about as long as making its blocks.
    reserve = min(_AFTERWARDS * longest, _MOST_AFTERWARDS * options.time_limit)
    try:
        schedule = solve_case(Case(plan.program.name, placed, counts.pop()),
                              replace(options, time_limit=options.time_limit - reserve))
    except Infeasible as refusal:
        if complete or isinstance(refusal, NoneFound):
            raise
        raise NoneFound(f"{plan.program.name}: found no order that fits the memory of any of the {len(made)} plans "
                        "considered, and there are more; give more time, more memory or more devices") from refusal
    variant, blocks = made[str(schedule.solver["placement"])]
    return _answer(variant, blocks, schedule, machine, refused, complete, len(made))


def as_written(plan: TransformPlan, machine: PlanMachine) -> float:
    """Seconds of a step in the plan's own order, without a search. Choices take their first option."""
    return plan_blocks(plan.preserve(machine.joined), machine.pricing).written.makespan


def _start(blocks: PlanBlocks) -> Schedule | None:
    """The plan's own order, if it fits."""
    return None if violations(blocks.written) else blocks.written


_Made: TypeAlias = dict[str, tuple[Variant, PlanBlocks]]


def _made(plan: TransformPlan, machine: PlanMachine,
          options: SearchOptions) -> tuple[_Made, list[Refused], bool, float]:
    """The plans to search by title with their blocks, as many as time permits and at least one; the invalid ones;
    whether they are all; and the most seconds to make the blocks of one."""
    made: _Made = {}
    refused: list[Refused] = []
    complete, longest = True, 0.0
    _require_few(plan)
    for one, whole in _variants(plan, machine, lambda: options.for_preparation):
        complete &= whole
        if isinstance(one, Refused):
            refused.append(one)
            continue
        if made and options.for_preparation <= 0:
            complete = False
            break
        began = time.monotonic()
        try:
            blocks = plan_blocks(TransformPlan.of(one.planned).preserve(machine.joined), machine.pricing)
        except PlanError as error:
            refused.append(Refused(one.options, str(error)))
            continue
        longest = max(longest, time.monotonic() - began)
        made[one.title] = one, blocks
    return made, refused, complete, longest


def _require_few(plan: TransformPlan) -> None:
    count = math.prod(len(call.options) for call in plan.calls if isinstance(call, PlanChoice))
    if count > _MOST:
        raise PlanError(f"what is open can be decided in {count} ways, at most {_MOST} are searched: leave less open")


def _variants(plan: TransformPlan, machine: PlanMachine,
              left: Callable[[], float]) -> Iterator[tuple[Variant | Refused, bool]]:
    """The plans to search and the invalid ones, each with whether there are no others like it."""
    for one in variants(plan.program, plan.calls):
        if isinstance(one, Refused):
            yield one, True
            continue
        names = unassigned(one.planned)
        outside = {device for some in one.planned.devices.values() for device in some
                   if machine.devices is not None and device >= machine.devices}
        if outside:
            yield Refused(one.options, f"device {min(outside)} is assigned, but there are {machine.devices}, "
                          "numbered from 0"), True
            continue
        if not names:
            yield one, True
            continue
        if machine.devices is None:
            raise PlanError(f"operator {names[0]!r} has no device: assign it, or say how many devices there are")
        ways = placements(one.planned, names, machine.devices, machine.pricing.costs, machine.joined, _STAGES, left)
        for title, where in ways.found.items():
            yield Variant({**one.options, "devices": title}, put(one.planned, where)), ways.complete


def _answer(variant: Variant, blocks: PlanBlocks, schedule: Schedule, machine: PlanMachine, refused: list[Refused],
            complete: bool, considered: int) -> SolvedPlan:
    """The checked plan of a schedule."""
    ordered = sorted(schedule.operations, key=lambda operation: (operation.start, operation.end, operation.block))
    parts = tuple(part for operation in ordered
                  for part in blocks.block_of(operation.block, operation.micro_batch).parts)
    planned: Planned = replace(variant.planned, orders=(*variant.planned.orders, InSequence(parts)))
    plan = TransformPlan.of(planned)
    done = plan.preserve(machine.joined)
    found = SolvedPlan(plan, done, schedule, blocks, variant.options, considered, blocks.written.makespan,
                       tuple(refused), complete)
    faults = breaches(planned, found.times)
    if faults:
        raise AssertionError(f"the search gave a plan that is none: {faults[0]}")
    return found
