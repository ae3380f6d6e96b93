"""What all ranks measure together: operators, stages, and a plan run by the executor itself.

Each rank measures while its neighbours do, as they will work in a run. Rank 0 puts together what was found; what it
does with it the others hear from it (:meth:`Ranks.told`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_unflatten

from weft.app.pipeline.lib.meta import built_when_asked, with_numbers
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.precision import autocasting, has_masters
from weft.app.pipeline.lib.running import under_autocast
from weft.app.pipeline.lib.split import Model, divided
from weft.app.pipeline.planning.row import Row
from weft.app.pipeline.planning.times import operator_seconds, operator_weights, saved_bytes
from weft.runtime.backends.stages import STAGE_BACKENDS, stages_by
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.cut import crossings
from weft.runtime.captured.division import Data, Goal, ModelDivision, training_of
from weft.runtime.captured.inputs.batch_dims import Dims
from weft.runtime.captured.loss import loss_of
from weft.runtime.captured.materials import Materials
from weft.runtime.captured.memory.decisions import Decisions
from weft.runtime.captured.memory.treatment import treated
from weft.runtime.captured.metadata_reads import preserved_state
from weft.runtime.captured.purity import Purity, first_weight, work_of
from weft.runtime.interface.counting import one_tensor
from weft.runtime.interface.precision import MasterWeights
from weft.runtime.interface.training import Training
from weft.runtime.measure.measure_stages import measure_stages
from weft.runtime.measure.stage_costs import StageCosts
from weft.runtime.plan.plan import Plan, plan_from_json, plan_to_json
from weft.runtime.ranks.session import Session
from weft.runtime.replay.planned_steps import PlannedSteps
from weft.runtime.replay.stepping import stages_of

Value = TypeVar("Value")
REPEATS = 3  # of each pass of a stage: the executor's own run says more later


@dataclass(frozen=True)
class Example:
    """One micro-batch: the leaves of the model's arguments, those of the target (``None``: not known), all of them by
    name, and along which dimension each of the arguments' is cut (or all that are as long there as the first)."""

    leaves: Sequence[Any]
    target: Sequence[Tensor] | None
    named: Mapping[str, Tensor]
    dims: Dims | int = 0


@dataclass(frozen=True)
class Ranks:
    """All ranks of ``session``, each with the whole captured model; every method but :meth:`training` is called by all
    of them together."""

    captured: Model
    purity: Purity | None
    example: Example
    goal: Goal
    session: Session
    options: PipelineOptions
    materials: Materials | None = None

    @property
    def decides(self) -> bool:
        """Whether this is rank 0, of the first copy where there are several."""
        return self.session.process(self.session.rank) == 0

    def told(self, make: Callable[[], Value], text: str) -> Value:
        """What ``make`` gives on rank 0, on all ranks."""
        if self.decides:
            self.session.watch.doing(text)
        found: list[Value | None] = self.session.everywhere(make() if self.decides else None,
                                                            f"waiting for rank 0: {text}")
        return found[0]  # type: ignore[return-value]

    def told_plan(self, make: Callable[[], Plan | None], text: str) -> Plan | None:
        """The plan that ``make`` gives on rank 0, on all ranks."""
        def as_json() -> dict[str, Any] | None:
            plan = make()
            return None if plan is None else plan_to_json(plan)

        found = self.told(as_json, text)
        return None if found is None else plan_from_json(found)

    @property
    def has_target(self) -> bool:
        """Whether the loss can be called."""
        return self.goal.loss is None or self.example.target is not None

    def deciding(self, decisions: Decisions) -> Ranks:
        """The same where stages do what ``decisions`` says of their memory."""
        if not isinstance(self.captured, Captured):
            return self  # there is nothing to decide
        return replace(self, captured=treated(self.captured, decisions, self.example.leaves, self.example.dims))

    def computed_by(self, names: Sequence[str]) -> Ranks:
        """The same where the backends called ``names`` compute the stages; none: as they are."""
        if not names or not isinstance(self.captured, Captured):
            return self
        return replace(self, captured=stages_by(self.captured, names))

    @property
    def model_bytes(self) -> int:
        """Bytes of the model on this rank's device."""
        return sum(t.numel() * t.element_size() for t in {*self.captured.model.parameters(),
                                                          *self.captured.model.buffers()}
                   if t.device.type == self.session.device.type)

    @property
    def graph(self) -> tuple[Captured, Purity]:
        """What is only there of a model that was exported."""
        assert isinstance(self.captured, Captured) and self.purity is not None
        return self.captured, self.purity

    def sizes(self) -> tuple[float | None, ...]:
        """The bytes that pass before each operator; ``None`` where no cut may be. Of a model that is cut before
        submodules: those that pass there."""
        if not isinstance(self.captured, Captured):
            return self.captured.sizes()
        captured, purity = self.graph
        return tuple(float(crossing.size) if crossing.refused is None and crossing.values and purity.begins(node)
                     else None for node, crossing in zip(captured.calls, crossings(captured, purity), strict=True))

    def row(self, sizes: tuple[float | None, ...]) -> Row:
        """The operators, each timed by all ranks at once: the median of the ranks counts. (What they keep is worked out
        by rank 0, from shapes.)"""
        captured, purity = self.graph
        first, shares = first_weight(captured), work_of(captured, purity)
        self.session.barrier("to measure operators")
        with autocasting(self.options.autocast, self.session.device), preserved_state(self.goal.loss):
            own = operator_seconds(captured, self.example.leaves, loss=self.loss)
        seconds = self.session.exchange(own, "measuring operators")
        medians = (statistics.median(times) for times in zip(*seconds, strict=True))
        return Row(tuple(time * share for time, share in zip(medians, shares, strict=True)), sizes, first + 1,
                   tuple(operator_weights(captured)), (0.0,) * len(sizes))

    @property
    def loss(self) -> Callable[[Any], Tensor]:
        """The loss of a result of the model, on the example's target."""
        loss, target = self.goal.loss, self.example.target
        if loss is None or target is None or self.goal.target is None:
            return loss_of if loss is None else partial(stand_in, target=None)
        known = tree_unflatten(list(target), self.goal.target)
        return lambda output: one_tensor(loss(output, known))

    def kept(self, row: Row) -> Row:
        """``row`` with what operators keep, which only a limit of memory needs to be known for."""
        with autocasting(self.options.autocast, self.session.device):
            return replace(row, kept=tuple(saved_bytes(self.graph[0], self.example.leaves)))

    def training(self, places: Sequence[int]) -> Training:
        """The stages of the cut at ``places``, fed with the example; a loss that needs a target that nobody has given
        is made of the result. On the meta device they are given numbers each time they are looked up."""
        cut = divided(self.captured, places, self.purity)
        whole = self._training_of(cut, range(cut.count))
        return whole if self.materials is None else built_when_asked(
            whole, lambda s: self._training_of(cut, [s]).stages[s], self.materials)

    @contextmanager
    def _as_run(self, places: Sequence[int], only: Sequence[int]) -> Iterator[Training]:
        """Those in ``only`` as they will run: inside, they have numbers, and masters if weights are to have such."""
        cut = divided(self.captured, places, self.purity)
        training = self._training_of(cut, only)
        if self.materials is not None:
            known: dict[int, Tensor] = {}
            for module in training.stages.values():
                with_numbers(module, self.materials, known)
        if has_masters(self.options.dtype):
            trained = {p: None for module in training.stages.values() for p in module.parameters() if p.requires_grad}
            training.masters = MasterWeights(trained)
        try:
            yield training
        finally:
            if training.masters is not None:
                training.masters.close()

    def _training_of(self, cut: ModelDivision, only: Sequence[int]) -> Training:
        known = self.goal if self.has_target else Goal(stand_in, None)
        found = training_of(cut, only, known, Data(
            [self.example.named] * self.options.micro_batches, self.session.replica * self.options.micro_batches))
        return under_autocast(found, self.options.autocast, self.session.device)

    def costs(self, training: Training, rank_of: Callable[[int], int]) -> list[StageCosts]:
        """The stages of ``training``, each measured by the rank that would run it, all at once."""
        own = [s for s in training.stages if rank_of(s) == self.session.rank]
        self.session.barrier("to measure stages")
        with preserved_state(self.captured.model, self.goal.loss):
            mine = measure_stages(training, device=self.session.device, repeats=REPEATS, only=own,
                                  slots=True)
        found = [cost for each in self.session.exchange(mine, "measuring stages") for cost in each]
        return _chain(sorted(found, key=lambda cost: cost.stage))

    @contextmanager
    def stepping(self, places: Sequence[int], plan: Plan) -> Iterator[PlannedSteps]:
        """Steps of ``plan`` with the stages of the cut at ``places``, of which nothing is left afterwards."""
        ranks = self.computed_by(plan.solver.get(STAGE_BACKENDS, ()))
        own = stages_of(plan, self.session.rank)
        with (ranks._as_run(places, own) as training, preserved_state(self.captured.model, self.goal.loss),
              closing(PlannedSteps(plan, self.session, training)) as found):
            if any(getattr(part, "sparse", False) for part in self.captured.model.modules()):
                found.step()  # which gradients are sparse is known when there are some
            yield found


def stand_in(output: Any, target: Any) -> Tensor:
    """The mean of all numbers of the result: what a loss costs where no target is known to call it with."""
    return torch.stack([leaf.double().mean() for leaf in tree_leaves(output)
                        if isinstance(leaf, Tensor) and leaf.is_floating_point()]).sum()


def _chain(costs: Sequence[StageCosts]) -> list[StageCosts]:
    """The same, said to be a chain where each stage takes from the one before, and owes it a gradient."""
    is_chain = all(set(cost.takes or ()) == set(cost.owes or ()) == ({cost.stage - 1} if cost.stage else set())
                   for cost in costs)
    return [replace(cost, takes=None, owes=None) if is_chain else cost for cost in costs]
