"""The cheapest joint choice against all combinations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from weft.models.tensor_parallel.elimination import Factor, cheapest


def test_the_cheapest_is_that_of_all_combinations() -> None:
    draw = np.random.default_rng(0)
    names = [f"o{i}" for i in range(6)]
    for _ in range(20):
        sizes = {name: int(draw.integers(1, 4)) for name in names}
        scopes: list[tuple[str, ...]] = [*((name,) for name in names), ("o3", "o2", "o0")]
        scopes += [pair for pair in itertools.permutations(names, 2) if draw.random() < 0.3]
        factors = [Factor(scope, draw.random([sizes[name] for name in scope])) for scope in scopes]

        def cost(chosen: dict[str, int], factors: list[Factor] = factors) -> float:
            return sum(float(one.table[tuple(chosen[name] for name in one.variables)]) for one in factors)

        best = min(cost(dict(zip(names, every, strict=True)))
                   for every in itertools.product(*(range(sizes[name]) for name in names)))
        assert cost(cheapest(sizes, factors)) == pytest.approx(best, abs=1e-12)
        assert cost(cheapest(sizes, factors, 4)) >= best - 1e-12  # some are taken on their own
