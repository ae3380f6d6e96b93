"""The cheapest ways between layouts: equal to exhaustive searches, and exact on numbers."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil

import numpy as np
import pytest

from tests.oracles.layouts import Vector, cheapest_placed, cheapest_vectors, start_of
from tests.support.examples import examples
from tests.support.layout_values import Array, Held, applied
from tests.support.programs import layouts_over
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import AffineLink, MeasuredLink, two_tiers
from weft.models.layers.collectives import Collective
from weft.models.layouts.conversion import Conversion, RingPrices, convert, device_prices, step_bytes, uniform
from weft.models.layouts.layout import Layout, LayoutError, Placed, slices
from weft.models.layouts.steps import box_of, moves

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


def lay_out(whole: Array, placed: Placed, seed: int = 0) -> dict[int, Array]:
    """``whole`` in a layout; terms are random numbers that add up to it."""
    random = np.random.default_rng(seed)
    terms = [random.standard_normal(whole.shape) for _ in range(placed.layout.values - 1)]
    terms.append(whole - sum(terms) if terms else whole)
    return {device: terms[piece[0]][slices(box_of(placed, piece, whole.shape))].copy()
            for device, piece in placed.held.items()}


def put_together(held: Held, placed: Placed, shape: Sequence[int]) -> Array:
    """The tensor that the devices hold. Raises ``ValueError`` where two that should hold the same do not."""
    whole = np.zeros(shape)
    for piece, holders in placed.holders.items():
        first = held[holders[0]]
        for other in holders[1:]:
            if not np.allclose(first, held[other], rtol=0, atol=1e-12 * max(1.0, float(np.abs(first).max(initial=0)))):
                raise ValueError(f"the devices {holders[0]} and {other} hold different numbers")
        whole[slices(box_of(placed, piece, shape))] += first
    return whole


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


@pytest.mark.random
def test_groups_of_different_size_are_exact() -> None:
    draw, shape = random.Random(3), (12, 24)
    for _ in range(examples(60)):
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


INSIDE, ACROSS = AffineLink(*NEAR), AffineLink(*FAR)
TWO_MACHINES = RingPrices(two_tiers(INSIDE, ACROSS, 2))
MIB = 1024**2


@pytest.mark.parametrize(("kind", "passed"), [  # bytes that a ring of four passes on, of MIB on each before
    ("all_gather", 3 * MIB), ("all_reduce", 2 * 3 * MIB / 4), ("reduce_scatter", 3 * MIB / 4),
    ("all_to_all", 3 * MIB / 4)])
def test_a_ring_passes_its_parts_over_the_slowest_link(kind: Collective, passed: float) -> None:
    near = RingPrices(two_tiers(INSIDE, ACROSS, 4))
    assert near.collective(kind, MIB, (0, 1, 2, 3)) == pytest.approx(1e-5 + passed / 1e10)
    uneven = near.collective(kind, MIB, (1, 2, 3, 4))  # three and one: a ring over the slowest link
    assert uneven == pytest.approx(3e-5 + passed / 1e9)


@pytest.mark.parametrize(("kind", "near", "far"), [  # bytes in a machine of two and between two machines
    ("all_gather", 2 * MIB, MIB), ("all_reduce", MIB, MIB / 2), ("reduce_scatter", MIB / 2, MIB / 4),
    ("all_to_all", MIB / 2, MIB / 2)])
def test_machines_of_equal_number_do_their_share_inside(kind: Collective, near: float, far: float) -> None:
    prices, rings = RingPrices(two_tiers(INSIDE, ACROSS, 4)), 2 if kind == "all_reduce" else 1
    expected = rings * 1e-5 + near / 1e10 + 3e-5 + far / 1e9
    assert prices.collective(kind, MIB, (2, 3, 4, 5)) == pytest.approx(expected)


def test_machines_are_groups_of_neighbours() -> None:
    assert TWO_MACHINES.collective("all_gather", MIB, (2, 3)) == pytest.approx(1e-5 + MIB / 1e10)
    assert TWO_MACHINES.collective("all_gather", MIB, (1, 2)) == pytest.approx(3e-5 + MIB / 1e9)
    assert TWO_MACHINES.collective("all_gather", MIB, (3,)) == TWO_MACHINES.collective("all_gather", 0, (1, 2)) == 0


def test_a_measured_link_sends_each_part_in_its_own_time() -> None:
    link = MeasuredLink(((MIB, 1e-4), (4 * MIB, 2e-4)))
    prices = RingPrices(two_tiers(link, link, 8))
    assert prices.collective("all_gather", MIB, range(4)) == pytest.approx(3 * 1e-4)
    assert prices.collective("all_reduce", 4 * MIB, range(4)) == pytest.approx(2 * 3 * 1e-4)
    assert prices.collective("reduce_scatter", 4 * MIB, range(4)) == pytest.approx(3 * 1e-4)
    uneven = prices.collective("reduce_scatter", 4 * MIB + 1, range(4))
    assert uneven == pytest.approx(3 * link.seconds(ceil((4 * MIB + 1) / 4)))


def test_messages_take_as_long_as_the_busiest_end() -> None:
    prices = TWO_MACHINES
    assert prices.messages([(0, 1, MIB), (0, 1, MIB)]) == pytest.approx(1e-5 + 2 * MIB / 1e10, abs=1e-9)
    assert prices.messages([(0, 1, MIB), (2, 3, 3 * MIB)]) == pytest.approx(1e-5 + 3 * MIB / 1e10, abs=1e-9)
    assert prices.messages([(0, 1, MIB), (2, 1, MIB)]) == pytest.approx(3e-5 + 2 * MIB / 1e9, abs=1e-9)  # one is far
    assert prices.messages([(1, 1, MIB), (0, 2, 0)]) == 0


def test_devices_of_a_kind_have_its_links() -> None:
    device = DEVICES["h100"]
    prices = device_prices(device, 2)
    assert prices.messages([(0, 1, MIB)]) == pytest.approx(device.link_latency + MIB / device.link, abs=1e-9)
    assert prices.messages([(1, 2, MIB)]) == pytest.approx(device.network_latency + MIB / device.network, abs=1e-9)
    within, across = (prices.collective("all_reduce", 64 * MIB, group) for group in ((2, 3), (1, 2)))
    assert 0 < within < across
    # Two of one machine and one of another: no machines of equal number, so each counts as its own.
    assert prices.collective("all_reduce", 64 * MIB, (0, 1, 2)) >= prices.collective("all_reduce", 64 * MIB, (0, 2, 4))
    assert prices.collective("all_reduce", 64 * MIB, (0,)) == 0


def test_uniform_devices_are_all_near() -> None:
    assert uniform(1e-5, 1e10).collective("all_gather", MIB, (0, 10**6)) == pytest.approx(1e-5 + MIB / 1e10)
