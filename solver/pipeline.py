"""Recognising a pipeline: a chain of stages, each on one device, run forwards and then backwards.

The published schedules (:mod:`weft.solver.baselines`) and the executor work with stages; a
:class:`~weft.solver.problem.Problem` consists of blocks. :meth:`Pipeline.of` finds the stages by the kinds of the
blocks and by their dependencies, never by their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeAlias

from weft.solver.problem import BlockKind, Problem

Shape: TypeAlias = Literal["chain", "loop", "v", "wave", "other"]


class NotAPipeline(ValueError):
    """The problem is not a pipeline; the message says why."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The blocks of one stage, as indices into ``problem.blocks``, all on one device.

    A full backward is in ``backward``, a split one in ``input_grad`` and ``weight_grad``. Stage 0, which sends no input
    gradient, may have a ``weight_grad`` alone. All three are ``None`` if the problem has no backward.
    """

    forward: int
    backward: int | None
    input_grad: int | None
    weight_grad: int | None
    device: int

    @property
    def gradient(self) -> tuple[int, ...]:
        """The blocks that earlier stages wait for: the full backward or the input gradient (none on some stages 0)."""
        return tuple(block for block in (self.backward, self.input_grad) if block is not None)

    @property
    def weights(self) -> tuple[int, ...]:
        """The block without dependents: the weight gradient, if it is a separate block."""
        return () if self.weight_grad is None else (self.weight_grad,)

    @property
    def blocks(self) -> tuple[int, ...]:
        """All of them, in the order in which one micro-batch runs them."""
        return (self.forward, *self.gradient, *self.weights)


@dataclass(frozen=True)
class Pipeline:
    """A problem seen as a pipeline: forwards f_0 -> ... -> f_S-1, then gradients g_S-1 -> ... -> g_0.

    Each gradient g_s is a full backward, or an input gradient followed by its weight gradient, on the device of f_s; or
    there is no backward at all (inference).
    """

    problem: Problem
    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, problem: Problem) -> Pipeline:
        """The pipeline in ``problem``. Raises :class:`NotAPipeline` with the reason if it is not one.

        Further ``after`` entries are allowed if they follow from the chains; so is a block that waits for its own
        previous micro-batch.
        """
        for block in problem.blocks:
            if len(block.devices) > 1:
                raise NotAPipeline(f"block {block.name!r} runs on {len(block.devices)} devices, "
                                   "a pipeline's blocks run on one each")
            if block.kind in (BlockKind.RECOMPUTE, BlockKind.COLLECTIVE, BlockKind.OTHER):
                raise NotAPipeline(f"block {block.name!r} is of kind {block.kind}, a pipeline has forward, backward, "
                                   "input_grad and weight_grad blocks only")
        forwards = _chain(problem, (BlockKind.FORWARD,))
        if not forwards:
            raise NotAPipeline("it has no forward block")
        gradients = _chain(problem, (BlockKind.BACKWARD, BlockKind.INPUT_GRAD))
        weights = [i for i, block in enumerate(problem.blocks) if block.kind == BlockKind.WEIGHT_GRAD]
        stages = _stages(problem, forwards, gradients, weights)
        _refuse_further_waits(problem, forwards, gradients, stages)
        return cls(problem, stages)

    @cached_property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Per device, the numbers of its stages, in stage order."""
        chunks: list[list[int]] = [[] for _ in self.problem.devices]
        for s, stage in enumerate(self.stages):
            chunks[stage.device].append(s)
        return tuple(map(tuple, chunks))

    @property
    def has_backward(self) -> bool:
        """Whether it trains: there is a backward, full or split."""
        return len(self.stages[-1].blocks) > 1

    @property
    def is_split(self) -> bool:
        """Whether every stage has a separate weight gradient (stage 0 may run a full backward)."""
        if len(self.stages) == 1:
            return self.stages[0].weight_grad is not None
        return all(stage.weight_grad is not None for stage in self.stages[1:])

    @property
    def shape(self) -> Shape:
        """The arrangement of the stages on the devices; see :func:`shape_of`."""
        return shape_of([stage.device for stage in self.stages], len(self.problem.devices))

    @cached_property
    def _stage_by_block(self) -> dict[int, int]:
        return {block: s for s, stage in enumerate(self.stages) for block in stage.blocks}

    def stage_of(self, block: int) -> int:
        """The number of the stage that ``block`` (an index into ``problem.blocks``) belongs to."""
        return self._stage_by_block[block]


def shape_of(devices: Sequence[int], p: int) -> Shape:
    """The arrangement of stages on ``devices``, first to last, of p.

    ``chain``: stage s on device s. ``loop``: on s modulo p, at least two each. ``v``: two each, down the devices and
    back up, stage s on s or 2p - 1 - s. ``wave``: three or more each, down, up, down and so on, which may end at either
    end. ``other``: none of these. On one device several stages are a loop.
    """
    runs, rest = divmod(len(devices), p)
    if rest or not runs:
        return "other"
    down = list(range(p))
    if list(devices) == down * runs:
        return "chain" if runs == 1 else "loop"
    if list(devices) == [device for run in range(runs) for device in (down[::-1] if run % 2 else down)]:
        return "v" if runs == 2 else "wave"
    return "other"


def _chain(problem: Problem, kinds: Iterable[BlockKind]) -> list[int]:
    """The blocks of ``kinds`` in the one order in which each waits for the one before."""
    chain = [i for i in problem.topological_order if problem.blocks[i].kind in kinds]
    for before, block in pairwise(chain):
        if not _waits_for(problem, block, before):
            raise NotAPipeline(f"{problem.blocks[before].kind} block {problem.blocks[before].name!r} and "
                               f"{problem.blocks[block].kind} block {problem.blocks[block].name!r} do not follow each "
                               "other, a pipeline is one chain forwards and one backwards")
    return chain


def _waits_for(problem: Problem, block: int, producer: int) -> bool:
    name = problem.blocks[producer].name
    return any(item.block == name and item.distance == 0 for item in problem.blocks[block].after)


def _stages(problem: Problem, forwards: list[int], gradients: list[int], weights: list[int]) -> tuple[Stage, ...]:
    blocks, count = problem.blocks, len(forwards)
    backward_of = dict(zip(reversed(range(count)), gradients, strict=False))
    weight_of = _weights_by_stage(problem, forwards, backward_of, list(weights))
    gradientless = len(gradients) == count - 1 and 0 in weight_of  # stage 0 has only its weight gradient
    if (gradients or weights) and len(gradients) != count and not gradientless:
        raise NotAPipeline(f"it has {count} forward blocks, but {len(gradients)} backward or input_grad blocks")

    stages = []
    for s, forward in enumerate(forwards):
        gradient, weight, device = backward_of.get(s), weight_of.get(s), blocks[forward].devices[0]
        is_full = gradient is not None and blocks[gradient].kind == BlockKind.BACKWARD
        if gradient is not None and not is_full and weight is None:
            raise NotAPipeline(f"no weight_grad block waits for input_grad block {blocks[gradient].name!r}")
        for block in (gradient, weight):
            if block is not None and blocks[block].devices[0] != device:
                raise NotAPipeline(f"block {blocks[block].name!r} runs on device {blocks[block].devices[0]}, but the "
                                   f"forward of its stage, {blocks[forward].name!r}, on device {device}")
        stages.append(Stage(forward, gradient if is_full else None, None if is_full else gradient, weight, device))
    return tuple(stages)


def _weights_by_stage(problem: Problem, forwards: list[int], backward_of: dict[int, int],
                      weights: list[int]) -> dict[int, int]:
    """The weight gradient of each stage: it waits for that stage's input gradient, at stage 0 perhaps for that of 1."""
    found: dict[int, int] = {}
    for s in range(len(forwards)):  # from the end of the backward chain: a wait for earlier input gradients is implied
        gradient = backward_of.get(s)
        if gradient is None and s > 0:
            continue
        waited = gradient if gradient is not None else backward_of.get(1, forwards[-1])
        if problem.blocks[waited].kind == BlockKind.BACKWARD:
            continue  # no weight gradient follows a full backward
        device = problem.blocks[forwards[s]].devices
        candidates = [w for w in weights if _waits_for(problem, w, waited)]
        candidates.sort(key=lambda w: (problem.blocks[w].devices != device, -w))
        if candidates:
            found[s] = candidates[0]
            weights.remove(candidates[0])
    if weights:
        raise NotAPipeline(f"weight_grad block {problem.blocks[weights[0]].name!r} waits for no input_grad block "
                           "that has no other weight_grad block")
    return found


def _refuse_further_waits(problem: Problem, forwards: list[int], gradients: list[int],
                          stages: tuple[Stage, ...]) -> None:
    """Any wait of a block that the chains do not imply would make it a different graph."""
    main = [*forwards, *gradients]
    if gradients and not _waits_for(problem, gradients[0], forwards[-1]):
        raise NotAPipeline(f"block {problem.blocks[gradients[0]].name!r} does not wait for the last forward, "
                           f"{problem.blocks[forwards[-1]].name!r}")
    place = {block: i for i, block in enumerate(main)}
    for stage in stages:
        if stage.weight_grad is not None:
            place[stage.weight_grad] = place[stage.input_grad] + 1 if stage.input_grad is not None else len(main)
    for producer, consumer, dependency in problem.dependencies():
        implied = (producer == consumer if dependency.distance
                   else problem.blocks[producer].kind != BlockKind.WEIGHT_GRAD and place[producer] < place[consumer])
        if not implied:
            raise NotAPipeline(f"block {problem.blocks[consumer].name!r} waits for {problem.blocks[producer].name!r}"
                               + (" of an earlier micro-batch" if dependency.distance else "")
                               + ", which no pipeline asks for")
