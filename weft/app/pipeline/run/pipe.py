"""A running pipeline, which :func:`weft.pipeline` returns on every rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.precision import masters_of, scaling_of, typed
from weft.app.pipeline.planning.decide import PipelineDecision
from weft.app.pipeline.run.clipping import clipped_over_ranks, total_norm
from weft.app.pipeline.run.evaluating import Evaluator
from weft.app.pipeline.run.feeding import Feeding
from weft.app.pipeline.run.following import PHASE, Following, Switches, following, move
from weft.app.pipeline.run.holding import Holding
from weft.app.pipeline.run.names import stage_names
from weft.app.pipeline.run.optimizers import watched_optimizers, watched_scalers
from weft.app.pipeline.run.peaks import planned_peaks
from weft.app.pipeline.run.ready import Ready
from weft.app.pipeline.run.report import Report
from weft.app.pipeline.run.shapes import BatchPart, Recut, Shape, Shapes
from weft.app.pipeline.run.state import PipelineState
from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.division import Data, Goal
from weft.runtime.captured.inputs.batch import BatchError, BatchLayout, ShapeError
from weft.runtime.captured.inputs.batch_dims import target_dim
from weft.runtime.plan.plan import Plan
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.replay.stepping import THEIRS, Stepping, stages_of
from weft.runtime.train.sharding import own_share

__all__ = ["PipelineEngine", "Report"]

Result = TypeVar("Result")
#: Key of the loss scale in a checkpoint.
SCALE = "weft.scale"


class PipelineEngine(Holding):
    """This rank's part of a model that trains as a pipeline.

    All methods are collective except those that only read: :meth:`parameters`, :meth:`named_parameters`,
    :meth:`gradients`. If one rank calls another method, or its script ends early, all ranks end with a sentence that
    names both calls. An error in a call and a lost rank end all ranks with one sentence too: see
    :class:`~weft.runtime.ranks.watch.Watch`.
    """

    def __init__(self, session: Session, close: Callable[[BaseException | None], None], recut: Recut,
                 made: PipelineDecision, goal: Goal, inputs: BatchLayout, options: PipelineOptions,
                 full: Mapping[str, Tensor]) -> None:
        self.session, self.goal, self.notes, self.peaks, self.options = session, goal, made.notes, made.peaks, options
        self.rank, self._recut, self._inputs, self._full = session.rank, recut, inputs, full
        self._close, self._closed, self._behind = close, False, 0
        self._nothing, self._following = nn.Parameter(torch.empty(0)), None  # type: nn.Parameter, Following | None
        self._begin(made.plan, made.places)

    def _begin(self, plan: Plan, places: Sequence[int]) -> None:
        """Prepare to run ``plan`` with the model cut at ``places``."""
        session, goal, options, inputs = self.session, self.goal, self.options, self._inputs
        cut, recapture = self._recut(plan, places)
        self.cut, self.plan, self.model = cut, plan, cut.captured.model
        self.feeding = Feeding(cut, plan.stage_ranks or (), session.rank, inputs, goal, target_dim(options.batch_dims),
                               options.target)
        self.stages = tuple(stages_of(plan, session.rank))
        data = Data(first=session.replica * plan.micro_batches)
        first = Shape(cut, self.feeding, plan, data, 0, plan.micro_batches)
        self._shapes = Shapes(session, first, recapture)
        self._ready = Ready(session, self.stages, goal, options)
        training = self._ready.training(first)
        training.clip_norm, training.scaling = options.clip_norm, scaling_of(options.dtype, options.autocast)
        training.fully_shard = options.fully_shard
        self._state = PipelineState(session, cut, plan.stage_ranks or (), goal.loss)
        training.masters = masters_of(self._state.trained, self._full, options.dtype)
        if training.masters is not None:
            self._state.train(training.masters)
        self._stepping = Stepping(plan, session, training)
        gradients = self._stepping.trainer.gradients
        gradients.adding = True
        if gradients.sharding is not None:
            self._state.train(gradients.sharding)
            self._state.rest()
        self._own = self._state.trained
        self._evaluator = Evaluator(session, self.stages, goal, self._ready.computing)
        self._unclip = clipped_over_ranks(self._own.values(), self._norm)
        self._watches = (watched_optimizers(self._own.values(), self._state.idle, self._refuse),
                         watched_scalers(self._own.values(), self._refuse))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, *args: Any, target: Any = None, **kwargs: Any) -> float:
        """Run one batch through the schedule, forward and backward. Returns its mean loss on every rank.

        Gradients are added to existing ones, as by ``backward``: call ``optimizer.zero_grad()`` between batches.
        ``args`` and ``kwargs`` are the model's arguments for a whole batch; ``target`` is passed to the loss with the
        model's output. Each micro-batch is an equal part of the batch. A rank may omit, or pass ``None`` for, arguments
        that it does not read (:meth:`needs`).
        """
        return self._guarded("step", lambda: self._step(args, kwargs, target))

    def eval_step(self, *args: Any, target: Any = None, **kwargs: Any) -> Any:
        """Run one batch forward only, in evaluation mode: without dropout, with fixed running statistics.

        With ``target``, or if the model returns its own loss, returns the mean loss on every rank; otherwise the
        model's outputs, one for each micro-batch, on the rank of the last stage, and ``None`` on the others.
        """
        with_loss = target is not None or self.goal.loss is None
        return self._guarded("eval_step", lambda: self._evaluator.run(self._parts(
            args, kwargs, target, with_loss and self.goal.loss is not None), with_loss))

    @contextmanager
    def accumulate(self, batches: int) -> Iterator[None]:
        """Treat the next ``batches`` steps as one: their gradients are the mean over all these batches, and are reduced
        and clipped after the last one. ::

            with pipe.accumulate(4):
                for ids, labels in four_batches:
                    loss = pipe.step(ids, target=labels)
            optimizer.step()
        """
        self._guarded("accumulate", lambda: self._accumulate(batches))
        begun = self._stepping.steps
        try:
            yield
        except BaseException:
            self._stepping.accumulate(1)
            raise
        done = self._stepping.steps - begun
        self._guarded("accumulate", lambda: self._require_all(done, batches))

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str], optimizer: Optimizer | None = None, *, step: int | None = None,
             keep: int | None = None, extra: Mapping[str, Any] | None = None) -> Path:
        """Save a checkpoint as ``folder/step-000000012``, in the model's own names, and return its path.

        ``step``: number of batches trained (default: those of this pipeline, plus those of the checkpoint that it
        resumed). ``keep``: number of checkpoints to retain. If ``folder`` has checkpoints of a run that this one did
        not resume, this run saves in a folder of its own there, ``folder/run-002``.

        Each rank writes its own part; the folder is renamed to its final name once it is complete. ``optimizer`` is
        this rank's, over ``pipe.parameters()``. ``extra``: further objects with ``state_dict`` and ``load_state_dict``
        by name, such as learning-rate schedulers or a data loader with a position.
        """
        done = self.steps if step is None else step
        return self._guarded("save", lambda: self._state.save(Path(folder), done, optimizer, keep, self._ready.seed,
                                                              self._extra(extra)))

    def resume(self, folder: str | os.PathLike[str], optimizer: Optimizer | None = None, *,
               extra: Mapping[str, Any] | None = None) -> int:
        """Resume from the newest checkpoint in ``folder``, of the run that saved there last. Returns its number of
        trained batches, 0 if there is none.

        The checkpoint may be from another number of ranks and other cuts. The model's random operators continue their
        sequence; torch's own random state does so with the same number of ranks. A damaged checkpoint, and one of
        another model, optimizer or ``dtype``, is refused on all ranks. ``extra``: as in :meth:`save`.
        """
        found = self._guarded("resume", lambda: self._state.resume(Path(folder), optimizer, self._extra(extra)))
        if found is None:
            return 0
        self._behind = found.step - self._stepping.steps
        self._ready.seed = self._ready.seed if found.seed is None else found.seed
        self._stepping.go_on(found.step, self._ready.seed)
        return self.steps

    def follow(self, plans: Sequence[Plan | str | os.PathLike[str]], optimizer: Optimizer, *,
               switches: Switches | None = None, borders: Sequence[float] | None = None) -> None:
        """Run whichever of ``plans`` is due from now on, and switch between steps: parameters and their state in
        ``optimizer`` move to the ranks of the next plan's stages; losses do not change.

        ``plans``: plans of this model with their cuts, as ``pipe.plan`` or its file. ``switches``: pairs of a step and
        the number of the plan that begins there, or a file (``.json``) of :func:`weft.family`. ``borders``: densities
        between consecutive plans, compared with those that :meth:`measured` reports
        (:class:`~weft.runtime.experts.gate.DensityMonitor`). Checkpoints record the active plan.
        """
        self._following = self._guarded("follow", lambda: following(plans, optimizer, switches, borders, self.session,
                                                                    self.plan))

    def measured(self, density: float) -> None:
        """Report the mean number of experts per token in the last step on this rank; the mean over ranks counts."""
        self._guarded("measured", lambda: self._require_following().hear(self.session.everywhere(
            density, "comparing densities")))

    def heed_signals(self) -> None:
        """From now on, a first Ctrl-C or SIGTERM does not end the ranks: :meth:`asked_to_stop` returns it. A second one
        ends them."""
        self.session.watch.heed()

    def asked_to_stop(self) -> signal.Signals | None:
        """The signal that any rank received since :meth:`heed_signals`, on every rank; ``None`` if none did."""
        return self._guarded("asked_to_stop", self.session.asked_to_stop)

    @property
    def steps(self) -> int:
        """Number of trained batches: those of the resumed checkpoint, and those run since."""
        return self._behind + self._stepping.steps

    def report(self) -> Report:
        """Planned and measured times and memory, on every rank."""
        return self._guarded("report", self._report)

    def draw(self, path: str) -> None:
        """Draw the measured step below the planned one to ``path`` (``.html``, ``.svg`` or ``.png``); rank 0 writes."""
        from weft.app.pipeline.run.drawing import draw_step

        replay = self._guarded("draw", lambda: self._stepping.replay())
        if replay is not None:  # a file that cannot be written ends no training
            draw_step(self.plan, replay, path, type(self.model).__name__)

    def close(self) -> None:
        """Free buffers and leave the other ranks once all have called this; further calls are refused. It runs
        automatically at the end of a script."""
        if not self._closed:
            self._guarded("close", self._leave)
            self._closed = True
            self._close(None)

    def __enter__(self) -> PipelineEngine:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not self._closed:
            self._closed = True
            self._close(SessionError(str(error)) if isinstance(error, CaptureError) else error)
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _guarded(self, name: str, run: Callable[[], Result]) -> Result:
        if self._closed:
            raise RuntimeError("the pipeline is closed: make another one with weft.pipeline, or close it later")
        self.session.watch.call(name)
        try:
            found = run()
            self._state.rest()
            self.session.rest(THEIRS)
            return found
        except ShapeError:  # on all ranks, before anything ran
            self._state.rest()
            self.session.watch.doing(THEIRS)
            self.session.rest(THEIRS)
            raise
        except CaptureError as error:
            self._fail(SessionError(str(error)))
        except BaseException as error:
            self._fail(error)

    def _refuse(self, why: str) -> NoReturn:
        self._fail(SessionError(why))

    def _fail(self, error: BaseException) -> NoReturn:
        """End this rank, and send the others the reason."""
        self._closed = True
        self._close(error)
        raise error

    def _step(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any) -> float:
        if not torch.is_grad_enabled():
            raise BatchError("a step has no gradients under torch.no_grad(): call it outside, or eval_step")
        self._follow()
        parts = self._parts(args, kwargs, target, with_target=self.goal.loss is not None)
        for part in parts:
            part.shape.data.micro_batches = part.micro_batches
        if len(parts) == 1 and parts[0].shape is self._shapes.first:
            loss = self._stepping.step()
        else:
            loss = self._stepping.step([self._ready.running(part, self._stepping) for part in parts])
        if not self._stepping.trainer.averaging.is_counted:
            for part in parts:
                self.feeding.warn_of_means(part.micro_batches)
        return loss

    def _parts(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any,
               with_target: bool) -> list[BatchPart]:
        self._state.round()
        args, kwargs = typed((args, dict(kwargs)), self.options.dtype)
        return self._shapes.parts(args, kwargs, target, with_target)

    def _accumulate(self, batches: int) -> None:
        if type(batches) is not int or batches < 1:
            raise BatchError(f"accumulate is {batches!r:.60}, it must be a whole number of at least 1")
        self.session.agree("accumulate", batches)
        self._stepping.accumulate(batches)

    def _require_all(self, done: int, batches: int) -> None:
        self._stepping.accumulate(1)
        if done != batches:
            raise BatchError(f"{done} steps ran within accumulate({batches}): run {batches}, or say how many there are")

    def _extra(self, extra: Mapping[str, Any] | None) -> dict[str, Any]:
        """The objects that a checkpoint saves beside the optimizer, such as the loss scale."""
        scaling = self._stepping.training.scaling
        return {**(extra or {}), **({} if scaling is None else {SCALE: scaling}),
                **({} if self._following is None else {PHASE: self._following})}

    def _require_following(self) -> Following:
        if self._following is None:
            raise BatchError("a density says when a plan is due, but there is one plan: call follow first")
        return self._following

    def _follow(self) -> None:
        """Switch to the plan that is due."""
        if self._following is None or (plan := self._following.due(self.steps)) is self.plan:
            return
        if self._stepping.added:
            raise BatchError("a plan is due while batches are added up: let accumulate end before it")
        before, optimizer, steps = self._state, self._following.optimizer, self.steps
        after = PipelineState(self.session, self._recut(plan, self._following.places)[0], plan.stage_ranks or (),
                              self.goal.loss)
        self._leave_plan()
        moved = move(before, after, optimizer)
        self._begin(plan, self._following.places)
        self._stepping.go_on(steps, self._ready.seed)
        self._behind = steps
        self._following.switches.append((steps, self._following.number, moved))

    def _report(self) -> Report:
        replay = self._stepping.replay() if self._stepping.steps else None
        measured, *_ = self.session.everywhere(None if replay is None else replay.timeline.makespan, "reporting")
        bound = self.plan.solver.get("makespan_bound")
        return Report(self.plan.makespan, measured, self._stepping.seconds, stage_names(self.cut),
                      self.plan.stage_ranks or (), planned_peaks(self.plan), self.peaks, bound, self.notes)

    def _norm(self, clipped: Collection[int], kind: float) -> float:
        """The norm over the gradients with these ids and those that the other ranks clip now, each counted once."""
        counted = {id(parameter) for parameter in self._stepping.trainer.gradients.holders_counted}
        own = [own_share(p.grad) for p in self._own.values()
               if p.grad is not None and id(p.grad) in clipped and id(p) in counted]
        has_shares = self._stepping.trainer.gradients.has_shares
        gather = self.session.everywhere if has_shares else self.session.exchange
        return self._guarded("clip_grad_norm_", lambda: total_norm(own, kind, lambda part: gather(
            part, "summing the norm of gradients")))

    def _leave(self) -> None:
        self.session.watch.leave()
        self._leave_plan()

    def _leave_plan(self) -> None:
        self._unclip()
        for watch in self._watches:
            watch.remove()
        self._evaluator.close()
        self._stepping.close()
