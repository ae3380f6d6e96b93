"""On how many GPUs each stage of a cut runs: a problem with the choice ``degree: stage s`` for every stage.

Stage s of degree d runs on the d GPUs of its home's aligned group: GPUs h // d * d and on, for its home h. Larger
groups hold the homes of several stages, whose blocks then take turns on them. A stage's times and sizes are those of
its layers at that degree (:attr:`weft.models.tensor_parallel.space.Space.costs`), what it receives travels between the
two groups, whatever they are.

Weights, gradients and optimizer state of a stage lie where it runs, so what a GPU holds of them hangs on choices, and a
device's memory is one number: each GPU sets aside the most that any assignment makes it hold. So every schedule fits,
and assignments that need the rest are missed: the bound is proven for placements that leave that much free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from weft.models.candidates.stage_blocks import forward_block, gradient_blocks
from weft.models.candidates.stages import Backward, StageCost, static_bytes
from weft.models.spec.quantities import format_bytes
from weft.models.tensor_parallel.parts import stage_cost
from weft.models.tensor_parallel.space import Space
from weft.solver.problem import Block, BlockKind, Device, ProblemError
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem

__all__ = ["degree_choice", "degree_problem", "group_of"]


def degree_choice(stage: int) -> str:
    """The name of the choice of how many GPUs compute ``stage``."""
    return f"degree: stage {stage}"


def group_of(home: int, degree: int) -> tuple[int, ...]:
    """The aligned group of ``degree`` GPUs that ``home`` is in."""
    first = home // degree * degree
    return tuple(range(first, first + degree))


def degree_problem(space: Space, cuts: Sequence[int], homes: Sequence[int], degrees: Sequence[int],
                   backward: Backward) -> WideProblem:
    """The problem of the stages of ``cuts`` (the first layer of each, and the number of layers), stage s at home on GPU
    ``homes[s]``, each on as many GPUs as one of ``degrees``; of one degree there is no choice.

    Raises :class:`~weft.solver.problem.ProblemError` where the state of the stages may take more than a GPU has, and
    for degrees that the GPUs cannot be divided into.
    """
    for degree in degrees:
        if degree not in space.costs or space.gpus % degree:
            raise ProblemError(f"degree {degree} does not divide {space.gpus} GPUs evenly, use "
                               + ", ".join(str(d) for d in space.degrees if space.gpus % d == 0))
    stages = [_StageByDegree(s, homes[s], {degree: stage_cost(space.costs[degree], range(first, last))
                                           for degree in degrees})
              for s, (first, last) in enumerate(pairwise(cuts))]
    blocks: list[WideBlock] = []
    for before, stage in zip([None, *stages], stages, strict=False):
        blocks += stage.forwards(space, before)
    if backward != "none":
        for behind, stage in zip([None, *reversed(stages)], reversed(stages), strict=False):
            blocks += stage.gradients(space, behind, backward)
    choices = {degree_choice(s): tuple(map(str, degrees)) for s in range(len(stages))} if len(degrees) > 1 else {}
    return WideProblem(f"{space.name} (degree by stage)", _devices(space, stages), tuple(blocks), choices=choices,
                       time_unit="s", memory_unit="B")


class _StageByDegree:
    """A stage with its costs by degree."""

    def __init__(self, number: int, home: int, costs: dict[int, StageCost]) -> None:
        self.number = number
        self.home = home
        self.costs = costs

    def group(self, degree: int) -> tuple[int, ...]:
        return group_of(self.home, degree)

    def forwards(self, space: Space, before: _StageByDegree | None) -> list[WideBlock]:
        kind: Backward = "full" if space.training else "none"
        return [self._placed(forward_block(self.number, cost, 0, kind, ()), degree,
                             () if before is None else before.sends(space, f"F{before.number}", self, degree))
                for degree, cost in self.costs.items()]

    def gradients(self, space: Space, behind: _StageByDegree | None, backward: Backward) -> list[WideBlock]:
        found = []
        for degree, cost in self.costs.items():
            waits = ((WideDependency(f"F{self.number}"),) if behind is None else
                     behind.returns(space, self, degree))
            for block in gradient_blocks(self.number, cost, 0, backward, ()):
                own = tuple(WideDependency(self.gradient) for _ in block.after) or waits
                renamed = block if block.kind == BlockKind.WEIGHT_GRAD else replace(block, name=self.gradient)
                found.append(self._placed(renamed, degree, own))
        return found

    @property
    def gradient(self) -> str:
        """The name of what earlier stages wait for."""
        return f"B{self.number}"

    def sends(self, space: Space, block: str, target: _StageByDegree, degree: int) -> tuple[WideDependency, ...]:
        """The waits for ``block`` of this stage at each of its degrees, by ``target`` of ``degree``."""
        return tuple(WideDependency(block, space.network.seconds(cost.output, self.group(own), target.group(degree)),
                                    when=self._when(own)) for own, cost in self.costs.items())

    def returns(self, space: Space, target: _StageByDegree, degree: int) -> tuple[WideDependency, ...]:
        """The waits for the gradient of what ``target`` of ``degree`` sent."""
        size = target.costs[degree].output
        return tuple(WideDependency(self.gradient, space.network.seconds(size, self.group(own), target.group(degree)),
                                    when=self._when(own)) for own in self.costs)

    def _when(self, degree: int) -> dict[str, str]:
        return {degree_choice(self.number): str(degree)} if len(self.costs) > 1 else {}

    def _placed(self, block: Block, degree: int, waits: tuple[WideDependency, ...]) -> WideBlock:
        return WideBlock(block.name, block.kind, self.group(degree), block.duration, block.memory, block.workspace,
                         waits, self._when(degree))


def _devices(space: Space, stages: Sequence[_StageByDegree]) -> tuple[Device, ...]:
    """The GPUs with what is left of their memory, whatever is chosen."""
    devices = []
    for gpu in range(space.gpus):
        held = sum(max((static_bytes([cost], space.bytes_per_parameter) for degree, cost in stage.costs.items()
                        if gpu in stage.group(degree)), default=0) for stage in stages)
        if held > space.capacity:
            raise ProblemError(f"{space.name}: gpu{gpu} may have to hold {format_bytes(held)} of weights and their "
                               f"state under some degrees and has {format_bytes(space.capacity)}; allow fewer degrees "
                               "or give more memory")
        devices.append(Device(f"gpu{gpu}", space.capacity - held))
    return tuple(devices)
