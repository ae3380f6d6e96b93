"""Evaluation: batches run forward only, by the forwards of the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.app.pipeline.run.shapes import BatchPart, Shape
from weft.runtime.captured.division import Data, Goal, evaluation_of, training_of
from weft.runtime.interface.training import Training
from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.ranks.session import Session
from weft.runtime.replay.stepping import Stepping
from weft.solver.baselines import baseline
from weft.solver.problem import BlockKind, Problem


@dataclass(frozen=True)
class _Forwards:
    """Runs the forwards of one shape on ``data``; ``results`` returns the outputs of the last batch."""

    stepping: Stepping
    data: Data
    results: Callable[[], list[Any]]


class Evaluator:
    """Evaluates batches with the ``stages`` of this rank, to which ``computing`` applies autocast and the like.
    Executors are made on first use."""

    def __init__(self, session: Session, stages: Sequence[int], goal: Goal,
                 computing: Callable[[Training], Training]) -> None:
        self.session, self.stages, self.goal, self.computing = session, stages, goal, computing
        self._made: list[_Forwards] = []

    def run(self, parts: Sequence[BatchPart], with_loss: bool) -> Any:
        """The mean loss of the batch, or its outputs by micro-batch on the rank of the last stage."""
        found: list[Any] = []
        mean, counted = 0.0, 0.0
        for part in parts:
            forwards = self._forwards(part.shape, with_loss)
            forwards.data.micro_batches = part.micro_batches
            with torch.no_grad():
                loss = forwards.stepping.step()
            total = forwards.stepping.trainer.worker.total
            if len(parts) == 1 and with_loss:
                return loss
            mean, counted = mean + loss * (part.weight if total is None else total), counted + (total or 0.0)
            found += forwards.results()
        if with_loss:
            return mean / counted if counted else mean
        return found or None

    def close(self) -> None:
        """Free buffers and modules."""
        for forwards in self._made:
            forwards.stepping.close()

    def _forwards(self, shape: Shape, with_loss: bool) -> _Forwards:
        use = f"evaluation, {'loss' if with_loss else 'results'}"
        if use not in shape.running:
            plan = forward_plan(shape.plan)
            data = Data(first=self.session.replica * plan.micro_batches)
            training, results = ((training_of(shape.cut, self.stages, self.goal, data, True), list[Any]) if with_loss
                                 else evaluation_of(shape.cut, self.stages, data))
            shape.running[use] = _Forwards(Stepping(plan, self.session, self.computing(training)), data, results)
            self._made.append(shape.running[use])
        found: _Forwards = shape.running[use]
        return found


def forward_plan(plan: Plan) -> Plan:
    """The forwards of ``plan`` alone, on the same ranks."""
    problem = plan.problem
    forwards = [block for block in problem.blocks if block.kind == BlockKind.FORWARD]
    kept = {block.name for block in forwards}
    free = (0,) * len(forwards[0].memory)
    blocks = tuple(replace(block, memory=free[:len(block.memory)], after=tuple(
        item for item in block.after if item.block in kept)) for block in forwards)
    alone = Problem(f"{problem.name}, forwards", problem.devices, blocks, time_unit=problem.time_unit,
                    memory_unit=problem.memory_unit)
    return plan_of(baseline("greedy", alone, plan.micro_batches))
