"""Bounds of many problems at once: never above what is proven of each of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.oracles.whole import TooLarge, least_makespan
from tests.support.cut_specs import MODES, Mode, problems_of, space_of, spec_of
from tests.support.examples import slow
from weft.models.cuts.space import CutSpace, variants_of
from weft.models.cuts.spaces import cut_spaces
from weft.solver import Infeasible, solve
from weft.solver.bounds.load import load_bound
from weft.solver.variants.bounds import Precedence, makespan_bounds, quick_bounds


def bounds_of(space: CutSpace, cuts: list[tuple[int, ...]], *, quick: bool = False) -> list[int]:
    variants = variants_of(space.ground, np.array(cuts, dtype=np.int16), trains=space.backward != "none")
    return [*map(int, (quick_bounds if quick else makespan_bounds)(variants, space.micro_batches))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "chunks", "count", "micro_batches"), [
    ("chain", 1, 4, 4), slow("v", 2, 5, 2), slow("loop", 2, 5, 2), ("wave", 3, 6, 1)])
def test_no_bound_is_above_the_optimum(mode: Mode, shape: str, chunks: int, count: int, micro_batches: int) -> None:
    met = sharp = 0
    for number in range(6):
        space = space_of(number, mode, shape, chunks, count=count, micro_batches=micro_batches, unequal=number > 2)
        problems = problems_of(space)
        bounds, plain = (bounds_of(space, [*problems], quick=quick) for quick in (False, True))
        for problem, bound, less in zip(problems.values(), bounds, plain, strict=True):
            try:
                least = least_makespan(problem, micro_batches, 3_000)
            except TooLarge:
                continue
            if least is not None:
                assert less <= bound <= least * 10**9
                assert bound >= load_bound(problem, micro_batches) * 1e9 * (1 - 1e-9)
                met, sharp = met + 1, sharp + (bound == least * 10**9)
    assert met >= 3 and sharp > met / 2


@pytest.mark.slow
def test_what_a_weight_gradient_waits_with_may_be_more_than_the_forward_kept() -> None:
    """Memory holds ``kept`` until the input gradient, and only then what the weight gradient gives back."""
    met = 0
    for number in range(40):
        dice = random.Random(number)
        layers = []
        for i in range(2):
            forward, gradient, weight = (dice.randint(1, 4) * 1e-3 for _ in range(3))
            kept = dice.randint(1, 2)
            layers.append({"name": f"l{i}", "forward": forward, "input_grad": gradient, "weight_grad": weight,
                           "activation_memory": 1000 * kept, "weight_grad_memory": 1000 * (kept + dice.randint(1, 3))})
        [space] = cut_spaces(spec_of(layers, "split", memory=dice.randint(4, 7), shapes=["chain"], chunks=1), 4)
        try:
            least = least_makespan(space.candidate((0, 1, 2)).problem, 4, 10_000)
        except TooLarge:
            continue
        if least is not None:
            met += 1
            assert bounds_of(space, [(0, 1, 2)])[0] <= least * 10**9
    assert met >= 15


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "chunks"), [("chain", 1), slow("v", 2)])
def test_bounds_of_many_micro_batches_stand_between_load_and_schedules(mode: Mode, shape: str, chunks: int) -> None:
    proven = 0
    for number in range(3):
        space = space_of(number, mode, shape, chunks, count=4, micro_batches=17 + number, unequal=number > 1)
        cut, problem = next(iter(problems_of(space).items()))
        try:
            best = solve(problem, space.micro_batches, effort=0.5)
        except Infeasible:
            continue
        bound = bounds_of(space, [cut])[0]
        assert load_bound(problem, space.micro_batches) * 1e9 * (1 - 1e-9) <= bound <= round(best.makespan * 1e9)
        proven += bound == round(best.makespan * 1e9)
    assert proven


def test_memory_makes_gradients_precede_later_forwards() -> None:
    """Room for two micro-batches: the gradient of m - 2 precedes the forward of m; with room for one that of m - 1."""
    layers = [{"name": f"l{i}", "forward": 1e-3, "backward": 2e-3, "activation_memory": 1000} for i in range(2)]
    for room in (1, 2, 3):
        [space] = cut_spaces(spec_of(layers, "full", memory=room, shapes=["chain"], chunks=1), 4)
        order = Precedence(variants_of(space.ground, np.array([(0, 1, 2)], dtype=np.int16), trains=True))
        assert {pair: int(least[0]) for pair, least in order.memory.items() if pair[0] < 4} == {
            (2, 0): room, (3, 1): room}
        assert order.paths[0, 2] and not order.paths[2, 0]
