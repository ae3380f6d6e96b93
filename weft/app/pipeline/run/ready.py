"""This rank's stages made ready to train, once for each shape of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.running import compiled, under_autocast
from weft.app.pipeline.run.shapes import Part, Shape
from weft.runtime.captured.part import Goal, training_of
from weft.runtime.interface.training import Training
from weft.runtime.ranks.session import Session
from weft.runtime.replay.stepping import Running, Stepping

__all__ = ["Ready"]

#: What a shape is made ready for.
USE = "training"


class Ready:
    """Makes ``stages`` of this rank ready, as ``options`` say. ``seed``: what random operators draw from."""

    def __init__(self, session: Session, stages: Sequence[int], goal: Goal, options: PipelineOptions) -> None:
        self.session, self.stages, self.goal, self.options, self.seed = session, stages, goal, options, goal.seed

    def training(self, shape: Shape) -> Training:
        """The stages for batches of that shape."""
        goal = replace(self.goal, seed=self.seed)
        found = self.computing(training_of(shape.cut, self.stages, goal, shape.data))
        if self.options.compile:
            compiled(found, self.options.compile, self.session, shape.feeding.layout.named)
        return found

    def computing(self, training: Training) -> Training:
        """``training`` in the types of autocast, if that is asked for."""
        return under_autocast(training, self.options.autocast, self.session.device)

    def running(self, part: Part, stepping: Stepping) -> Running:
        """What runs a part of a batch beside ``stepping``, made when it is asked for first."""
        shape = part.shape
        if USE not in shape.running:
            training = self.training(shape)
            training.masters, training.scaling = stepping.training.masters, stepping.training.scaling
            shape.running[USE] = stepping.beside(shape.plan, training, shape.before, shape.whole)
        found: Running = shape.running[USE]
        found.weight = part.weight
        return found
