"""A graph of stages, the sizes of its micro-batches and the order of one step, searched together: reading the costs at
each size, describing the answer, and converting it to a schedule with its origin."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from weft.app.lib.options import SearchOptions, require_count
from weft.app.lib.verdicts import Searched, choice
from weft.app.place.place import PlaceQuestion, placement_problem_of, stage_facts, with_devices
from weft.models.graph.operators import OperatorGraph
from weft.solver.placement.joint.answer import PlacedStep
from weft.solver.placement.joint.search import place_step
from weft.solver.placement.joint.sized import SizedProblem, affine, require_sizes
from weft.solver.placement.placement import meets
from weft.solver.placement.problem import PlacementError, PlacementProblem
from weft.solver.schedule import Schedule
from weft.solver.step.search import Progress
from weft.text.units import name_text, shown_time

if TYPE_CHECKING:
    from weft.models.spec.sections import Spec


@dataclasses.dataclass(frozen=True)
class SizesAsked:
    """The allowed micro-batch sizes of stages, and the origin of their costs. ``sizes``: samples (empty: the source's
    own). ``files``: by size a file with the costs at that size. ``overhead``: the part of every operator's time
    independent of the size. ``mini_batch``: samples of a step, if the source is not a spec. ``one_size``: all stages
    have the same size."""

    sizes: tuple[int, ...] = ()
    files: Mapping[int, str | os.PathLike[str]] = dataclasses.field(default_factory=dict)
    overhead: float | None = None
    mini_batch: int | None = None
    one_size: bool = False

    def require_meaning(self) -> None:
        """Raise ``ValueError`` for meaningless numbers, and for two sources of one cost."""
        for size in self.sizes:
            require_count("micro-batch size", size)
        if len(set(self.sizes)) < len(self.sizes):
            raise PlacementError(f"micro-batch sizes: {', '.join(map(str, self.sizes))} has one twice, give each once")
        if self.mini_batch is not None:
            require_count("mini_batch", self.mini_batch)
        if self.files and self.overhead is not None:
            raise PlacementError("micro-batch sizes: costs at a size come from a file or from an overhead, leave one "
                                 "out")


def place_step_source(source: str | os.PathLike[str] | PlacementProblem | OperatorGraph | Spec, wanted: SizesAsked,
                      question: PlaceQuestion, options: SearchOptions,
                      on_progress: Callable[[Progress], None]) -> PlacedStep:
    """See :func:`weft.place_step`."""
    wanted.require_meaning()
    with options.preparing():
        sized = _sized(source, wanted, question)
    return place_step(sized, one_size=wanted.one_size, on_progress=on_progress, **options.limits)


def _sized(source: str | os.PathLike[str] | PlacementProblem | OperatorGraph | Spec, wanted: SizesAsked,
           question: PlaceQuestion) -> SizedProblem:
    from weft.models.spec.spec import Spec, load_spec

    if isinstance(source, str | os.PathLike) and os.fspath(source).endswith((".yaml", ".yml")):
        source = load_spec(source)
    if isinstance(source, Spec):
        from weft.app.lib.sources import without_entries

        without_entries(source, "phases", "parallel")
        return _sized_spec(source, wanted, question)
    sizes = wanted.sizes or (1,)
    own = placement_problem_of(source, question)
    if wanted.mini_batch is None and own.micro_batches is None:
        raise PlacementError(f"{own.name} does not say how many samples a step has: give them (--mini-batch N)")
    batch = wanted.mini_batch or sizes[0] * (own.micro_batches or 1)
    require_sizes(batch, sizes)
    if wanted.overhead is not None:
        return affine(own, sizes[0], sizes, wanted.overhead, batch)
    _require_files(sizes[1:], wanted, f"{own.name} has costs of one size of micro-batch, which counts as the first, "
                                      f"{sizes[0]}")
    return SizedProblem(batch, {sizes[0]: own, **{
        size: placement_problem_of(wanted.files[size], question) for size in sizes[1:]}})


def _sized_spec(spec: Spec, wanted: SizesAsked, question: PlaceQuestion) -> SizedProblem:
    from weft.models.candidates.placement_sources import at_size, costs_of_one_size, spec_problem

    if wanted.mini_batch is not None:
        raise PlacementError(f"{spec.where}: the spec says how many samples a step has; leave out --mini-batch")
    own = spec.run.micro_batch_size
    sizes, batch = wanted.sizes or (own,), own * spec.run.micro_batches
    require_sizes(batch, sizes)

    def problem(size: int, file: str | os.PathLike[str] | None = None) -> PlacementProblem:
        return with_devices(spec_problem(
            at_size(spec, size, None if file is None else os.fspath(file)), whole_layers=question.whole_layers,
            replicate=question.replicate and size % 2 == 0), question.devices or {})

    one = costs_of_one_size(spec)
    if wanted.overhead is not None:
        if one is None:
            raise PlacementError(f"{spec.where}: costs are modelled at every size of micro-batch; leave out the "
                                 "overhead")
        return affine(problem(own), own, sizes, wanted.overhead, batch)
    if one is not None:
        _require_files([size for size in sizes if size != own], wanted,
                       f"{spec.where}: {one} is of micro-batches of {own}")
    return SizedProblem(batch, {size: problem(size, wanted.files.get(size)) for size in sizes})


def _require_files(sizes: tuple[int, ...] | list[int], wanted: SizesAsked, known: str) -> None:
    """Refuse sizes without given costs."""
    missing = [size for size in sizes if size not in wanted.files]
    if missing:
        raise PlacementError(f"{known}; give a file with the costs at {missing[0]} ({missing[0]}=FILE), or what of "
                             "every operator's time is the same at every size (--overhead TIME)")


def parse_sizes(text: str) -> dict[int, str | None]:
    """``1,2,4=graph4.json`` as files by size. Raises ``ValueError`` with the allowed values."""
    found: dict[int, str | None] = {}
    for part in text.split(","):
        size, equals, file = part.strip().partition("=")
        if not size.isdecimal() or not 1 <= int(size) < 2**31 or int(size) in found or (equals and not file):
            raise ValueError(f"is {text!r}, it must be like 1,2,4 or 1,2=FILE,4=FILE, each size once")
        found[int(size)] = file or None
    return found


def step_schedule(found: PlacedStep, tolerance: float = 0.0) -> Schedule:
    """The schedule of ``found``; its problem records the composition of the stages and its ``solver`` entry the graphs
    considered. ``tolerance``: the share by which the parameter counts of the executed modules may differ."""
    problem, blocks = found.sized.any, found.schedule.problem
    forwards = [next(block.name for block in blocks.blocks if block.name.partition(".")[0] == f"F{stage}")
                for stage in range(len(found.sizes))]
    facts = stage_facts(problem, [nodes for _, nodes in found.cut.parts], forwards, tolerance, found.sizes)
    title = f"graph of {len(found.sizes)} stages, {found.cut.depth} deep, micro-batches of {_sizes_text(found.sizes)}"
    rows = [Searched(title if row.chosen else f"graph {number} of {row.stages} stages, {row.depth} deep", row.bound,
                     row.makespan, row.chosen) for number, row in enumerate(found.considered)]
    schedule = dataclasses.replace(found.schedule, problem=dataclasses.replace(blocks, model=facts))
    static = [device.static for device in blocks.devices]
    return schedule.with_solver(
        placement=title, placements=len(rows), covered=found.covered, bound_over_placements=found.bound,
        **choice(rows, (), found.makespan, found.any_bound), **({"static_memory": static} if any(static) else {}),
        **({"gpu_memory": [(device.memory or 0) + device.static for device in blocks.devices]}
           if any(static) and all(device.memory is not None for device in blocks.devices) else {}))


def step_text(found: PlacedStep) -> str:
    """The step as text: its time with its proof, the scope of the proof, and a line for each stage."""
    answer, problem = found.to_json(), found.sized.any
    time = partial(shown_time, unit=problem.time_unit)
    proof = "proven optimal" if meets(found.makespan, found.bound) else f"lower bound {time(found.bound)}"
    lines = [
        f"{name_text(problem.name)}: {len(problem.nodes)} operators in {len(found.sizes)} stages, "
        f"{found.cut.depth} deep",
        f"step        {time(found.makespan)} for {found.sized.mini_batch} samples: {proof} over {found.covered}",
        f"any graph   no graph of stages with these sizes, whatever its order, is shorter than {time(found.any_bound)}",
    ]
    if found.at_one_size is not None and len(found.sized.sizes) > 1:
        lines.append(f"one size    {time(found.at_one_size)} is the best 1F1B with one size for all stages")
    for number, stage in enumerate(answer["stages"]):
        several = f"{stage['devices']} x " if stage["devices"] > 1 else ""
        names = [name_text(name) for name in (stage["nodes"][0], stage["nodes"][-1])]
        then = ", then " + ", ".join(map(str, stage["after"])) if stage["after"] else ""
        held = (f"{stage['memory'] / 2**30:.2f} GiB" if problem.memory_unit == "byte" else
                f"{stage['memory']:g} {problem.memory_unit}")
        lines.append(f"  stage {number:<2} {several}{stage['device']}: micro-batches of {stage['micro_batch']}, load "
                     f"{time(stage['load'])}, {held}, {' ... '.join(dict.fromkeys(names))}; depth "
                     f"{stage['depth']}{then}")
    return "\n".join(lines)


def _sizes_text(sizes: tuple[int, ...]) -> str:
    if len(set(sizes)) == 1:
        return str(sizes[0])
    return f"{min(sizes)} to {max(sizes)}"
