"""No legal way to fuse a small program is better than what the search over programs finds."""

from __future__ import annotations

import random

import pytest

from tests.support.communication import error
from weft.models.communication.builder import Builder
from weft.models.communication.optimizers import add_adam
from weft.models.communication.passes.fuse import fuse
from weft.models.communication.prices import Prices
from weft.models.communication.program import CommunicationError, Program
from weft.models.communication.search.schedules import Schedule, schedules
from weft.models.communication.search.tuning import tune

_PRICES = Prices(bandwidth=1e9, memory=1e11, flops=1e10, launch=1e-7, kernel=1e-8)


def _small(draw: random.Random) -> Program:
    """Two rows of a product or an input, a sum over the ranks and an operation, five stages at most."""
    step = Builder("small", draw.choice([2, 4]))
    outputs = []
    for number in range(2):
        if number == 0 and draw.random() < 0.5:
            x, w = step.input("x", (8, 8), "sliced", axis=1), step.parameter("w", (8, 8), "sliced", axis=0)
            made = step.matmul("y", x, w)
        else:
            made = step.input(f"g{number}", (8, 8), "local")
        total = step.all_reduce(f"t{number}", made)
        outputs.append(step.pointwise(f"o{number}", "relu", total) if draw.random() < 0.5 else total)
    return step.build(*outputs)


@pytest.mark.parametrize("seed", range(6))
def test_no_legal_fusion_is_better_than_what_is_called_best(seed: int) -> None:
    draw = random.Random(seed)
    program = _small(draw)
    found = tune(program, _PRICES, counts=(1, 2), effort=2.0)
    assert found.proven
    base = schedules(program).schedules
    for _ in range(12):
        at = draw.choice([entry.program for entry in base if not any(stage.parts for stage in entry.program.stages)])
        names = [stage.name for stage in at.stages]
        try:
            fused = fuse(at, draw.sample(names, draw.randint(2, len(names))))
        except CommunicationError:
            continue
        other = tune(program, _PRICES, counts=(1, 2), variants=[Schedule(fused, ("fuse",))], effort=2.0)
        if found.choices.complete and found.choices.every_fusion:
            assert other.microseconds >= found.bound * (1 - 1e-9), str(fused)
        else:
            assert "proven best" not in str(found) or "not every way" in str(found) or "there are more" in str(found)


@pytest.mark.parametrize("seed", range(4))
def test_every_program_reached_computes_the_same(seed: int) -> None:
    program = _small(random.Random(seed))
    for entry in schedules(program).schedules:
        assert error(program, entry.program) < 1e-6, entry.name


def test_sums_of_several_weights_share_a_launch() -> None:
    step = Builder("adam of two weights", ranks=4)
    count, outs = step.input("step"), []
    for i in range(2):
        gradient, weight = step.input(f"g{i}", (4096,), "local"), step.parameter(f"w{i}", (4096,))
        total = step.all_reduce(f"s{i}", gradient)
        outs.append(add_adam(step, weight, step.pointwise(f"mean{i}", "scale", total, factor=0.25), count))
    program = step.build(*outs)
    prices = Prices(bandwidth=10e9, memory=1e12, launch=50e-6, kernel=5e-6)
    found = tune(program, prices, limit=24, effort=2.0)
    assert found.microseconds < 60  # two launches alone take 100
    assert "there are more" in str(found)
    assert error(program, found.program) < 1e-6
