"""The placements of a spec whose collectives have options, listed while there is time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weft.app.lib.case import Case
from weft.app.lib.verdicts import shape_placement_details
from weft.models.overlap.data_parallel import data_parallel, why_not_data_parallel
from weft.models.overlap.frameworks import framework_steps
from weft.models.overlap.placement import OverlapPlacement
from weft.models.overlap.together import overlap_of
from weft.models.overlap.ways import Ways
from weft.models.spec.sections import Spec
from weft.solver.bounds.load import load_bound as plain_bound
from weft.solver.choices.relaxed.bounds import load_bound
from weft.solver.control.clock import OutOfTime, checkpoint
from weft.solver.problem.rounds import Run

#: The ending of titles of placements whose micro-batches pass in pairs.
IN_PAIRS = ", in pairs"
#: Steps of a schedule whose micro-batches are whole steps, if the objective is their rate.
_STEPS = 8
#: The expected ratio of a schedule to its bound, for a placement without results.
_ABOVE = 1.1


@dataclass(frozen=True)
class OpenOverlap:
    """A placement with options, its run, and a lower bound by its devices' work.

    ``work``: the same bound without options, its micro-batches one by one. ``single``: the makespan found in this way,
    or its bound if that exceeds the makespan of others. ``unit``: the meaning of a micro-batch of its schedules, "step"
    or "pair", if it is not one of the spec's.
    """

    placement: OverlapPlacement
    title: str
    details: Mapping[str, Any]
    run: Run
    least: float
    work: float
    single: float | None = None
    unit: str | None = None

    @property
    def rank(self) -> float:
        """Its expected value: as far above its bound as without overlap."""
        return self.least * (_ABOVE if self.single is None else max(1.0, self.single / self.work))


class Listing:
    """The placements of ``spec`` with ``count`` micro-batches. ``case``: those without options, ``None`` if only the
    whole model on every GPU is requested.

    ``reason``: why the whole model is not on every GPU, if it is not. ``late``: whether the time limit ended the list.
    """

    def __init__(self, spec: Spec, case: Case | None, count: int, objective: str) -> None:
        self.spec, self.case, self.count, self.objective = spec, case, count, objective
        self.reason = ""
        self.late = False

    @property
    def may_find(self) -> bool:
        """Whether there may be any; also ``True`` if there is no time to decide."""
        groups = () if self.case is None or self.case.together is None else self.case.together[1]
        try:
            return (any(part.degree > 1 for candidate in groups for part in candidate.parts)
                    or self._why_not_whole_model() == "")
        except OutOfTime:
            return True

    @property
    def frameworks(self) -> dict[str, Any]:
        """The frameworks' results for steps with the whole model on every GPU."""
        one = self.objective == "makespan"
        return {"frameworks": [{"name": step.name, "with": step.makespan if one else step.period}
                               for step in framework_steps(self.spec, self.count)]}

    def entries(self) -> Iterator[OpenOverlap]:
        """The whole model on every GPU first, unless ruled out, then groups of GPUs."""
        try:
            why = self._why_not_whole_model()
            if why == "":
                yield self._whole_model()
            yield from self._of_groups()
        except OutOfTime:
            self.late = True

    def _why_not_whole_model(self) -> str | None:
        """The reason why the whole model is not on every GPU, also as ``reason``; "" if it may be, ``None`` if not
        requested.
        """
        shapes = self.spec.placement.shapes
        if self.objective == "rate" and set(shapes) != {"data"}:
            self.reason = "steps of the whole model on every GPU have a rate of their own: ask for shapes: [data]"
        elif "data" in shapes or not {"shapes", "cut"} & self.spec.placement.model_fields_set:
            why = why_not_data_parallel(self.spec, self.count)
            if why is None:
                return ""
            self.reason = f"the whole model cannot be on every GPU ({why})"
        return self.reason or None

    def _whole_model(self) -> OpenOverlap:
        placement = data_parallel(self.spec, self.count)
        note = f"{self.count} micro-batches of the spec are one of this schedule: the step of all GPUs"
        run = Run.of(placement.problem, _STEPS if self.objective == "rate" else 1)
        work = min(plain_bound(placement.problem.under(options).plain(), run.rounds) for options in placement.bare)
        return self._entry(placement, run, {"placement": placement.title, "notes": [*placement.notes, note]}, work,
                           "step")

    def _of_groups(self) -> Iterator[OpenOverlap]:
        if self.case is None or self.case.together is None:
            return
        space, candidates = self.case.together
        ways: dict[tuple[str, bool], Ways] = {}
        # Include whole backwards, which split ones dominate without overlap: weight gradients run beside collectives.
        for candidate in sorted(candidates, key=lambda one: plain_bound(one.problem, self.count)):
            for pairs in (False, True):
                if candidate.replicas > 1 or (pairs and (self.count % 2 or self.objective == "rate")):
                    continue
                key = candidate.backward, pairs
                if key not in ways:
                    ways[key] = Ways(space, candidate.backward, pairs=pairs, like=next(iter(ways.values()), None))
                checkpoint()
                placement = overlap_of(ways[key], candidate)
                if placement is None:
                    continue
                title, details = shape_placement_details(candidate, space)
                details["placement"] = title + (IN_PAIRS if pairs else "")
                if pairs:
                    details["notes"] = [*details.get("notes", ()), "2 micro-batches of the spec are one of this "
                                        "schedule, in pairs"]
                yield self._entry(placement, Run.of(placement.problem, self.count // placement.micro_batches), details,
                                  plain_bound(candidate.problem, self.count), "pair" if pairs else None)

    def _entry(self, placement: OverlapPlacement, run: Run, details: Mapping[str, Any], work: float,
               unit: str | None) -> OpenOverlap:
        return OpenOverlap(placement, details["placement"], {**placement.details, **details}, run,
                           load_bound(placement.problem, run, self.objective), work, unit=unit)
