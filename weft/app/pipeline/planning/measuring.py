"""Measurements that all ranks make together: of operators, of stages, and of a plan run by the executor.

The ranks measure at the same time, so that they compete for memory and cores as in training. Rank 0 collects the
results, decides, and broadcasts its decisions (:meth:`Ranks.broadcast`).
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

from weft.app.pipeline.lib.meta import built_on_lookup, with_numbers
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
REPEATS = 3  # of each pass of a stage; the run by the executor refines its time later


@dataclass(frozen=True)
class Example:
    """One micro-batch: the leaves of the model's arguments, the leaves of the target (``None``: unknown), all leaves by
    name, and the batch dimension of each argument (or one for all that have the first one's length there)."""

    leaves: Sequence[Any]
    target: Sequence[Tensor] | None
    named: Mapping[str, Tensor]
    dims: Dims | int = 0


@dataclass(frozen=True)
class Ranks:
    """All ranks of ``session``, each with the whole captured model. Every method but :meth:`training` is collective."""

    captured: Model
    purity: Purity | None
    example: Example
    goal: Goal
    session: Session
    options: PipelineOptions
    materials: Materials | None = None

    @property
    def decides(self) -> bool:
        """Whether this is rank 0, of the first copy if there are several."""
        return self.session.process(self.session.rank) == 0

    def broadcast(self, make: Callable[[], Value], text: str) -> Value:
        """Call ``make`` on rank 0 and return its value on all ranks. ``text`` names the activity for the watchdog."""
        if self.decides:
            self.session.watch.doing(text)
        found: list[Value | None] = self.session.everywhere(make() if self.decides else None,
                                                            f"waiting for rank 0: {text}")
        return found[0]  # type: ignore[return-value]

    def broadcast_plan(self, make: Callable[[], Plan | None], text: str) -> Plan | None:
        """As :meth:`broadcast`, for a plan."""
        def as_json() -> dict[str, Any] | None:
            plan = make()
            return None if plan is None else plan_to_json(plan)

        found = self.broadcast(as_json, text)
        return None if found is None else plan_from_json(found)

    @property
    def has_target(self) -> bool:
        """Whether the loss can be computed on the example."""
        return self.goal.loss is None or self.example.target is not None

    def deciding(self, decisions: Decisions) -> Ranks:
        """The same ranks with ``decisions`` on the memory of operators applied."""
        if not isinstance(self.captured, Captured):
            return self  # its operators are unknown
        return replace(self, captured=treated(self.captured, decisions, self.example.leaves, self.example.dims))

    def computed_by(self, names: Sequence[str]) -> Ranks:
        """The same ranks with stages computed by the backends called ``names``; unchanged for no names."""
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
        """The operators and their purity, which only an exported model has."""
        assert isinstance(self.captured, Captured) and self.purity is not None
        return self.captured, self.purity

    def sizes(self) -> tuple[float | None, ...]:
        """Bytes of activations that cross a cut before each operator; ``None`` where no cut is possible. Of a model
        that is cut before submodules: the bytes that cross these cuts."""
        if not isinstance(self.captured, Captured):
            return self.captured.sizes()
        captured, purity = self.graph
        return tuple(float(crossing.size) if crossing.refused is None and crossing.values and purity.begins(node)
                     else None for node, crossing in zip(captured.calls, crossings(captured, purity), strict=True))

    def row(self, sizes: tuple[float | None, ...]) -> Row:
        """The operators with the median of all ranks' times. Their saved activations are missing: :meth:`kept` derives
        them from shapes."""
        captured, purity = self.graph
        first, shares = first_weight(captured), work_of(captured, purity)
        self.session.barrier("to measure operators")
        with autocasting(self.options.autocast, self.session.device), preserved_state(self.goal.loss):
            own = operator_seconds(captured, self.example.leaves, loss=self.loss)
        seconds = self.session.exchange(own, "measuring operators")
        medians = (statistics.median(times) for times in zip(*seconds, strict=True))
        return Row(tuple(time * share for time, share in zip(medians, shares, strict=True)), sizes, first + 1,
                   tuple(map(float, operator_weights(captured, captured.calls))), (0.0,) * len(sizes))

    @property
    def loss(self) -> Callable[[Any], Tensor]:
        """The loss as a function of the model's output, with the example's target."""
        loss, target = self.goal.loss, self.example.target
        if loss is None or target is None or self.goal.target is None:
            return loss_of if loss is None else partial(stand_in, target=None)
        known = tree_unflatten(list(target), self.goal.target)
        return lambda output: one_tensor(loss(output, known))

    def kept(self, row: Row) -> Row:
        """``row`` with the bytes of saved activations, which only a memory limit needs."""
        with autocasting(self.options.autocast, self.session.device):
            return replace(row, kept=tuple(saved_bytes(self.graph[0], self.example.leaves)))

    def training(self, places: Sequence[int]) -> Training:
        """The stages of the cut at ``places`` with the example as data. Without a target, :func:`stand_in` replaces the
        loss. The stages of a model on the meta device are materialised at each lookup."""
        cut = divided(self.captured, places, self.purity)
        whole = self._training_of(cut, range(cut.count))
        return whole if self.materials is None else built_on_lookup(
            whole, lambda s: self._training_of(cut, [s]).stages[s], self.materials)

    @contextmanager
    def _as_run(self, places: Sequence[int], only: Sequence[int]) -> Iterator[Training]:
        """The stages in ``only`` as in training: materialised, with master weights if the dtype needs them."""
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
        """Measured costs of the stages of ``training``; each rank measures its own, all at the same time."""
        own = [s for s in training.stages if rank_of(s) == self.session.rank]
        self.session.barrier("to measure stages")
        with preserved_state(self.captured.model, self.goal.loss):
            mine = measure_stages(training, device=self.session.device, repeats=REPEATS, only=own,
                                  slots=True)
        found = [cost for each in self.session.exchange(mine, "measuring stages") for cost in each]
        return _chain(sorted(found, key=lambda cost: cost.stage))

    @contextmanager
    def stepping(self, places: Sequence[int], plan: Plan) -> Iterator[PlannedSteps]:
        """Runs steps of ``plan`` with the stages of the cut at ``places``; the model is unchanged afterwards."""
        ranks = self.computed_by(plan.solver.get(STAGE_BACKENDS, ()))
        own = stages_of(plan, self.session.rank)
        with (ranks._as_run(places, own) as training, preserved_state(self.captured.model, self.goal.loss),
              closing(PlannedSteps(plan, self.session, training)) as found):
            if any(getattr(part, "sparse", False) for part in self.captured.model.modules()):
                found.step()  # a first step shows which gradients are sparse
            yield found


def stand_in(output: Any, target: Any) -> Tensor:
    """The mean over all floating-point outputs: stands in for a loss whose target is unknown."""
    return torch.stack([leaf.double().mean() for leaf in tree_leaves(output)
                        if isinstance(leaf, Tensor) and leaf.is_floating_point()]).sum()


def _chain(costs: Sequence[StageCosts]) -> list[StageCosts]:
    """``costs``, marked as a chain if each stage takes inputs only from the one before."""
    is_chain = all(set(cost.takes or ()) == set(cost.owes or ()) == ({cost.stage - 1} if cost.stage else set())
                   for cost in costs)
    return [replace(cost, takes=None, owes=None) if is_chain else cost for cost in costs]
