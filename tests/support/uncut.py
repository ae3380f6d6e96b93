"""A captured model uncut, in this process: what any cut and schedule of it must compute, random numbers included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten

from weft.runtime.captured.captured import Captured
from weft.runtime.captured.cut import CapturedCut
from weft.runtime.captured.loss import ResultStage
from weft.runtime.train.moment import Moment, seeds_of


class Whole:
    """``captured`` as one stage, whose random operators draw what they draw in a pipeline with ``seed``."""

    def __init__(self, captured: Captured, seed: int = 0) -> None:
        self.captured, self.moment = captured, Moment(seed)
        cut = CapturedCut(captured, ())
        found = cut.stages()
        self._stage = ResultStage(found.modules[0], captured.out_spec, found.results)
        self._takes = [node.name for node in cut.data[0]]
        seeds_of(self._stage, self.moment)

    def __call__(self, step: int, micro_batch: int, args: Sequence[Any] = (),
                 kwargs: Mapping[str, Any] | None = None) -> Any:
        """The model's result for ``args`` and ``kwargs``, which are micro-batch ``micro_batch`` of batch ``step``, both
        counted from 0."""
        self.moment.step, self.moment.micro_batch = step, micro_batch
        leaves = tree_flatten((tuple(args), dict(kwargs or {})))[0]
        given = {node.name: leaf for node, leaf in zip(self.captured.inputs, leaves, strict=True)}
        xs = [given[name] for name in self._takes]
        assert all(isinstance(x, Tensor) for x in xs)
        return self._stage.output(*xs)
