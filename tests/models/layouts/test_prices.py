"""What steps cost, by hand: rings over the slowest link, messages by the busiest end."""

from __future__ import annotations

from math import ceil

import pytest

from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import AffineLink, MeasuredLink, two_tiers
from weft.models.layers.collectives import Collective
from weft.models.layouts.prices import RingPrices, device_prices, uniform

NEAR, FAR = AffineLink(1e-5, 1e10), AffineLink(3e-5, 1e9)
TWO_MACHINES = RingPrices(two_tiers(NEAR, FAR, 2))
MIB = 1024**2


@pytest.mark.parametrize(("kind", "passed"), [  # bytes that a ring of four passes on, of MIB on each before
    ("all_gather", 3 * MIB), ("all_reduce", 2 * 3 * MIB / 4), ("reduce_scatter", 3 * MIB / 4),
    ("all_to_all", 3 * MIB / 4)])
def test_a_ring_passes_its_parts_over_the_slowest_link(kind: Collective, passed: float) -> None:
    near = RingPrices(two_tiers(NEAR, FAR, 4))
    assert near.collective(kind, MIB, (0, 1, 2, 3)) == pytest.approx(1e-5 + passed / 1e10)
    uneven = near.collective(kind, MIB, (1, 2, 3, 4))  # three and one: a ring over the slowest link
    assert uneven == pytest.approx(3e-5 + passed / 1e9)


@pytest.mark.parametrize(("kind", "near", "far"), [  # bytes in a machine of two and between two machines
    ("all_gather", 2 * MIB, MIB), ("all_reduce", MIB, MIB / 2), ("reduce_scatter", MIB / 2, MIB / 4),
    ("all_to_all", MIB / 2, MIB / 2)])
def test_machines_of_equal_number_do_their_share_inside(kind: Collective, near: float, far: float) -> None:
    prices, rings = RingPrices(two_tiers(NEAR, FAR, 4)), 2 if kind == "all_reduce" else 1
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
