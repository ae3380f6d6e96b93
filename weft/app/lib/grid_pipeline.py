"""A uniform grid's pipeline: its search space, and the time that the end of the step adds to its schedules."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TypeGuard

from weft.app.lib.placements import CasePlacement, candidate_placement
from weft.models.candidates.build import backward_modes
from weft.models.candidates.gpu_costs import gpu_costs
from weft.models.cuts.space import CutSpace
from weft.models.cuts.spaces import cut_spaces
from weft.models.grid.degrees import Degrees
from weft.models.grid.grids import Grid, GridSpace
from weft.models.grid.pipeline import (
    balanced_cut,
    even_cut,
    given_cut,
    grid_space,
    pipeline_candidate,
    pipeline_spec,
)
from weft.models.grid.step_end import StepEnd
from weft.models.spec.sections import Spec
from weft.models.spec.spec import SpecError
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule


@dataclass(frozen=True, eq=False)
class GridPipeline:
    """A grid with its pipeline as a spec of its own."""

    space: GridSpace
    spec: Spec
    grid: Grid

    @cached_property
    def pipeline(self) -> Spec:
        return pipeline_spec(self.spec, self.space, self.grid.degrees)

    @cached_property
    def placements(self) -> list[CasePlacement]:
        """The given cut, or the even one and one of even loads; with whole and with split backwards."""
        layers = gpu_costs(self.pipeline).layers[0]
        given = given_cut(self.spec, self.pipeline)
        even = even_cut(len(layers), self.grid.degrees.stages)
        loads = [layer.forward + layer.backward for layer in layers]
        cuts = [given] if given is not None else [even, balanced_cut(even, loads, self.grid.degrees.pipeline)]
        made = [pipeline_candidate(self.pipeline, cut, mode) for cut in dict.fromkeys(cuts)
                for mode in backward_modes(self.pipeline, layers)]
        return [candidate_placement(found) for found in made if found is not None]

    @property
    def spaces(self) -> tuple[CutSpace, ...]:
        """All cuts, if none is given, with the requested chunks."""
        if self.spec.placement.cut is not None:
            return ()
        asked = self.space.asked.virtual
        return tuple(space for space in cut_spaces(self.pipeline, self.pipeline.micro_batches)
                     if asked in (None, space.ground.layout.chunks))

    def end(self, schedule: Schedule) -> StepEnd:
        """The time that the end of the step adds to ``schedule``."""
        return self.space.end(self.grid.degrees, schedule)


def is_open(source: Spec | Problem) -> TypeGuard[Spec]:
    """Whether ``source`` is a spec with open degrees of its grid."""
    return isinstance(source, Spec) and source.parallel is not None and bool(grid_space(source).open)


def found_pipeline(spec: Spec, found: Schedule) -> GridPipeline:
    """The pipeline of the grid found by a search of ``spec``, with its chunks still open."""
    grid = found.solver["grid"]
    degrees = Degrees(**{entry.name: grid[entry.name] for entry in fields(Degrees)})
    return GridPipeline(grid_space(spec), spec, Grid(degrees, grid["bound"], grid["step"]))


def given_pipeline(spec: Spec) -> GridPipeline:
    """The pipeline of the single grid that ``spec`` specifies. Raises :class:`~weft.models.spec.spec.SpecError` for
    open degrees, which ``weft solve`` searches."""
    space = grid_space(spec)
    fixed = space.fixed()
    if fixed is None:
        raise SpecError(f"{spec.where}: parallel leaves {', '.join(space.open)} to be searched, which weft solve does: "
                        "it prints the best of them; give all of them here")
    return GridPipeline(space, spec, Grid(fixed, 0.0, 0.0))
