"""Views: a dimension that is merged or cut is split as far as its parts stay in one piece."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from weft.models.capture.exported import Step
from weft.models.transform.captured.products import expanded
from weft.models.transform.captured.writer import Rule, UnknownError, Writer, rule
from weft.models.transform.program import Axis, Dimensions


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze",
      "view_as", "reshape_as")
def _reshape(w: Writer, step: Step) -> None:
    x = w.tensor(step.arguments[0])
    before, after = w.shape(x), w.given(step).shape
    if w.given(step).dtype != w.exported.metas[step.arguments[0].name].dtype or not math.prod(before):
        raise UnknownError
    one, other, frozen, sizes = _common_axes(w, before, after)
    w.add(step, "reshape", [(x, one)], other, frozen=frozen, sizes=sizes)


def _common_axes(w: Writer, before: Sequence[int],
                 after: Sequence[int]) -> tuple[Dimensions, Dimensions, list[str], dict[str, int]]:
    """Names that both shapes are made of; where sizes do not nest, both sides' are frozen."""
    sides: tuple[list[Axis], list[Axis]] = ([], [])
    frozen: list[str] = []
    sizes: dict[str, int] = {}
    at, to = 0, 0
    while at < len(before) or to < len(after):
        one, other = list(before[at:at + 1]), list(after[to:to + 1])
        while math.prod(one) != math.prod(other):
            if math.prod(one) < math.prod(other):
                one.append(before[at + len(one)])
            else:
                other.append(after[to + len(other)])
        at, to = at + len(one), to + len(other)
        edges = [[math.prod(sizes_[:i]) for i in range(len(sizes_) + 1)] for sizes_ in (one, other)]
        every = sorted({*edges[0], *edges[1]})
        nested = all(b % a == 0 for a, b in itertools.pairwise(every))
        if nested:
            atoms = {low: w.fresh() for low in every[:-1]}
            sizes |= {atoms[low]: high // low for low, high in itertools.pairwise(every)}
            for side, edge in zip(sides, edges, strict=True):
                side += [tuple(atoms[e] for e in every if low <= e < high) for low, high in itertools.pairwise(edge)]
        else:
            for side, lengths in zip(sides, (one, other), strict=True):
                for length in lengths:
                    name = w.fresh()
                    side.append((name,))
                    frozen.append(name)
                    sizes[name] = length
    return tuple(sides[0]), tuple(sides[1]), frozen, sizes


def _permute(order: Callable[[Step, int], Sequence[int]]) -> Rule:
    def rule(w: Writer, step: Step) -> None:
        x = w.tensor(step.arguments[0])
        axes = w.axes(w.shape(x))
        w.add(step, "einsum", [(x, axes)], [axes[i] for i in order(step, len(axes))])

    return rule


def _swapped(step: Step, rank: int) -> list[int]:
    order = list(range(rank))
    a, b = (int(i) % rank for i in step.arguments[1:3])
    order[a], order[b] = order[b], order[a]
    return order


@rule("expand", "expand_as", "broadcast_to")
def _expand(w: Writer, step: Step) -> None:
    expanded(w, step, w.tensor(step.arguments[0]), w.given(step).shape)


rule("permute")(_permute(lambda step, rank: [int(i) % rank for i in step.arguments[1]]))
for _kind in ("transpose", "swapaxes", "swapdims"):
    rule(_kind)(_permute(_swapped))
rule("mT")(_permute(lambda step, rank: [*range(rank - 2), rank - 1, rank - 2]))
for _kind in ("t", "numpy_T"):
    rule(_kind)(_permute(lambda step, rank: list(reversed(range(rank)))))
