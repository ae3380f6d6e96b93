"""The executor's worker that trains (or infers): the stages of a model that live on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from runtime.executor import Parcel
from runtime.plan import Plan
from runtime.program import StageWork, Work
from runtime.session import Session, SessionError
from runtime.stage import StageRunner
from runtime.training import Boundary, Training

__all__ = ["Stages"]


class Stages:
    """Rank ``session.rank``'s stages of ``plan``, as ``training`` hands them over.

    Raises :class:`~runtime.session.SessionError` if the problem is no pipeline or ``training`` does not fit it.
    """

    def __init__(self, plan: Plan, session: Session, training: Training) -> None:
        pipeline = plan.vocabulary.pipeline
        if pipeline is None:
            raise SessionError(f"the problem {plan.problem.name!r} can be emulated, but not run: "
                               f"{plan.vocabulary.why_no_pipeline}")
        self.pipeline, self.training, self.rank = pipeline, training, session.rank
        self.micro_batches, self.device = plan.micro_batches, session.device
        self.last, self.step = len(pipeline.stages) - 1, 0
        self.losses: dict[int, Tensor] = {}
        self.token = torch.zeros(1, device=self.device)  # what is sent only to be waited for
        mine = {s for s, stage in enumerate(pipeline.stages) if stage.device == session.rank}
        if set(training.stages) != mine:
            raise SessionError(f"rank {session.rank} runs the stages {sorted(mine)}, but was handed the modules of "
                               f"{sorted(training.stages)}")
        if len(training.boundaries) != self.last:
            raise SessionError(f"boundaries has {len(training.boundaries)} entries, but {self.last + 1} stages have "
                               f"{self.last} between them")
        if pipeline.has_backward and self.last in mine and (training.loss is None or training.targets is None):
            raise SessionError("the plan has backward passes, so the rank of the last stage must hand over a loss and "
                               "targets")
        self.runners = {s: StageRunner(module.to(self.device), first=s == 0,
                                       split=pipeline.stages[s].input_grad is not None)
                        for s, module in training.stages.items()}

    def begin(self, step: int) -> None:
        """The micro-batches are those of batch ``step`` from now on."""
        self.step = step
        self.losses.clear()

    def close(self) -> None:
        """Give the modules back as they came."""
        for runner in self.runners.values():
            runner.close()

    # -- what the executor asks --------------------------------------------------------------------------------------

    def reads(self, work: Work) -> Sequence[Work]:
        """The activation of the stage before, for a forward; the gradient of the stage after, for a backward."""
        stage, letter, micro_batch = _stage(work)
        if letter == "F":
            return (StageWork(stage - 1, "F", micro_batch),) if stage else ()
        if stage == self.last or (letter == "W" and self.pipeline.stages[stage].input_grad is not None):
            return ()
        after = "B" if self.pipeline.stages[stage + 1].backward is not None else "I"
        return (StageWork(stage + 1, after, micro_batch),)

    def keeps(self, work: Work) -> Work:
        """A stage may look at its input, and at its output's gradient, until its last backward is done."""
        stage, _, micro_batch = _stage(work)
        last = self.pipeline.stages[stage].blocks[-1]
        return StageWork(stage, self.pipeline.problem.blocks[last].kind.letter, micro_batch)

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        """The boundary it crosses; a single number where the message is only there to be waited for."""
        boundary = self._boundary(what, target)
        return {"": Boundary((1,)) if boundary is None else self.training.boundaries[boundary]}

    def message(self, what: Work, result: Parcel, target: int) -> Parcel:
        """The result, as the boundary says it looks."""
        boundary = self._boundary(what, target)
        if boundary is None:
            return {"": self.token}
        return {"": self._checked(what, result.get(""), boundary)}

    def _checked(self, what: Work, result: Tensor | None, boundary: int) -> Tensor:
        shape, dtype = self.training.boundaries[boundary]
        if result is None or tuple(result.shape) != tuple(shape) or result.dtype != dtype:
            found = "nothing" if result is None else f"{tuple(result.shape)} of {result.dtype}"
            raise SessionError(f"{what} gives {found}, but boundaries[{boundary}] says {tuple(shape)} of {dtype}")
        return result

    def prepare(self, work: Work, results: Mapping[Work, Parcel]) -> None:
        """Nothing: messages are all there is to wait for."""

    def compute(self, work: Work, results: Mapping[Work, Parcel]) -> Parcel:
        """Run one pass of one stage."""
        result = self._compute(work, results)
        return {} if result is None else {"": result}

    def _compute(self, work: Work, results: Mapping[Work, Parcel]) -> Tensor | None:
        stage, letter, micro_batch = _stage(work)
        runner = self.runners[stage]
        given = [results[what][""] for what in self.reads(work)]
        if letter == "F":
            x = given[0] if stage else self.training.inputs(self.step, micro_batch).to(self.device)
            return self._forward(stage, micro_batch, x)
        gradient = given[0] if given else None
        if letter == "B":
            return runner.backward(micro_batch, gradient)
        if letter == "I":
            return runner.input_grad(micro_batch, gradient)
        if self.pipeline.stages[stage].input_grad is None:  # stage 0 owes nobody an input gradient
            runner.backward(micro_batch, gradient)
        else:
            runner.weight_grad(micro_batch)
        return None

    def _forward(self, stage: int, micro_batch: int, x: Tensor) -> Tensor | None:
        runner, training = self.runners[stage], self.training
        if not self.pipeline.has_backward:
            y = runner.infer(x)
            if stage == self.last and training.collect is not None:
                training.collect(self.step, micro_batch, y)
            return y
        if stage < self.last:
            return runner.forward(micro_batch, x)
        assert training.loss is not None and training.targets is not None
        loss, target = training.loss, training.targets(self.step, micro_batch).to(self.device)
        scaled = runner.forward(micro_batch, x, lambda y: loss(y, target) / self.micro_batches)
        self.losses[micro_batch] = scaled * self.micro_batches
        return None

    def _boundary(self, what: Work, target: int) -> int | None:
        """Which boundary ``what`` crosses on its way to rank ``target``; ``None`` if no stage there reads it."""
        stage, letter, _ = _stage(what)
        reader = stage + 1 if letter == "F" else stage - 1
        if not 0 <= reader <= self.last or self.pipeline.stages[reader].device != target:
            return None
        return min(stage, reader)


def _stage(work: Work) -> StageWork:
    assert isinstance(work, StageWork)  # a pipeline's program has no other words
    return work
