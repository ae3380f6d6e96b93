"""The type of a baseline, and the common part of all for pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TypeAlias

from weft.solver.pipeline import NotAPipeline, Pipeline, Shape
from weft.solver.problem import Problem
from weft.solver.timing import Orders

#: One device's ``(block, micro_batch)``, in order.
Row: TypeAlias = list[tuple[int, int]]

#: The arrangements of stages on the devices, in words.
_SHAPES: Mapping[Shape, str] = {
    "chain": "one stage on each device, in device order",
    "v": "two stages on each device in a V, the first device with the first and last stage",
    "loop": "two stages or more on each device, stage s on device s modulo the number of devices"}


class NotApplicable(ValueError):
    """This baseline cannot run this problem with this many micro-batches; the message says why."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A published schedule, or a simple one for comparison.

    ``source`` cites the publication of the schedule; ``needs`` says in a few words which problems it applies to.
    ``function`` of ``file`` in this room makes its orders; it is loaded for the first ones.
    """

    name: str
    title: str
    source: str
    needs: str
    file: str
    function: str = "orders"

    def orders(self, problem: Problem, micro_batches: int) -> Orders:
        """Per-device orders. Raises :class:`NotApplicable`."""
        found: Callable[[Problem, int], Orders] = getattr(
            import_module(f"weft.solver.baselines.{self.file}"), self.function)
        return found(problem, micro_batches)


def require_pipeline(problem: Problem) -> Pipeline:
    """``problem`` as a pipeline. Raises :class:`NotApplicable` with the reason if it is not one."""
    try:
        return Pipeline.of(problem)
    except NotAPipeline as error:
        raise NotApplicable(f"it needs a pipeline, but {error}") from None


def require_training(problem: Problem, shape: Shape | None = None, *, split: bool = False) -> Pipeline:
    """``problem`` as a pipeline with a backward, split if ``split``, with the arrangement ``shape`` of its stages if
    that is given. Raises :class:`NotApplicable` with the reason if it is not one."""
    pipeline = require_pipeline(problem)
    if not pipeline.has_backward:
        raise NotApplicable("it alternates forwards and backwards, but this pipeline has no backward")
    if split and not pipeline.is_split:
        raise NotApplicable("it needs backwards split into input_grad and weight_grad blocks")
    if shape is not None and pipeline.shape != shape:
        raise NotApplicable(f"it needs {_SHAPES[shape]}")
    return pipeline
