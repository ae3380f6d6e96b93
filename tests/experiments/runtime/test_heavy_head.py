"""What the heavy-head experiment makes of a first run's times."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from experiments.runtime import heavy_head
from experiments.runtime.heavy_head import Costs, Planned, fitted, on, problem
from weft.runtime.measure.measure import Memory, Sample
from weft.runtime.measure.stage_costs import MODES, PassCost, StageCosts
from weft.runtime.plan.timeline import Measured
from weft.solver.baselines import baseline

SECONDS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
CUT = [range(3), range(3, heavy_head.LAYERS)]


def costs(**longer: float) -> Costs:
    passes: Mapping[str, Mapping[str, PassCost]] = {
        mode: {letter: PassCost(Sample(SECONDS[letter] * longer.get(letter, 1), 0, 1), Memory(letter == "F", 1))
               for letter in letters} for mode, letters in MODES.items()}
    return Costs([StageCosts(i, 4, 0, 8, passes) for i in range(heavy_head.LAYERS)], 0.5)


@pytest.mark.parametrize("split", [False, True])
def test_a_first_run_corrects_every_pass_of_every_layer_and_the_transfers(split: bool) -> None:
    planned = Planned(baseline("zb-h1" if split else "1f1b", problem(costs(), CUT, [0, 1], split), 6), CUT)
    true = Costs(costs(F=1.5, B=0.75, I=0.5, W=1.0).layers, 0.25)
    run = [Measured(schedule.problem.blocks[o.block].name, o.micro_batch, device, o.start, o.end)
           for schedule in [on(true, planned)] for device, row in enumerate(schedule.device_orders) for o in row]
    found = fitted(costs(), planned, [run, run])
    assert found.lag == pytest.approx(0.25)
    for mine, wanted in zip(found.layers, true.layers, strict=True):
        for letters, others in zip(mine.passes.values(), wanted.passes.values(), strict=True):
            for letter in letters:
                told = others[letter].time.seconds
                if letter in "IW" and not split:
                    told = 0.75 * SECONDS[letter]  # as much longer as the whole
                assert letters[letter].time.seconds == pytest.approx(told, rel=1e-3), letter
