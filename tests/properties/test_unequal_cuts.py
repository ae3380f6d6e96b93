"""Cuts onto GPUs of several kinds: what is ruled out early is what the bound of the whole cut rules out."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.support.examples import for_all
from weft.models.candidates.stages import MemoryRule
from weft.models.cuts.enumeration import CutTables, Ground, ShapeLayout, enumerated, layouts
from weft.models.layers.costs import LayerCost

_RULE = MemoryRule("full", 1)
_ENDLESS = 2**40


def layer(forward: int, backward: int) -> LayerCost:
    return LayerCost("layer", forward * 1e-9, backward * 1e-9, None, None, 1, 1, 0, 1)


@st.composite
def grounds(draw: st.DrawFn) -> Ground:
    gpus = draw(st.integers(2, 3))
    count = draw(st.integers(2 * gpus, 2 * gpus + 2))
    layout: ShapeLayout = draw(st.sampled_from(layouts(("chain", "v", "loop"), gpus, 2, count)))
    times = st.tuples(st.integers(1, 60), st.integers(1, 60))  # a kind need not be as much faster in every layer
    tables = tuple(CutTables.of([layer(*draw(times)) for _ in range(count)], _RULE) for _ in range(2))
    kind = draw(st.lists(st.integers(0, 1), min_size=gpus, max_size=gpus))
    return Ground(layout, tables, tuple(kind), (_ENDLESS,) * gpus,
                  np.zeros((layout.stages - 1, count + 1), dtype=np.int64), ends_whole=True)


@for_all(grounds(), st.integers(1, 4), st.floats(0, 1), tries=75)
def test_no_cut_is_ruled_out_that_its_own_bound_does_not_rule_out(ground: Ground, micro_batches: int,
                                                                 share: float) -> None:
    every = enumerated(ground, micro_batches, _ENDLESS)
    below = int(np.quantile(every.bounds, share)) + 1
    kept = {tuple(row) for row in enumerated(ground, micro_batches, below).borders.tolist()}
    wanted = {tuple(row) for row, bound in zip(every.borders.tolist(), every.bounds, strict=True) if bound < below}
    assert kept == wanted


@for_all(grounds(), tries=50)
def test_work_over_paces_is_no_more_than_the_busiest_gpu_does(ground: Ground) -> None:
    least = ground.rest[0] / sum(ground.paces)
    for row in enumerated(ground, 1, _ENDLESS).borders.tolist():
        loads = [0] * ground.layout.gpus
        for gpu, first, last in zip(ground.layout.devices, row[:-1], row[1:], strict=True):
            loads[gpu] += int(ground.tables[ground.kind[gpu]].work[first, last])
        assert least <= max(loads)
