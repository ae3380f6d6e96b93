"""The state of every search for a placement: the best stages so far, judged, the bound, the time, the counts of each
technique.

The one interface of all techniques that find a placement, or prove a bound on all of them, within a search.

How small can a largest load be at best? Bounds that need no search, valid for the groups they are computed on.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol, Self, TypeVar

from weft.solver.control.counts import Counts
from weft.solver.control.stopping import breakable
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import NoneFound
from weft.solver.placement import judge
from weft.solver.placement.groups import (
    Division,
    Groups,
    divided,
    groups_of,
    least_times,
    least_work,
    nodes_of,
    parts_of,
)
from weft.solver.placement.params import PARAMS, PlacementParams
from weft.solver.placement.placement import PlacedStage
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.stage_windows import capacity_of


@dataclass(frozen=True)
class Standing:
    """The state of a search: its current task, the best largest load so far and the bound."""

    doing: str
    objective: float
    bound: float
    seconds: float


class LoadBracket(ABC):
    """``best``: the best stages so far, ``least``: the least largest load of all offers; ``bound``: no placement has a
    smaller one. ``whole``: the operators in groups before any further reduction; ``groups``: after those that keep an
    optimum. ``without``: names of techniques, and of parts of them, to omit. Raises
    :class:`~weft.solver.placement.refusals.NoPlacement` if evidently nothing fits."""

    #: The object of the search, in words.
    what: ClassVar[str]

    def __init__(self, problem: PlacementProblem, budget: Budget, on_step: Callable[[Standing], None] = lambda _: None,
                 params: PlacementParams = PARAMS, without: Container[str] = ()) -> None:
        self.problem, self.budget, self.params, self.without = problem, budget, params, without
        self.counts = Counts()
        self.on_step = on_step
        self._began = time.process_time()
        self.whole = groups_of(problem)
        self.groups = self.reduced(self.whole)
        self.bound = simple_bound(self.groups)
        self.best: tuple[PlacedStage, ...] | None = None
        self.least = math.inf

    @staticmethod
    @abstractmethod
    def reduced(groups: Groups) -> Groups:
        """``groups`` after the reductions that keep an optimum of such a search. Raises
        :class:`~weft.solver.placement.refusals.NoPlacement` if evidently nothing fits."""

    @abstractmethod
    def stages_of(self, parts: Sequence[tuple[int, Sequence[int]]], devices: Sequence[int]) -> tuple[PlacedStage, ...]:
        """The stages of ``parts`` (kind, nodes) with their costs and memory."""

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether there is nothing left to do, or no time."""

    @property
    def objective(self) -> float:
        """The largest load of the best placement so far; infinite if there is none."""
        return math.inf if self.best is None else max(stage.load for stage in self.best)

    # -- the search --------------------------------------------------------------------------------------------------

    def search(self, steps: Callable[[], None]) -> tuple[PlacedStage, ...]:
        """The best stages after ``steps``, or after those before a Ctrl-C, judged once more."""
        try:
            with breakable():
                steps()
        except KeyboardInterrupt:
            self.budget.interrupted = True
        except NoneFound:  # one of the techniques; another may have found something
            if self.best is None:
                raise
        if self.best is None:
            self.give_up()
        return self.sure(self.stages_of(parts_of(self.best), [stage.devices for stage in self.best]))

    def run(self, technique: Placer[Self], share: float) -> bool:
        """Run ``technique`` and count its results."""
        before, bound = self.objective, self.bound
        with self.counts.timed(technique.name) as count:
            count.calls += 1
            try:
                return technique.improve(self, share)
            finally:
                count.improvements += self.objective != before
                count.proofs += self.bound != bound

    def part(self, share: float) -> AbstractContextManager[Budget]:
        """A budget of ``share`` of the rest."""
        return self.budget.part(share)

    def offer(self, groups: Groups, found: Division | None) -> bool:
        """Take over ``found`` (of ``groups``) if it is better; whether it is given and breaks no rule."""
        if found is None:
            return False
        stages = self.stages_of(nodes_of(groups, found), found.devices)
        if judge.breaches(self.problem, stages):
            return False
        if self.best is None or self.is_better(stages):
            self.best = stages
            self.say("found")
        self.least = min(self.least, max(stage.load for stage in stages))
        return True

    def offer_sure(self, groups: Groups, found: Division | None) -> None:
        """:meth:`offer` of a certain placement. Raises :class:`~weft.solver.placement.judge.InvalidPlacement` if it
        breaks a rule."""
        if found is not None and not self.offer(groups, found):
            self.sure(self.stages_of(nodes_of(groups, found), found.devices))

    def sure(self, stages: tuple[PlacedStage, ...]) -> tuple[PlacedStage, ...]:
        """``stages``; raises :class:`~weft.solver.placement.judge.InvalidPlacement` if they break a rule."""
        faults = judge.breaches(self.problem, stages)
        if faults:
            raise judge.InvalidPlacement("; ".join(faults))
        return stages

    def is_better(self, stages: tuple[PlacedStage, ...]) -> bool:
        """Whether ``stages`` are better than the best."""
        return max(stage.load for stage in stages) < self.objective

    def start(self, groups: Groups) -> Division | None:
        """The best stages in terms of ``groups``, or ``None`` if they split one of them."""
        return None if self.best is None else divided(groups, parts_of(self.best))

    def raise_bound(self, bound: float) -> None:
        """Record that no placement has a largest load below ``bound``."""
        self.bound = max(self.bound, bound)

    def say(self, doing: str) -> None:
        """Report the state of the search."""
        self.on_step(Standing(doing, self.objective, self.bound, self.budget.elapsed))

    def give_up(self) -> NoReturn:
        """Raise the error of a search that found nothing."""
        if self.budget.interrupted:
            raise KeyboardInterrupt
        raise NoneFound(f"found no {self.what} that fits the devices' memory in {self.budget.elapsed:.0f} s, and no "
                        "proof that there is none; give more time, more memory or more devices")

    def spent(self) -> dict[str, Any]:
        """For a result's ``solver`` entry: time, seed, and the counts of each technique."""
        return {"seconds": round(self.budget.elapsed, 3), "cpu_seconds": round(time.process_time() - self._began, 3),
                "deterministic": round(self.budget.deterministic_used, 3), "seed": self.budget.seed,
                "workers": self.budget.workers, "techniques": self.counts.to_json()}


B_contra = TypeVar("B_contra", contravariant=True)
B = TypeVar("B")


class Placer(Protocol[B_contra]):
    """One way to find a placement or to raise the bound. The bracket is the state of the search: a technique offers its
    results to it and raises its bound; the bracket has every offer judged."""

    name: ClassVar[str]

    @classmethod
    def of(cls, bracket: B_contra) -> Self | None:
        """The technique for this search, or ``None`` if it does not apply to such graphs or devices."""
        return cls()

    def improve(self, bracket: B_contra, share: float) -> bool:
        """Try within ``share`` of the time left. ``True``: the whole question was searched, so only more time could
        change the answer; ``False``: the graph is too large for it, or it searches only a part."""
        ...


def applying(registry: Sequence[type[Placer[B]]], bracket: B, without: Container[str] = ()) -> list[Placer[B]]:
    """The techniques of ``registry`` that apply to this search, in order, except those named in ``without``."""
    made = (technique.of(bracket) for technique in registry if technique.name not in without)
    return [technique for technique in made if technique is not None]


#: The most that the sum of many loads may lose by rounding, as a share of it.
_ROUNDING = 1e-12


def _heaviest_group(groups: Groups) -> float:
    """Some stage contains the slowest group, each on its best kind. If stages may be replicated, each on the best
    number of devices too."""
    return float(least_times(groups).max())


def _work_per_device(groups: Groups) -> float:
    """All groups at their fastest over all devices, without any transfer. A group on r devices of a replicated stage
    takes r times its time there of all devices together. If devices are of several kinds, a slow one has room for less
    (:class:`~weft.solver.placement.stage_windows.Capacity`)."""
    if groups.problem.degrees:
        return float(least_work(groups).sum()) / groups.problem.devices * (1 - _ROUNDING)
    share = capacity_of(groups, min(groups.problem.devices, groups.count)).shares[-1]
    return float(groups.least.sum()) / share * (1 - _ROUNDING) if share else 0.0


#: Lower bounds on every placement's largest load, in the problem's unit of time.
BOUNDS: Mapping[str, Callable[[Groups], float]] = {
    "heaviest group": _heaviest_group, "work per device": _work_per_device}


def simple_bound(groups: Groups) -> float:
    """The largest of :data:`BOUNDS`."""
    return max(bound(groups) for bound in BOUNDS.values())
