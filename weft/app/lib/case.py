"""The case to be solved: a source (a spec or a block problem) as a list of placements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.app.lib.coverage import NOTHING, Coverage
from weft.app.lib.domination import undominated
from weft.app.lib.options import require_count
from weft.app.lib.placements import (
    CasePlacement,
    OpenPlacement,
    by_device,
    candidate_placement,
    shape_placement,
    whole_model_placements,
)
from weft.app.lib.sources import read_source
from weft.app.lib.verdicts import backward_title, layout_title
from weft.solver.control.clock import OutOfTime
from weft.solver.problem import Problem
from weft.solver.problem.rounds import Rounds, Run
from weft.solver.schedule import Schedule
from weft.solver.step.search import Infeasible, NoneFound
from weft.text.counts import assignment_title

if TYPE_CHECKING:
    from weft.app.lib.grid_pipeline import GridPipeline
    from weft.app.lib.options import SearchOptions
    from weft.app.lib.sources import MicroBatches, Source
    from weft.app.lib.wide import WideCase
    from weft.models.candidates.build import ModelCandidate
    from weft.models.cuts.space import CutSpace
    from weft.models.spec.spec import Spec
    from weft.models.tensor_parallel.shapes import ShapeCandidate, ShapeRefused
    from weft.models.tensor_parallel.space import Space

__all__ = ["Case", "CasePlacement", "candidate_placement", "case_of", "grid_case", "require_alike", "shape_placement"]


@dataclass(frozen=True)
class Case:
    """The case to be solved: the candidate placements and the number of micro-batches.

    ``refused``: shapes without a placement of this model, and the reasons. ``least_period``: a lower bound in seconds a
    micro-batch over all placements on disjoint groups of GPUs and the whole model on every GPU, considered here or not,
    with these micro-batches. ``whole_model``: the model on every GPU, with gradients summed after all computation;
    known schedules have nothing to order there.
    """

    name: str
    placements: tuple[CasePlacement, ...]
    micro_batches: int
    refused: tuple[tuple[str, str], ...] = ()
    least_period: float | None = None
    whole_model: tuple[CasePlacement, ...] = ()
    #: All cuts of the layers, in addition to the listed placements.
    spaces: tuple[CutSpace, ...] = ()
    #: A block problem with choices, jobs or classes: ``placements`` are its assignments, or the first ones if there are
    #: many.
    wide: WideCase | None = None
    #: For a spec with decisions by stage: in addition to ``placements``, whose stages are all alike.
    open: tuple[OpenPlacement, ...] = ()
    #: Whether micro-batches of different lengths may be reordered.
    reorder: bool = False
    #: For a spec whose GPUs may compute layers together: its model at every degree, and all such placements.
    together: tuple[Space, tuple[ShapeCandidate, ...]] | None = None
    #: For a spec: the reserve of each GPU in bytes.
    reserve: int = 0

    def with_reserve(self, schedule: Schedule) -> Schedule:
        """``schedule``, with the reserve recorded if it records the GPUs' memory."""
        known = self.reserve and "gpu_memory" in schedule.solver
        return schedule.with_solver(reserve=self.reserve) if known else schedule

    def least(self, objective: str) -> float | None:
        """``least_period`` as a lower bound on ``objective`` for any placement."""
        return self.least_period and self.least_period * (1 if objective == "rate" else self.micro_batches)

    @cached_property
    def coverage(self) -> Coverage:
        """The placements for which a bound over all of them is proven; none if these are all the assignments.
        """
        if self.wide is not None:
            return NOTHING
        spaces = [(layout_title(layout.shape, layout.chunks), backward_title(space.backward), space.ground.layers)
                  for space in self.spaces for layout in [space.ground.layout]]
        told = [(placement.title, placement.details) for placement in self.placements]
        told += [(entry.title, entry.details) for entry in self.open]
        told += [(placement.title, placement.details) for placement in self.whole_model]
        return Coverage.of(told, spaces, alike=bool(self.open))


def case_of(source: Source, micro_batches: MicroBatches | None = None, options: SearchOptions | None = None) -> Case:
    """Read ``source`` and list its placements. Only those ``options`` matter that define the search space.

    Raises ``FormatError`` or ``SpecError`` for an invalid file, and ``Infeasible`` for a model that fits the GPUs in no
    placement.
    """
    source = read_source(source)
    if isinstance(source, Problem) and (source.jobs or not source.is_plain):
        from weft.app.lib.wide import wide_case

        return _case_of_wide(wide_case(source, micro_batches, options))
    if not isinstance(source, Problem) and source.training is not None and source.training.lengths is not None:
        return _case_of_lengths(source, micro_batches, options)
    _require_plain(micro_batches, options)
    assert micro_batches is None or isinstance(micro_batches, int)
    if isinstance(source, Problem):
        if micro_batches is None:
            raise ValueError("a block problem does not say how many micro-batches run: give it (--micro-batches N)")
        return Case(source.name, (CasePlacement("", source, _static_of(source)),), micro_batches)
    if source.parallel is not None:
        from weft.app.lib.grid_pipeline import given_pipeline

        return grid_case(given_pipeline(source))
    return _case_of_spec(source, micro_batches)


def grid_case(of: GridPipeline) -> Case:
    """The search space of a uniform grid's pipeline."""
    return Case(of.spec.name, tuple(of.placements), of.pipeline.micro_batches, spaces=of.spaces,
                reserve=of.spec.cluster.reserve)


def _require_plain(micro_batches: MicroBatches | None, options: SearchOptions | None) -> None:
    """Refuse options that only problems with jobs or classes support."""
    if micro_batches is not None:
        if isinstance(micro_batches, Mapping | list | tuple):
            raise ValueError("micro_batches names jobs or classes, and this problem has none: give a number")
        require_count("micro_batches", micro_batches)
    if options is not None:
        require_alike(options)


def require_alike(options: SearchOptions) -> None:
    """Raises ``ValueError`` for options that require jobs, or micro-batches that differ."""
    if options.ratio is not None:
        raise ValueError("a ratio is one of jobs, and this problem has none: leave it out")
    if options.reorder or options.any_class:
        asked = "reorder" if options.reorder else "any-class"
        raise ValueError(f"{asked} is for micro-batches that differ, and here all are alike: leave it out")


def _case_of_wide(case: WideCase) -> Case:
    placements = []
    for options, rounds in case.listed:
        title = assignment_title(options) or (f"all {rounds.run.per_round(None)[0]}" if case.any_class
                                              and None in rounds.run.classes else "")
        placements.append(CasePlacement(title, rounds.problem, {**({"placement": title} if title else {}),
                                                                **_static_of(rounds.problem)},
                                        choices=options, rounds=None if rounds.is_plain else rounds))
    if not placements:
        raise Infeasible(f"{case.problem.name}: under each of its assignments that were tried the blocks wait for each "
                         "other in a cycle")
    return Case(case.problem.name, tuple(placements), case.run.rounds, wide=case)


def _static_of(problem: Problem) -> dict[str, Any]:
    """The static memory of a block problem's devices, as recorded in schedules; nothing if the problem does not state
    it.
    """
    if not any(device.static for device in problem.devices):
        return {}
    has = [device.memory + device.static for device in problem.devices if device.memory is not None]
    return {"static_memory": [device.static for device in problem.devices],
            **({"gpu_memory": has} if len(has) == len(problem.devices) else {})}


def _case_of_spec(spec: Spec, micro_batches: int | None) -> Case:
    from weft.models.candidates.build import CutDoesNotFit, TooLate
    from weft.models.candidates.gpu_costs import may_be_together
    from weft.models.candidates.stage_split import NoSplit
    from weft.models.candidates.stages import SHAPES
    from weft.models.spec.model_sections import GraphNetworkModel

    if isinstance(spec.model, GraphNetworkModel):
        return _case_of_graph_network(spec, micro_batches)
    count, is_late = micro_batches or spec.run.micro_batches, False
    whole_model, of_whole, why_not = whole_model_placements(spec, count)
    if whole_model and set(spec.placement.shapes) == {"data"}:
        return Case(spec.name, (), count, whole_model=whole_model, reserve=spec.cluster.reserve)
    if why_not and set(spec.placement.shapes) == {"data"}:
        raise Infeasible(f"{spec.name}: the whole model cannot be on every GPU: {why_not}")
    found: tuple[Space, list[ShapeCandidate], list[ShapeRefused]] | None = None
    if spec.placement.cut is None and (spec.placement.co_shard or may_be_together(spec)):
        from weft.models.tensor_parallel.shapes import TOO_LATE, together

        try:
            found = together(spec)
        except OutOfTime:
            is_late = True
        is_late = is_late or (found is not None and any(entry.reason == TOO_LATE for entry in found[2]))
    refused: list[tuple[str, str]] = [] if found is None else [(entry.shape, entry.reason) for entry in found[2]]
    placements = [] if found is None else [shape_placement(candidate, found[0])
                                         for candidate in undominated(found[1])]
    left_open: tuple[OpenPlacement, ...] = ()
    chains = found is None or bool({*SHAPES, "wave"} & set(spec.placement.shapes))
    if chains and placements and found is not None and len(found[0].layers) < spec.cluster.gpus:
        chains = False
        refused.insert(0, ("chain", f"{len(found[0].layers)} layers are too few for one stage on each of "
                                    f"{spec.cluster.gpus} GPUs"))
    if chains:
        try:
            listed, recomputing = _listed(spec)
            left_open = _open_placements(spec, count)
            placements = [*map(candidate_placement, listed), *(candidate_placement(entry, "recomputed")
                          for entry in recomputing), *_in_sequence_chunks(spec, listed), *placements]
        except (NoSplit, CutDoesNotFit, TooLate) as error:
            if not placements and not whole_model:
                if is_late or isinstance(error, TooLate):
                    raise NoneFound(f"{error}; there was no time to look at all other placements: give more") from None
                raise Infeasible(str(error)) from None
            refused.insert(0, ("chain", str(error)))
        if not (placements or left_open):
            refused.insert(0, ("chain", "its stages have none of placement.activations to choose from "
                                        f"({', '.join(spec.placement.activations)}); allow keep"))
    if why_not:
        refused.append(("data", f"the whole model cannot be on every GPU: {why_not}"))
    if not placements and not whole_model and not left_open:
        raise (NoneFound if is_late else Infeasible)(
            f"{spec.name}: " + "; ".join(f"{shape}: {reason}" for shape, reason in refused))
    try:
        least = None if found is None else found[0].least_makespan(count) / count
    except OutOfTime:
        least = None
    if least is not None and chains and spec.placement.memory == "decide":
        from weft.models.candidates.memory_candidates import decided_least_period

        # Stages cut at any operator may be faster than any whose layers are whole.
        least = min(least, decided_least_period(spec))
    if least is not None:
        least = min(least, of_whole)
    return Case(spec.name, tuple(placements), count, tuple(refused), least, whole_model,
                _spaces(spec, count) if chains and _keeps(spec) else (),
                open=left_open,
                together=None if found is None else (found[0], tuple(found[1])), reserve=spec.cluster.reserve)


def _case_of_graph_network(spec: Spec, micro_batches: int | None) -> Case:
    """The ways to stream one pass of a graph neural network."""
    from weft.app.graph_network.planning import graph_placements

    if micro_batches not in (None, 1):
        raise ValueError(f"micro_batches is {micro_batches}, but a graph-network runs one pass over its graph at a "
                         "time: leave it out")
    return Case(spec.name, graph_placements(spec), 1, reserve=spec.cluster.reserve)


def _keeps(spec: Spec) -> bool:
    """Whether stages that keep all of their activations are asked for."""
    return "activations" not in spec.placement.choices or "keep" in spec.placement.activations


def _listed(spec: Spec) -> tuple[list[ModelCandidate], list[ModelCandidate]]:
    """The placements of one GPU a stage; and, if stages may choose to recompute, those whose stages all do."""
    from weft.models.candidates.build import CutDoesNotFit, candidates
    from weft.models.candidates.stage_split import NoSplit

    listed = candidates
    if spec.placement.memory == "decide":
        from weft.models.candidates.memory_candidates import spec_candidates as listed
    if "activations" not in spec.placement.choices:
        return undominated(listed(spec)), []
    recomputing: list[ModelCandidate] = []
    if "recompute" in spec.placement.activations:
        from weft.models.candidates.alternatives import recomputing_spec

        recomputing = undominated(candidates(recomputing_spec(spec)))
    if not _keeps(spec):
        return [], recomputing
    try:
        return undominated(listed(spec)), recomputing
    except (NoSplit, CutDoesNotFit):  # it needs more memory than recomputation
        return [], recomputing


def _open_placements(spec: Spec, micro_batches: int) -> tuple[OpenPlacement, ...]:
    """The placements of ``spec`` whose stages have alternatives; none if it has no decisions by stage."""
    if not spec.placement.choices:
        return ()
    from weft.models.candidates.alternatives import open_candidates

    found = []
    for entry in open_candidates(spec):
        plain = candidate_placement(entry.plain)
        layout = layout_title(entry.plain.shape, len(entry.plain.stages) // len(entry.plain.problem.devices))
        title = (f"{layout}, {' or '.join(map(backward_title, entry.backward))}"
                 + (", activations by stage" if "activations" in spec.placement.choices else ", by stage"))
        found.append(OpenPlacement(title, entry.problem, Run.of(entry.problem, micro_batches),
                                   {**by_device(plain.details, entry.problem), "placement": title}))
    return tuple(found)


def _case_of_lengths(spec: Spec, micro_batches: MicroBatches | None, options: SearchOptions | None) -> Case:
    """The placements of a spec whose micro-batches have different sequence lengths, with costs at all these lengths."""
    from weft.models.candidates.build import CutDoesNotFit, TooLate
    from weft.models.candidates.lengths import length_problems
    from weft.models.candidates.stage_split import NoSplit

    count = spec.run.micro_batches
    if micro_batches not in (None, count):
        raise ValueError(f"micro_batches is {micro_batches!r}, but {spec.where} lists the lengths of {count} "
                         "(training.lengths): leave it out, or list others")
    reorder = options is not None and options.reorder
    _require_plain(None, None if options is None else replace(options, reorder=False))
    try:
        found = {id(entry.candidate): entry for entry in length_problems(spec)}
    except TooLate as error:
        raise NoneFound(str(error)) from None
    except (NoSplit, CutDoesNotFit) as error:
        raise Infeasible(str(error)) from None
    placements = []
    for candidate in undominated([entry.candidate for entry in found.values()]):
        entry = found[id(candidate)]
        rounds = Rounds(entry.problem, entry.run)
        placements.append(replace(candidate_placement(candidate), problem=rounds.problem,
                                  rounds=None if rounds.is_plain else rounds))
    return Case(spec.name, tuple(placements), placements[0].rounds.run.rounds if placements[0].rounds else count,
                reorder=reorder and placements[0].rounds is not None, reserve=spec.cluster.reserve)


def _in_sequence_chunks(spec: Spec, listed: list[ModelCandidate]) -> list[CasePlacement]:
    """The placements ``listed`` with micro-batches that pass in sequence chunks, if the spec requests it."""
    counts = spec.placement.sequence_chunks
    if not counts:
        return []
    from weft.models.candidates.gpu_costs import require_alike
    from weft.models.candidates.sequence_candidates import sequence_candidates

    require_alike(spec, "placement.sequence_chunks")
    found = []
    for entry in sequence_candidates(spec, [plain for plain in listed if plain.decided is None], counts):
        plain = candidate_placement(entry.candidate)
        title = f"{plain.title}, {entry.title}"
        found.append(replace(plain, title=title, details={**plain.details, "placement": title}))
    return found


def _spaces(spec: Spec, micro_batches: int) -> tuple[CutSpace, ...]:
    from weft.models.cuts.spaces import cut_spaces

    return tuple(cut_spaces(spec, micro_batches))
