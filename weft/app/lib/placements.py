"""A placement of a model on devices, as commands search and show it; or one whose stages have alternatives, which is a
problem with choices.

Known schedules as commands show them: on a placement, whether they fit, and which of them are searches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.app.lib.decided_memory import plan_details, plan_title
from weft.app.lib.verdicts import backward_title, layout_title, shape_placement_details
from weft.solver.bounds.load import load_bound, work_alone
from weft.solver.control.clock import OutOfTime
from weft.solver.judge.validate import violations
from weft.solver.problem import Problem
from weft.solver.problem.rounds import Rounds, Run
from weft.solver.schedule import Schedule, latest_end
from weft.solver.timing import Orders, time_orders

if TYPE_CHECKING:
    from weft.models.candidates.build import ModelCandidate
    from weft.models.overlap.placement import OverlapPlacement
    from weft.models.spec.spec import Spec
    from weft.models.tensor_parallel.shapes import ShapeCandidate
    from weft.models.tensor_parallel.space import Space


@dataclass(frozen=True)
class CasePlacement:
    """A placement of the model on the devices. ``title`` names it, "" if it is the only one.

    ``details`` goes into the ``solver`` entry of its schedules: it includes ``static_memory``, each device's weights,
    gradients and optimizer state, ``gpu_memory``, its memory for these and the blocks, and ``notes`` on modelled costs;
    under AdamA ``gradients_freed``, the additional memory with Adam.
    """

    title: str
    problem: Problem
    details: dict[str, Any]
    #: The GPUs represented by each device of ``problem``, if there are several.
    gpus: tuple[tuple[int, ...], ...] = ()
    #: Replicas of the model: a micro-batch of ``problem`` is one of each.
    replicas: int = 1
    #: Two chunks a group beside layers on all GPUs: its search is long, and its bound is weak at first.
    is_hard: bool = False
    #: For a problem with choices: the options taken.
    choices: Mapping[str, str] = field(default_factory=dict)
    #: With jobs, or micro-batches that differ: the origin of the plain ``problem``.
    rounds: Rounds | None = None
    #: A known valid schedule of ``problem``: the answer is no worse.
    start: Schedule | None = None
    #: ``problem`` with every GPU written out, if ``gpus`` do not determine it: its devices have lanes.
    written_out: Problem | None = None

    @cached_property
    def whole(self) -> Problem:
        """``problem`` with every GPU written out."""
        if self.written_out is not None:
            return self.written_out
        if not self.gpus:
            return self.problem
        from weft.models.overlap.placement import written_out

        return written_out(self.problem, self.gpus)

    def least(self, micro_batches: int, objective: str = "makespan") -> float:
        """A lower bound on schedules of this many ``micro_batches``, of all replicas, by its devices' work."""
        own = micro_batches // self.replicas
        if objective == "makespan":
            return load_bound(self.problem, own)
        return work_alone(self.problem, own if objective == "span" else 1) / (
            self.replicas if objective == "rate" else 1)

    def ordered(self, micro_batches: int, name: str, orders: Orders) -> Schedule | None:
        """The schedule ``name`` with these orders, which says its placement; ``None`` if it does not fit."""
        operations = time_orders(self.problem, micro_batches, orders)
        bound = min(load_bound(self.problem, micro_batches), latest_end(operations))
        made = Schedule(self.problem, micro_batches, operations, bound, solver={"name": name})
        return None if violations(made, limit=1) else self.label(made)

    def label(self, schedule: Schedule) -> Schedule:
        """``schedule``, on every GPU and with its placement's details."""
        return replace(schedule, problem=self.whole, choices=self.choices, rounds=self.rounds
                       ).with_solver(**self.details)


@dataclass(frozen=True)
class OpenPlacement:
    """One cut onto the GPUs with the decisions of each stage. ``title``, ``details``: as in a
    :class:`~weft.app.lib.case.CasePlacement`."""

    title: str
    problem: Problem
    run: Run
    details: dict[str, Any]

    def least(self, objective: str) -> float:
        """A lower bound on the schedules of all assignments, by its devices' work."""
        from weft.solver.choices.relaxed.bounds import load_bound

        return load_bound(self.problem, self.run, objective)

    def label(self, schedule: Schedule) -> Schedule:
        """``schedule`` with what it says of its placement."""
        return schedule.with_solver(**self.details)


def candidate_placement(candidate: ModelCandidate, kept: str = "") -> CasePlacement:
    """The placement of ``candidate``. ``kept``: the part of its title on kept activations."""
    backward = backward_title(candidate.backward)
    shape = layout_title(candidate.shape, len(candidate.stage_device) // len(candidate.problem.devices))
    memory = [None if device.memory is None else device.memory + static
              for device, static in zip(candidate.problem.devices, candidate.static_memory, strict=True)]
    plan = candidate.decided
    name = f"{shape}, {backward}" + ("" if plan is None else f", {plan_title(plan)}") + (f", {kept}" if kept else "")
    return CasePlacement(name, candidate.problem, {
        "placement": name,
        "static_memory": list(candidate.static_memory),
        "gpu_memory": memory,
        "layers_of_stage": [list(names) for names in candidate.layers_of_stage],
        **({} if plan is None else {"memory_plan": plan_details(plan)}),
        **({"notes": list(candidate.notes)} if candidate.notes else {}),
        **({"optimizer": "adama", "gradients_freed": list(candidate.freed)} if candidate.freed else {}),
    })


def shape_placement(candidate: ShapeCandidate, space: Space) -> CasePlacement:
    """The placement that ``candidate`` is."""
    title, details = shape_placement_details(candidate, space)
    return CasePlacement(title, candidate.problem, details, candidate.gpus, candidate.replicas,
                         is_hard=candidate.chunks is not None and candidate.shape != "groups")


def whole_model_placements(spec: Spec, count: int) -> tuple[tuple[CasePlacement, ...], float, str]:
    """The placements of the whole model on every GPU; a lower bound on their seconds a micro-batch under any overlap;
    and, if a spec that allows them has none, the reason."""
    from weft.models.candidates.build import TooLate
    from weft.models.candidates.stage_split import NoSplit
    from weft.models.overlap.data_parallel import data_parallel, why_not_data_parallel
    from weft.models.spec.spec import SpecError
    from weft.solver.choices.relaxed.bounds import load_bound

    if spec.training is None or spec.cluster.gpus < 2:
        return (), math.inf, ""
    try:
        why_not = why_not_data_parallel(spec, count)
        if why_not is not None:
            return (), math.inf, why_not if _allows_it(spec) else ""
        found = data_parallel(spec, count)
    except (SpecError, NoSplit, TooLate, OutOfTime):  # unknown costs are reported by other placements
        return (), math.inf, ""
    least = load_bound(found.problem, Run.of(found.problem, 1), "makespan") / count
    if not _allows_it(spec):
        return (), least, ""
    return tuple(_of_whole_model(found, options, count) for options in found.bare), least, ""


def _allows_it(spec: Spec) -> bool:
    """Whether the spec leaves it open or requests it."""
    return "data" in spec.placement.shapes or not {"shapes", "cut"} & spec.placement.model_fields_set


def _of_whole_model(found: OverlapPlacement, options: Mapping[str, str], count: int) -> CasePlacement:
    """The whole model on every GPU under ``options``: one micro-batch of its problem is a step of ``count``."""
    problem = found.problem.under(options).plain()
    written_out = found.on_every_gpu(problem)
    title = f"{found.title}, {next(iter(options.values()))}"
    note = f"{count} micro-batches of the spec are one of this schedule: the step of all GPUs"
    return CasePlacement(title, problem, {
        "placement": title, **by_device(found.details, written_out), "notes": [*found.notes, note], "unit": "step"},
        written_out=written_out, replicas=count, choices=options)


def by_device(details: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
    """``details`` with an entry for each device of ``problem`` in place of one for each GPU: lanes have no memory."""
    found = dict(details)
    for label, nothing in (("static_memory", 0), ("gpu_memory", None)):
        own = iter(details[label])
        found[label] = [next(own) if device.lane_of is None else nothing for device in problem.devices]
    return found


#: Those that are themselves searches under the same memory and durations, not fixed orders, with descriptions.
SEARCHES: Mapping[str, str] = {
    "zb-auto": "the automatic zero-bubble scheduler on these durations",
    "zb-v-auto": "the automatic scheduler of zero-bubble Vs on these durations",
    "v-block": "the building-block search on these durations", "greedy": "our own greedy heuristic"}


@dataclass(frozen=True)
class Known:
    """A known schedule with its placement."""

    placement: CasePlacement
    schedule: Schedule
    fits: bool

    @property
    def labelled(self) -> Schedule:
        """The schedule with its placement's details."""
        return self.placement.label(self.schedule)

    @property
    def rank(self) -> tuple[bool, float]:
        """Smaller is better."""
        return not self.fits, self.schedule.value
