"""The ways in which a stage on several GPUs may run its collectives, and what each costs.

``none``: one after another with the computation, as costs of stages count them. ``beside``: collectives run beside
weight gradients and whatever else does not wait for them. ``2 chunks`` ...: also beside the computation of other
chunks, in so many at most, along the samples or the positions, as is fastest (:mod:`weft.models.overlap.flow`).
``rs-c-ag`` before one of these: between a reduce-scatter and an all-gather each GPU has its slice of the positions
only, which takes 1/N of the time and memory of norms and pointwise operators.

All layers of a stage go one way. What a way saves is taken off what the stage costs without it, so ways that save
nothing are not there; nor are those that another way of the same layout and fewer chunks is as fast as.

``apart``, with 1 chunk or several, is for stages of few layers: collectives are blocks of their own on the network
lanes (:mod:`weft.models.overlap.apart`), and what other micro-batches compute may run beside them.

In *pairs* of micro-batches the two chunks are the two micro-batches, whole: times and amounts are those of both, and
the workspace is twice as large where they run beside each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from weft.models.candidates.stages import Backward, StageCost
from weft.models.overlap.flow import Piece, Step, duration, ended, pieces, serial
from weft.models.overlap.steps import CHUNKS, DIMENSIONS, LayerSteps
from weft.models.tensor_parallel.parts import Part, stage_cost
from weft.models.tensor_parallel.space import Space

__all__ = ["APART", "MOST_PIECES", "NONE", "SLICED", "Between", "Way", "Ways", "fastest"]

#: How tensors lie between layers.
Between: TypeAlias = Literal["whole", "sliced"]
NONE, SLICED, APART = "none", "rs-c-ag", "apart"
#: In how many chunks collectives may be that are blocks of their own, and up to so many blocks of a stage.
_APART = (1, 2, 4)
MOST_PIECES = 40


@dataclass(frozen=True, slots=True)
class Way:
    """``name`` of the option, how tensors lie ``between`` layers, and what the stage costs.

    ``apart``: the pieces of its forward and its backward (of its input gradient, where that is split) where collectives
    are blocks of their own; none where a pass is one block.
    """

    name: str
    between: Between
    cost: StageCost
    apart: tuple[tuple[Piece, ...], tuple[Piece, ...]] | None = None


class Ways:
    """The ways of the stages of ``space``, for one mode of the ``backward``; of micro-batches in ``pairs``, or one by
    one. ``like``: others of the same space, whose steps and times need not be found again."""

    def __init__(self, space: Space, backward: Backward, *, pairs: bool = False, like: Ways | None = None) -> None:
        self.space, self.backward, self.pairs = space, backward, pairs
        self._steps: dict[tuple[int, Between], LayerSteps] = {} if like is None else like._steps
        self._spared: dict[object, int] = {} if like is None else like._spared
        self._known: dict[tuple[int, tuple[int, ...]], tuple[Way, ...]] = {}

    def of(self, part: Part) -> tuple[Way, ...]:
        """Those of ``part``, ``none`` first."""
        if part.degree == 1 or part.co_shard:
            return (Way(NONE, "whole", self._cost(part.cost)),)
        key = part.degree, part.layers
        if key not in self._known:
            self._known[key] = tuple(self._found(part))
        return self._known[key]

    def steps(self, degree: int, between: Between) -> LayerSteps:
        """The steps of all layers on ``degree`` GPUs."""
        if (degree, between) not in self._steps:
            space = self.space
            sharded = space.sharded[degree] if between == "whole" else space.sliced(degree)[0]
            self._steps[degree, between] = LayerSteps(sharded, space.graph, space.device, space.timer(degree),
                                                      recompute=space.recompute)
        return self._steps[degree, between]

    def _found(self, part: Part) -> Iterator[Way]:
        yield Way(NONE, "whole", self._cost(part.cost))
        steps = self.steps(part.degree, "whole")
        if not any(steps.sends[layer] for layer in part.layers):
            return
        yield from self._faster(part, "whole", part.cost)
        cut = stage_cost(self.space.sliced(part.degree)[1], part.layers)
        if cut.parameters == part.cost.parameters and (
                cut.activation < part.cost.activation or cut.load < part.cost.load):
            yield Way(SLICED, "sliced", self._cost(cut))
            yield from self._faster(part, "sliced", cut)

    def _faster(self, part: Part, between: Between, cost: StageCost) -> Iterator[Way]:
        """The ways with collectives beside computation that are faster than those with fewer chunks."""
        steps = self.steps(part.degree, between)
        forward = steps.forward(part.layers)
        backward = [] if self.backward == "none" else steps.backward(part.layers, weights=self.backward == "full")
        if self.pairs:
            forward, backward = map(_of_both, (forward, backward))
        cost = self._cost(cost)
        best = cost.forward, cost.backward
        spared, alike = [0, 0], [_alike(row) for row in (forward, backward)]
        for count in (1, 2) if self.pairs else (1, *CHUNKS):
            saved = [self._saved(row, key, count) for row, key in zip((forward, backward), alike, strict=True)]
            spared = [max(pair) for pair in zip(spared, saved, strict=True)]
            found = replace(cost, forward=max(1, cost.forward - spared[0]), backward=cost.backward - spared[1],
                            input_grad=cost.input_grad - (spared[1] if self.backward == "split" else 0))
            if found.forward < best[0] or found.backward < best[1]:
                best = found.forward, found.backward
                name = "beside" if count == 1 else f"{count} chunks"
                if self.pairs and count == 2:
                    name, found = "side by side", _doubled(
                        found, "workspace_forward", "workspace_backward", "workspace_weight_grad", "working_set")
                yield Way(f"{SLICED}, {name}" if between == "sliced" else name, between, found)
        if not self.pairs:
            yield from self._apart(between, cost, forward, backward)

    def _apart(self, between: Between, cost: StageCost, forward: Sequence[Step], backward: Sequence[Step]
               ) -> Iterator[Way]:
        """The ways with collectives in blocks of their own, where these are few."""
        if 2 * sum(step.is_sent for step in (*forward, *backward)) > MOST_PIECES:
            return
        for count in _APART:
            rows = tuple(_best_pieces(row, count) for row in (forward, backward))
            if sum(map(len, rows)) <= MOST_PIECES and any(piece.is_sent for row in rows for piece in row):
                name = APART if count == 1 else f"{APART}, {count} chunks"
                yield Way(f"{SLICED}, {name}" if between == "sliced" else name, between, cost, (rows[0], rows[1]))

    def _cost(self, cost: StageCost) -> StageCost:
        """That of one micro-batch, or of two that run one after the other."""
        if not self.pairs:
            return cost
        return _doubled(cost, "forward", "backward", "input_grad", "weight_grad", "activation", "held", "output")

    def _saved(self, steps: Sequence[Step], alike: object, count: int) -> int:
        """What :func:`_saved` says of ``steps``, which are like others with the same ``alike``."""
        if (alike, count) not in self._spared:
            self._spared[alike, count] = _saved(steps, count)
        return self._spared[alike, count]


def fastest(ways: Sequence[Way]) -> tuple[Way, ...]:
    """``none``, and of each layout the fastest way in one block and the one in blocks that is the fastest alone."""
    found: dict[tuple[Between, bool], Way] = {}
    for way in ways:
        key = way.between, way.apart is not None
        if key not in found or _alone(way) < _alone(found[key]):
            found[key] = way
    kept = list(found.values())
    return tuple(way for way in ways if way.name == NONE or way in kept)


def _alone(way: Way) -> float:
    """Nanoseconds of both passes where nothing else runs."""
    return way.cost.load if way.apart is None else sum(map(ended, way.apart)) * 1e9


def _alike(steps: Sequence[Step]) -> object:
    """Equal for steps that differ in names only."""
    return tuple((step.waits, step.seconds, step.launch, tuple(step.pieces.items()), tuple(step.divides.items()),
                  step.is_heavy) for step in steps)


def _of_both(steps: Sequence[Step]) -> list[Step]:
    """``steps`` of two micro-batches, each a chunk."""
    return [replace(step, seconds=2 * step.seconds, launch=0.0, divides={DIMENSIONS[0]: 2},
                    pieces={1: 2 * step.seconds, 2: step.seconds} if step.is_sent else {}) for step in steps]


def _doubled(cost: StageCost, *names: str) -> StageCost:
    twice: dict[str, Any] = {name: 2 * getattr(cost, name) for name in names}
    return replace(cost, **twice)


def _saved(steps: Sequence[Step], count: int) -> int:
    """Whole nanoseconds that ``count`` chunks save of ``steps`` one after another, along the better axis."""
    if not steps:
        return 0
    least = min(duration(steps, count, dimension, wide=wide) for dimension, wide in _cuts(count))
    return max(0, math.floor((serial(steps) - least) * 1e9 - 0.5))


def _best_pieces(steps: Sequence[Step], count: int) -> tuple[Piece, ...]:
    """``steps`` in ``count`` chunks, along the axis that is fastest where nothing else runs."""
    if not steps:
        return ()
    dimension, wide = min(_cuts(count), key=lambda cut: duration(steps, count, cut[0], wide=cut[1]))
    return tuple(pieces(steps, count, dimension, wide=wide))


def _cuts(count: int) -> list[tuple[str, bool]]:
    """The ways to cut into ``count`` chunks."""
    return [(dimension, wide) for dimension in (DIMENSIONS if count > 1 else ("",)) for wide in (True, False)]
