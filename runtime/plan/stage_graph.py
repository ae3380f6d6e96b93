"""Recognition of stages in a graph of blocks: the blocks that are the passes of one stage, and the ranks of a stage.

:class:`~weft.solver.pipeline.Pipeline` recognises chains of stages on one device each. The executor also runs acyclic
graphs of stages, and stages on several ranks. Each forward block is a stage; its other passes are recognised by kinds,
devices and dependencies, never by names:

- the gradient of a stage (a full backward, or an input gradient) is on the same devices, after the stage's forward and
  after the gradients of all its consumers. Of several candidates, one that waits for the forward directly is preferred,
  then one that waits for exactly those gradients, then the first;
- a weight gradient waits for the input gradient of its stage. A stage whose input gradient no other stage needs may
  have a weight gradient alone; a stage without any gradient is not trained;
- the gradient of a stage waits for its recompute block; the forward then keeps its inputs only;
- two blocks of kind ``other`` are offload and load if the first waits for a forward and releases memory, the second
  waits for the first and allocates memory, and the recomputation or the gradient of that stage waits for the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from weft.solver.pipeline import NotAPipeline, Pipeline
from weft.solver.problem import BlockKind, Problem

#: Every pass that a stage may have, in the order in which one micro-batch runs them.
LETTERS = "FOLRBIW"
GRADIENTS = (BlockKind.BACKWARD, BlockKind.INPUT_GRAD)


class NotAStageGraph(ValueError):
    """The blocks are not a graph of stages; the message is the reason."""


@dataclass(frozen=True)
class StagePasses:
    """One stage: its blocks by letter (indices into ``problem.blocks``), and its ranks, ascending."""

    ranks: tuple[int, ...]
    blocks: Mapping[str, int]

    @property
    def backward(self) -> str | None:
        """The letter of the pass that reads the gradients of the stage's outputs; ``None`` if it is not trained."""
        return next((letter for letter in "BIW" if letter in self.blocks), None)

    @property
    def gives_gradient(self) -> bool:
        """Whether it has an input gradient, for earlier stages."""
        return self.backward in ("B", "I")

    @property
    def order(self) -> tuple[int, ...]:
        """Its blocks in the order in which one micro-batch runs them."""
        return tuple(self.blocks[letter] for letter in LETTERS if letter in self.blocks)


@dataclass(frozen=True)
class StageGraph:
    """A problem seen as stages, numbered in topological order of their forwards."""

    problem: Problem
    stages: tuple[StagePasses, ...]

    @classmethod
    def of(cls, problem: Problem) -> StageGraph:
        """The stages of ``problem``. Raises :class:`NotAStageGraph` with the reason if it has none."""
        for device in problem.devices:
            if device.lane_of is not None:
                raise NotAStageGraph(f"device {device.name!r} is a lane of {device.lane_of!r}, and the executor has no "
                                     "lanes for the passes of stages")
        sizes = sorted({stage.micro_batch for stage in (problem.model.stages if problem.model else ())
                        if stage.micro_batch is not None})
        if len(sizes) > 1:
            raise NotAStageGraph(f"its stages run micro-batches of {' and '.join(map(str, sizes))} samples, and the "
                                 "executor runs one size for all stages")
        try:
            pipeline = Pipeline.of(problem)
        except NotAPipeline:
            return cls(problem, _Recognition(problem).stages())
        return cls(problem, tuple(StagePasses((stage.device,), {problem.blocks[b].kind.letter: b for b in stage.blocks})
                                  for stage in pipeline.stages))

    @cached_property
    def pass_of(self) -> Mapping[int, tuple[int, str]]:
        """The stage and the letter of each block."""
        return {block: (s, letter) for s, stage in enumerate(self.stages) for letter, block in stage.blocks.items()}

    @property
    def has_backward(self) -> bool:
        """Whether any stage is trained."""
        return any(stage.backward is not None for stage in self.stages)

    def parameter_groups(self, shared: Iterable[Sequence[int]] = ()) -> dict[tuple[int, ...], tuple[int, ...]]:
        """The sets of stages whose gradients are summed separately, with their ranks: each trained stage alone, and
        each set in ``shared``, whose stages share parameters. Empty if no stage is trained."""
        if not self.has_backward:
            return {}
        groups: list[tuple[int, ...]] = [(s,) for s, stage in enumerate(self.stages) if stage.backward is not None]
        groups += sorted({tuple(sorted(stages)) for stages in shared} - set(groups))
        groups = [stages for stages in groups if any(True for _ in self.contributions(stages))]
        return {stages: tuple(sorted({rank for s in stages for rank in self.stages[s].ranks})) for stages in groups}

    def contributions(self, stages: Iterable[int]) -> Iterator[int]:
        """The blocks that add to the gradients of parameters of ``stages``."""
        for stage in stages:
            for letter in "BIW":
                if letter in self.stages[stage].blocks:
                    yield self.stages[stage].blocks[letter]

    def copies_beside(self, stage: int) -> bool:
        """Whether the stage's offload copies overlap with other blocks: they are transfers before its offload block,
        not part of it."""
        blocks = self.stages[stage].blocks
        return "O" in blocks and any(item.lag for item in self.problem.blocks[blocks["O"]].after
                                     if self.problem.index[item.block] == blocks["F"])

    def reaches(self, producer: int, reader: int, rank: int) -> bool:
        """Whether the result of block ``producer`` is available on ``rank`` when block ``reader`` of the same
        micro-batch runs there: ``producer`` runs there, or ``reader`` or a block before it waits for it there."""
        before = self._ancestors[reader]
        if rank in self.problem.blocks[producer].devices:
            return bool(before >> producer & 1)
        return any(consumer == reader or before >> consumer & 1
                   for waited, consumer, dependency in self.problem.dependencies()
                   if waited == producer and dependency.distance == 0 and rank in self.problem.blocks[consumer].devices)

    @cached_property
    def _ancestors(self) -> tuple[int, ...]:
        return _ancestors(self.problem)


def _ancestors(problem: Problem) -> tuple[int, ...]:
    """For each block, as a bit set, the blocks of the same micro-batch that end before it starts."""
    found = [0] * len(problem.blocks)
    for block in problem.topological_order:
        for item in problem.blocks[block].after:
            if item.distance == 0:
                producer = problem.index[item.block]
                found[block] |= found[producer] | 1 << producer
    return tuple(found)


class _Recognition:
    def __init__(self, problem: Problem) -> None:
        self.problem, self.blocks = problem, problem.blocks
        self.before = _ancestors(problem)
        self.waits = [[problem.index[item.block] for item in block.after if item.distance == 0]
                      for block in problem.blocks]
        self.ranks = [tuple(sorted(block.devices)) for block in problem.blocks]
        order = problem.topological_order
        self.forwards = [b for b in order if self.blocks[b].kind == BlockKind.FORWARD]
        self.gradients = [b for b in order if self.blocks[b].kind in GRADIENTS]
        self.found: dict[int, dict[str, int]] = {forward: {"F": forward} for forward in self.forwards}

    def stages(self) -> tuple[StagePasses, ...]:
        if not self.forwards:
            raise NotAStageGraph("it has no forward block")
        for forward, gradient in self._gradient_of().items():
            if gradient is not None:
                self.found[forward][self.blocks[gradient].kind.letter] = gradient
        for block in self._of_kind(BlockKind.WEIGHT_GRAD):
            self._claim("W", block, self._weights_of(block), "waits for the input gradient of no stage on its devices "
                        "that has no other weight gradient")
        for passes in self.found.values():
            if "I" in passes and "W" not in passes:
                raise NotAStageGraph(f"no weight_grad block waits for input_grad block {self._name(passes['I'])}")
        for block in self._of_kind(BlockKind.RECOMPUTE):
            self._claim("R", block, self._waited_for_by(block, ("B", "I", "W")),
                        "is waited for by the gradient of no stage on its devices that has no other recompute block")
        self._offloads()
        self._require_all_found()
        return tuple(StagePasses(self.ranks[forward], passes) for forward, passes in self.found.items())

    # -- gradients -----------------------------------------------------------------------------------------------------

    def _gradient_of(self) -> dict[int, int | None]:
        """The gradient of each forward, by backtracking from the last forward on."""
        consumers: dict[int, list[int]] = {forward: [] for forward in self.forwards}
        for forward in self.forwards:
            for producer in self.waits[forward]:
                if producer in consumers:
                    consumers[producer].append(forward)
        direct = {gradient: self._gradients_before(gradient) for gradient in self.gradients}
        order, chosen = self.forwards[::-1], dict[int, int | None]()
        open_choices: list[Iterator[int | None]] = []
        while len(chosen) < len(order):
            if len(open_choices) == len(chosen):
                forward = order[len(chosen)]
                open_choices.append(iter(self._candidates(forward, consumers[forward], direct, chosen)))
            for choice in open_choices[-1]:
                chosen[order[len(chosen)]] = choice
                break
            else:
                open_choices.pop()
                if not chosen:
                    raise NotAStageGraph(f"its {len(self.gradients)} backward and input_grad blocks do not mirror its "
                                         f"{len(self.forwards)} forward blocks, device by device")
                chosen.popitem()
        return chosen

    def _candidates(self, forward: int, consumers: Sequence[int], direct: Mapping[int, frozenset[int]],
                    chosen: Mapping[int, int | None]) -> list[int | None]:
        taken = set(chosen.values())
        needed = {gradient for consumer in consumers if (gradient := chosen[consumer]) is not None}
        fits = [gradient for gradient in self.gradients
                if gradient not in taken and self.ranks[gradient] == self.ranks[forward]
                and self.before[gradient] >> forward & 1
                and all(self.before[gradient] >> other & 1 for other in needed)]
        fits.sort(key=lambda gradient: (forward not in self.waits[gradient], direct[gradient] != needed))
        without = sum(choice is None for choice in chosen.values())
        return [*fits, None] if without < len(self.forwards) - len(self.gradients) else list(fits)

    def _gradients_before(self, block: int) -> frozenset[int]:
        """The gradients that ``block`` waits for, directly or through a recompute, offload or load block."""
        found: set[int] = set()
        waiting = list(self.waits[block])
        while waiting:
            producer = waiting.pop()
            if self.blocks[producer].kind in GRADIENTS:
                found.add(producer)
            elif self.blocks[producer].kind in (BlockKind.RECOMPUTE, BlockKind.COLLECTIVE, BlockKind.OTHER):
                waiting += self.waits[producer]
        return frozenset(found)

    # -- the other passes ----------------------------------------------------------------------------------------------

    def _weights_of(self, block: int) -> Iterator[int]:
        """The forwards of stages whose weight gradient ``block`` may be; first those whose input gradient it waits for.
        """
        for forward, passes in self.found.items():
            if "I" in passes and passes["I"] in self.waits[block]:
                yield forward
        for forward, passes in self.found.items():
            if "I" not in passes and "B" not in passes and self.before[block] >> forward & 1:
                needed = (self.found[consumer] for consumer in self.forwards if forward in self.waits[consumer])
                if all(self.before[block] >> b & 1 for others in needed for letter, b in others.items()
                       if letter in "BI"):
                    yield forward

    def _waited_for_by(self, block: int, letters: Sequence[str]) -> Iterator[int]:
        for forward, passes in self.found.items():
            if any(letter in passes and block in self.waits[passes[letter]] for letter in letters):
                yield forward

    def _offloads(self) -> None:
        """Assign pairs of ``other`` blocks to stages as offload and load."""
        loads = {block: [b for b in self.waits[block] if self.blocks[b].kind == BlockKind.OTHER]
                 for block in self._of_kind(BlockKind.OTHER)}
        for load, offloads in loads.items():
            for offload in offloads:
                stage = next((f for f in self._waited_for_by(load, ("R", "B", "I", "W"))
                              if f in self.waits[offload] and self.ranks[f] == self.ranks[load] == self.ranks[offload]
                              and "O" not in self.found[f]
                              and max(self.blocks[offload].memory) < 0 < min(self.blocks[load].memory)), None)
                if stage is not None:
                    self.found[stage] |= {"O": offload, "L": load}
        claimed = {block for passes in self.found.values() for block in passes.values()}
        for block in self._of_kind(BlockKind.OTHER):
            if block not in claimed:
                raise NotAStageGraph(f"block {self._name(block)} is of kind other, and neither offload nor load of a "
                                     "stage")

    def _require_all_found(self) -> None:
        """Refuse blocks that belong to no stage, as they have no name in a program."""
        claimed = {block for passes in self.found.values() for block in passes.values()}
        for block in self.problem.topological_order:
            if block not in claimed:
                raise NotAStageGraph(f"{self.blocks[block].kind} block {self._name(block)} belongs to no forward block "
                                     "on its devices that has no other gradient")

    def _claim(self, letter: str, block: int, stages: Iterator[int], otherwise: str) -> None:
        for forward in stages:
            if self.ranks[forward] == self.ranks[block] and letter not in self.found[forward]:
                self.found[forward][letter] = block
                return
        raise NotAStageGraph(f"{self.blocks[block].kind} block {self._name(block)} {otherwise}")

    def _of_kind(self, kind: BlockKind) -> list[int]:
        return [block for block in self.problem.topological_order if self.blocks[block].kind == kind]

    def _name(self, block: int) -> str:
        return repr(self.blocks[block].name)
