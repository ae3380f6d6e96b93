"""Lower bounds on a step proven so far: on its makespan, its span and the rate of any steady state."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property

from weft.solver.bounds import steady_bound
from weft.solver.bounds.in_flight import in_flight_bound
from weft.solver.bounds.load import exact_load, exact_load_bound, work_bound
from weft.solver.bounds.makespan import by_contraction
from weft.solver.bounds.span import span_bound, work_of_busiest
from weft.solver.relations.graph import contracted, graph_of
from weft.solver.relations.implied_order import Order, implied_order
from weft.solver.ticks import TickProblem


class Proven:
    """Lower bounds on a step of ``micro_batches`` micro-batches; they only rise.

    ``bound`` is on the makespan, ``span_bound`` on the span (looked for where that is the objective), ``steady_bound``
    on the time per micro-batch of any steady state, ``rate_bounds`` on that of steady states with so many micro-batches
    per period; all in ticks. ``contractions``: the instance with less time for its barriers, and as it is, those first
    that alone bound the makespan best.
    """

    def __init__(self, instance: TickProblem, micro_batches: int) -> None:
        self.instance = instance
        self.micro_batches = micro_batches
        # What ticks are too coarse for.
        self._exact = float(exact_load_bound(instance.problem, micro_batches)) if instance.loss else 0.0
        self.bound = Fraction(work_bound(instance, micro_batches))
        self.steady_bound = Fraction(instance.heaviest_load)
        self.span_bound = Fraction(work_of_busiest(instance, micro_batches))
        self.rate_bounds: dict[int, Fraction] = {}
        self.contractions = [contracted(instance, max(instance.durations))]

    @property
    def makespan(self) -> float:
        """The bound on the makespan, in the problem's time unit."""
        return max(self._exact, self.instance.bound(self.bound, self.micro_batches))

    @property
    def span(self) -> float:
        """The bound on the span, in the problem's time unit."""
        return max(self.micro_batches * self._exact_load if self._in_turn else 0.0,
                   self.instance.bound(self.span_bound, self.micro_batches))

    def of(self, objective: str) -> float:
        """The bound on the step's objective, in the problem's time unit."""
        if objective == "span":
            return self.span
        return self.rate(self.steady_bound) if objective == "rate" else self.makespan

    def rate(self, bound: Fraction) -> float:
        """``bound``, in ticks, on the time per micro-batch of a steady state, in the problem's time unit."""
        return max(self._exact_load, self.instance.bound(bound, 1))

    @cached_property
    def _exact_load(self) -> float:
        return float(exact_load(self.instance.problem)) if self.instance.loss else 0.0

    @cached_property
    def implied(self) -> Order:
        """Operations that precede others in every schedule."""
        return implied_order(self.instance, graph_of(self.instance), self.micro_batches)

    @cached_property
    def _in_turn(self) -> bool:
        """Whether every micro-batch has all transfers: none reaches over to another one."""
        return not any(arc.distance for arc in self.instance.arcs)

    def raise_by_all(self, objective: str = "makespan") -> None:
        """Raise the bounds by all arguments that need no search, those on the span where that is the objective."""
        self.bound = max(self.bound, Fraction(in_flight_bound(self.instance, self.micro_batches)))
        bounds = by_contraction(self.instance, self.micro_batches, self.implied)
        self.bound, self.contractions = max(self.bound, Fraction(bounds[0][0])), [each for _, each in bounds]
        self.steady_bound = steady_bound(self.instance, self.implied)
        if objective == "span":
            self.raise_to(span_bound(self.instance, self.micro_batches, self.implied), objective)

    def raise_to(self, bound: int | Fraction, objective: str = "makespan") -> bool:
        """Take over a bound on the makespan, or on the span, in ticks; whether it is a better one."""
        if objective == "span":
            better = bound > self.span_bound
            self.span_bound = max(self.span_bound, Fraction(bound))
        else:
            better = bound > self.bound
            self.bound = max(self.bound, Fraction(bound))
        return better
