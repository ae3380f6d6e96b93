"""Cuts side by side: each as its own problem in ticks, and orders there and back."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.cut_specs import MODES, Mode, problems_of, space_of
from weft.models.cuts.numbers import orders_of_blocks, orders_of_stages, variants_of
from weft.solver.baselines import BASELINES, NotApplicable
from weft.solver.pipeline import Pipeline
from weft.solver.ticks import TickProblem


def index_of(pipeline: Pipeline) -> dict[int, int]:
    """For each block of a problem, which block of the variants it is."""
    count, found = len(pipeline.stages), {}
    for s, stage in enumerate(pipeline.stages):
        for which, block in enumerate((stage.forward, stage.backward, stage.weight_grad)):
            if block is not None:
                found[block] = which * count + s
        if stage.input_grad is not None:
            found[stage.input_grad] = count + s
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "chunks"), [("chain", 1), ("v", 2), ("loop", 2), ("wave", 3)])
def test_a_variant_is_its_cut_s_problem(mode: Mode, shape: str, chunks: int) -> None:
    for number in range(4):
        space = space_of(number, mode, shape, chunks, count=7, unequal=number > 1)
        problems = problems_of(space)
        variants = variants_of(space.ground, np.array(list(problems), dtype=np.int16), trains=mode != "none")
        assert len(variants) == len(problems)
        for k, problem in enumerate(problems.values()):
            own = index_of(Pipeline.of(problem))
            ticks = TickProblem.of(problem)
            nanoseconds, unit = ticks.tick * 10**9, ticks.memory_unit
            for block in ticks.blocks:
                [device] = problem.blocks[block].devices
                assert variants.device[own[block]] == device
                assert variants.durations[k, own[block]] == ticks.durations[block] * nanoseconds
                assert variants.take[k, own[block]] == ticks.take[device][block] * unit
                assert variants.change[k, own[block]] == ticks.change[device][block] * unit
            for absent in set(range(len(variants.device))) - set(own.values()):
                assert not variants.durations[k, absent] and not variants.take[k, absent]
            assert [*variants.capacity[k]] == [device.memory for device in problem.devices]
            lags = {(own[arc.source], own[arc.target]): arc.lag * nanoseconds for arc in ticks.arcs}
            known = {(wait.source, wait.target): lag
                     for wait, lag in zip(variants.waits, variants.lags[k], strict=True)}
            for (source, target), lag in lags.items():
                stages = len(variants.device) // (1 if mode == "none" else 3)
                through = (source, target - stages) if (source, target) not in known else (source, target)
                assert known[through] == lag  # a weight gradient alone waits as its input gradient would
        assert sorted(variants.order) == list(range(len(variants.device)))


def test_orders_come_back_and_blocks_that_are_not_there_stand_beside_those_that_are() -> None:
    space = space_of(1, "split", "v", 2)  # without an input gradient in layer 0, a weight gradient in layer 3
    met = 0
    for problem in problems_of(space).values():
        pipeline = Pipeline.of(problem)
        for name, baseline in BASELINES.items():
            try:
                orders = [list(row) for row in baseline.orders(pipeline.problem, 3)]
            except NotApplicable:
                continue
            rows = orders_of_stages(pipeline, orders)
            assert sum(map(len, rows)) == 3 * 12, name
            assert orders_of_blocks(pipeline, rows) == orders
            met += 1
            for row in rows:
                for block in range(4):  # where one of both is not there
                    if pipeline.stages[block].input_grad is None:
                        for m in range(3):
                            if (4 + block, m) in row:
                                assert row.index((8 + block, m)) == row.index((4 + block, m)) + 1
    assert met >= 20
