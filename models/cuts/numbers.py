"""The cuts of one layout as problems side by side, and orders carried from one cut to all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from weft.models.cuts.enumeration import Ground
from weft.solver.pipeline import Pipeline
from weft.solver.timing import Orders
from weft.solver.variants.variants import Variants, Wait

__all__ = ["orders_of_stages", "variants_of"]

Row = list[tuple[int, int]]


def variants_of(ground: Ground, borders: npt.NDArray[np.int16], *, trains: bool) -> Variants:
    """``borders`` (K x stages + 1) as problems. Block s is the forward of stage s, S + s its gradient, 2 S + s its
    weight gradient; in inference there are forwards only."""
    layout, count = ground.layout, ground.layout.stages
    first, last = borders[:, :-1].astype(np.int64), borders[:, 1:].astype(np.int64)
    passes = 3 if trains else 1
    columns: dict[str, list[npt.NDArray[np.int64]]] = {"durations": [], "take": [], "change": []}
    for which in range(passes):
        for s, device in enumerate(layout.devices):
            table = ground.tables[ground.kind[device]]
            for name, found in columns.items():
                found.append(getattr(table, name)[which][first[:, s], last[:, s]])
    lags = [ground.lags[s][last[:, s]] for s in range(count - 1)]
    none = np.zeros(len(borders), dtype=np.int64)
    waits, passing = [Wait(s, s + 1) for s in range(count - 1)], list(lags)
    if trains:
        waits.append(Wait(count - 1, 2 * count - 1))
        waits += [Wait(count + s + 1, count + s) for s in range(count - 1)]
        waits += [Wait(count + s, 2 * count + s) for s in range(count)]
        passing += [none, *lags, *[none] * count]
    static = np.zeros((len(borders), layout.gpus), dtype=np.int64)
    for s, device in enumerate(layout.devices):
        static[:, device] += ground.tables[ground.kind[device]].static[first[:, s], last[:, s]]
    order = [*range(count), *reversed(range(count, 2 * count)), *range(2 * count, 3 * count)]
    return Variants(
        count,
        layout.devices * passes, tuple(waits), tuple(order[:passes * count]),
        durations=np.stack(columns["durations"], axis=1),
        lags=np.stack(passing, axis=1) if passing else np.zeros((len(borders), 0), dtype=np.int64),
        take=np.stack(columns["take"], axis=1), change=np.stack(columns["change"], axis=1),
        capacity=np.array(ground.capacity, dtype=np.int64) - static)


def orders_of_stages(pipeline: Pipeline, orders: Orders) -> list[Row]:
    """Orders of one cut's blocks as orders of :func:`variants_of`'s. Blocks that the cut does not have come where they
    cost it nothing: a weight gradient right behind its gradient, a gradient right before its weight gradient."""
    count = len(pipeline.stages)
    meaning: dict[int, list[int]] = {}
    for s, stage in enumerate(pipeline.stages):
        meaning[stage.forward] = [s]
        if stage.backward is not None:
            meaning[stage.backward] = [count + s, 2 * count + s]
        elif stage.input_grad is not None and stage.weight_grad is not None:
            meaning[stage.input_grad], meaning[stage.weight_grad] = [count + s], [2 * count + s]
        elif stage.weight_grad is not None:
            meaning[stage.weight_grad] = [count + s, 2 * count + s]
    return [[(block, m) for own, m in row for block in meaning[own]] for row in orders]


def orders_of_blocks(pipeline: Pipeline, orders: Sequence[Sequence[tuple[int, int]]]) -> list[Row]:
    """The inverse: orders of :func:`variants_of`'s blocks as those of one cut's."""
    count = len(pipeline.stages)
    own: dict[int, int] = {}
    for s, stage in enumerate(pipeline.stages):
        own[s] = stage.forward
        if stage.backward is not None:
            own[count + s] = stage.backward
        if stage.input_grad is not None:
            own[count + s] = stage.input_grad
        if stage.weight_grad is not None:
            own[2 * count + s] = stage.weight_grad
    return [[(own[block], m) for block, m in row if block in own] for row in orders]
