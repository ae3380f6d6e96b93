"""Prepares this rank's stages for training, once for each shape of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.app.pipeline.lib.dividing import peers_of
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.precision import autocasting
from weft.app.pipeline.lib.running import compiled, under_autocast
from weft.app.pipeline.run.shapes import BatchPart, Shape
from weft.runtime.backends.stages import StageBackends
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.division import Goal, training_of
from weft.runtime.captured.tensor_parallel import parallelize_stage
from weft.runtime.interface.training import Training
from weft.runtime.ranks.session import Session
from weft.runtime.replay.stepping import Running, Stepping

#: The use of these executors among those of a shape.
USE = "training"


class Ready:
    """Prepares ``stages`` of this rank by ``options``. ``seed``: seed of random operators."""

    def __init__(self, session: Session, stages: Sequence[int], goal: Goal, options: PipelineOptions) -> None:
        self.session, self.stages, self.goal, self.options, self.seed = session, stages, goal, options, goal.seed

    def training(self, shape: Shape) -> Training:
        """The stages for batches of ``shape``."""
        goal = replace(self.goal, seed=self.seed)
        found = self.computing(training_of(shape.cut, self.stages, goal, shape.data))
        if self.options.compile or self.options.tensor_parallel is not None or (
                isinstance(shape.cut.captured, Captured) and isinstance(shape.cut.captured.treatment, StageBackends)):
            with autocasting(self.options.autocast, self.session.device):  # the last stage runs without its loss here
                compiled(found, self.options.compile, self.session, shape.feeding.layout.named)
        return found

    def computing(self, training: Training) -> Training:
        """``training`` under autocast and tensor parallelism, as the options request."""
        if self.options.tensor_parallel is not None:
            for module in training.stages.values():
                parallelize_stage(module, peers_of(self.options))
        return under_autocast(training, self.options.autocast, self.session.device)

    def running(self, part: BatchPart, stepping: Stepping) -> Running:
        """The executor of a part of a batch beside ``stepping``, made on first use."""
        shape = part.shape
        if USE not in shape.running:
            training = self.training(shape)
            training.masters, training.scaling = stepping.training.masters, stepping.training.scaling
            shape.running[USE] = stepping.beside(shape.plan, training, shape.before, shape.whole)
        found: Running = shape.running[USE]
        found.weight = part.weight
        return found
