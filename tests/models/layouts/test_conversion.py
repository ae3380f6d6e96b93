"""The cheapest ways between layouts: equal to exhaustive searches, and exact on numbers."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.oracles.layouts import Vector, cheapest_placed, cheapest_vectors, start_of
from weft.models.layers.cluster import AffineLink, two_tiers
from weft.models.layouts.conversion import Conversion, convert, step_bytes
from weft.models.layouts.layout import Layout, LayoutError, Placed, layouts_over
from weft.models.layouts.prices import RingPrices, uniform
from weft.models.layouts.steps import moves
from weft.models.layouts.values import applied, lay_out, put_together

SHAPE = (16, 16)
NEAR, FAR = (1e-5, 1e10), (3e-5, 1e9)


def price_of(near: tuple[float, float], far: tuple[float, float],
             machine: int) -> Callable[[str, float, Sequence[int]], float]:
    def ring(kind: str, held: float, k: int, link: tuple[float, float]) -> float:
        sent = {"all_gather": (k - 1) * held, "all_reduce": 2 * (k - 1) * held / k}.get(kind, (k - 1) * held / k)
        return link[0] + sent / link[1]

    def price(kind: str, held: float, group: Sequence[int]) -> float:
        if kind in ("slice", "term"):
            return 0.0
        counts = Counter(device // machine for device in group)
        inside, outside = min(counts.values()), len(counts)
        if outside == 1:
            return ring(kind, held, len(group), near)
        if inside == 1 or len(set(counts.values())) > 1:
            return ring(kind, held, len(group), far)
        if kind == "all_reduce":
            return (ring("reduce_scatter", held, inside, near) + ring("all_gather", held / inside, inside, near)
                    + ring(kind, held / inside, outside, far))
        if kind == "all_gather":
            return ring(kind, held, outside, far) + ring(kind, held * outside, inside, near)
        left = held if kind == "all_to_all" else held / inside
        return ring(kind, held, inside, near) + ring(kind, left, outside, far)

    return price


def error(found: Conversion, shape: Sequence[int]) -> float:
    whole = np.random.default_rng(1).standard_normal(shape)
    held = lay_out(whole, found.source, 2)
    for step in found.steps:
        held = applied(step, held, shape)
    assert set(held) == set(found.target.devices)
    return float(np.abs(put_together(held, found.target, shape) - whole).max())


def layout(vector: Vector) -> Layout:
    return Layout(vector[0], vector[1], vector[2:])


@pytest.mark.slow
def test_all_pairs_over_eight_devices_cost_the_least_and_are_exact() -> None:
    latency, bandwidth = 1e-7, 1e9
    least = cheapest_vectors(8, SHAPE, 8, price_of((latency, bandwidth), (latency, bandwidth), 64))
    pairs = [(one, other) for one, other in least if one != other]
    assert len(pairs) == 380
    for one, other in pairs:
        found = convert(Placed.of(layout(one), range(8)), layout(other), SHAPE, 8, uniform(latency, bandwidth))
        assert found.seconds == pytest.approx(least[one, other], abs=1e-12)
        assert error(found, SHAPE) < 1e-12


@pytest.mark.slow
def test_what_every_device_needs_is_brought_at_the_least_cost() -> None:
    shape, machine = (12, 12), 2
    prices = RingPrices(two_tiers(AffineLink(*NEAR), AffineLink(*FAR), machine))
    vectors = [(one.replicas, one.values, *one.splits) for one in layouts_over(4, 2)]
    for start in vectors:
        least = cheapest_placed(start_of(start, shape), shape, 8, price_of(NEAR, FAR, machine))
        for end, order in itertools.product(vectors, [(0, 2, 1, 3), (3, 1, 2, 0)]):
            found = convert(Placed.of(layout(start), range(4)), Placed.of(layout(end), order), shape, 8, prices)
            assert error(found, shape) < 1e-12
            if end[1] == 1 and "send" not in found.kinds:
                assert found.seconds == pytest.approx(least[start_of(end, shape, order)], abs=1e-12)


def test_groups_of_different_size_are_exact() -> None:
    draw, shape = random.Random(3), (12, 24)
    for _ in range(60):
        counts = draw.randint(1, 8), draw.randint(1, 8)
        one, other = (draw.choice([entry for entry in layouts_over(count, 2)
                                   if all(size % k == 0 for size, k in zip(shape, entry.splits, strict=True))])
                      for count in counts)
        devices = draw.sample(range(12), counts[0]), draw.sample(range(12), counts[1])
        found = convert(Placed.of(one, devices[0]), Placed.of(other, devices[1]), shape, 8, uniform())
        assert error(found, shape) < 1e-12
        assert found.target == Placed.of(other, devices[1])


def test_megatrons_pairs_are_one_collective_each() -> None:
    def kinds(one: Layout, other: Layout) -> tuple[str, ...]:
        return convert(Placed.of(one, range(4)), Placed.of(other, range(4)), SHAPE, 2, uniform()).kinds

    whole, terms, rows, columns = Layout(4, 1, (1, 1)), Layout(1, 4, (1, 1)), Layout(1, 1, (4, 1)), Layout(1, 1, (1, 4))
    assert kinds(terms, whole) == ("all_reduce",)
    assert kinds(terms, rows) == ("reduce_scatter",)
    assert kinds(rows, whole) == ("all_gather",)
    assert kinds(rows, columns) == ("all_to_all",)
    assert kinds(whole, columns) == ("slice",)
    assert kinds(rows, rows) == ()


def test_bytes_are_those_of_rings() -> None:
    found = convert(Placed.of(Layout(1, 4, (1, 1)), range(4)), Layout(4, 1, (1, 1)), SHAPE, 8, uniform())
    assert step_bytes(found.steps[0], SHAPE, 8) == 2 * 3 * 16 * 16 * 8 // 4


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    with pytest.raises(LayoutError, match="dimension 0 has 16 elements, which 3 parts do not divide"):
        convert(Placed.of(Layout(1, 1, (3, 1)), range(3)), Layout(3, 1, (1, 1)), SHAPE, 8, uniform())
    with pytest.raises(LayoutError, match="takes 4 different devices"):
        Placed.of(Layout(1, 1, (4, 1)), range(3))
    with pytest.raises(LayoutError, match="is of 1 dimensions, the tensor has 2"):
        Layout(1, 1, (2,)).require(SHAPE)
    with pytest.raises(LayoutError, match="a count below 1"):
        Layout(0, 1, (2,))


def test_groups_are_taken_among_neighbours_and_across_them() -> None:
    """Four replicas in pairs: neighbours, or each with the one two places on."""
    shape = (8, 8)
    whole, terms = Placed.of(Layout(4, 1, (1, 1)), range(4)), Placed.of(Layout(1, 4, (1, 1)), range(4))
    pairs = {((0, 1), (2, 3)), ((0, 2), (1, 3))}
    for before, kind in ((whole, "slice"), (whole, "term"), (terms, "all_reduce"), (terms, "reduce_scatter")):
        found = {step.groups for step in moves(before, shape) if step.kind == kind and step.parts == 2}
        assert found == pairs
        assert {step.groups for step in moves(before, shape) if step.kind == kind and step.parts == 4} == {
            ((0, 1, 2, 3),)}


def test_terms_are_added_up_within_machines_before_they_cross() -> None:
    """Scattered within a machine, a half crosses; added up across first, all of it would. An all-reduce is priced so.
    """
    slow = RingPrices(two_tiers(AffineLink(1e-6, 1e12), AffineLink(1e-6, 1e8), 2))
    shape, size = (64, 64), 64 * 64 * 8
    found = convert(Placed.of(Layout(1, 4, (1, 1)), range(4)), Layout(4, 1, (1, 1)), shape, 8, slow)
    assert found.kinds == ("all_reduce",)
    assert [step.groups for step in found.steps] == [((0, 1, 2, 3),)]
    assert found.seconds == pytest.approx(3e-6 + size / 2 / 1e12 + size / 2 / 1e8 + size / 2 / 1e12, rel=1e-6)
    assert error(found, shape) < 1e-12
