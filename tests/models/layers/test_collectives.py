"""Collectives: measured among V100s, modelled elsewhere."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from tests.support.paths import ROOT
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import AffineLink, Network, Tier
from weft.models.layers.collectives import (
    REACHED,
    Collective,
    collective_time,
    group_time,
    measured_curve,
    point_to_point,
    ring_seconds,
)
from weft.models.times.operator_times import Origin

MIB = 1024**2
V100, A100 = DEVICES["v100"], DEVICES["a100-80gb"]
KINDS: tuple[Collective, ...] = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")


def test_a_measured_size_takes_the_measured_time() -> None:
    """Aceso's artifact: an all-reduce of 1024 MB on each of eight V100s takes 14.567 ms."""
    found = collective_time("all_reduce", 1024 * MIB, 8, V100)
    assert found.seconds == pytest.approx(14.567e-3) and found.origin is Origin.MEASURED
    between = collective_time("all_reduce", 1050 * MIB, 8, V100)
    assert between.origin is Origin.INTERPOLATED and 14.567e-3 < between.seconds < 15.484e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_measured_curves_never_fall_and_leave_out_what_could_not_be_run(kind: Collective, devices: int) -> None:
    points = measured_curve(kind, devices)
    assert len(points) > 40 and points[0][0] >= MIB
    assert all(left[0] < right[0] and left[1] <= right[1] for left, right in pairwise(points))
    assert points[-1][1] < 1


def test_a_ring_passes_on_all_parts_but_its_own() -> None:
    assert ring_seconds("all_gather", 100, 4, 10.0, 1.0, 0.5) == pytest.approx(1 + 3 * 100 / 5)
    assert ring_seconds("reduce_scatter", 100, 4, 10.0, 1.0, 0.5) == pytest.approx(1 + 3 * 25 / 5)
    assert ring_seconds("all_reduce", 100, 4, 10.0, 1.0, 0.5) == pytest.approx(1 + 6 * 25 / 5)


def test_nothing_to_do_takes_no_time_and_networks_are_slower() -> None:
    assert collective_time("all_reduce", MIB, 1, V100).seconds == collective_time("all_reduce", 0, 8, V100).seconds == 0
    inside, across = (collective_time("all_reduce", 64 * MIB, 16, A100, machines=n).seconds for n in (1, 2))
    assert inside < across
    assert point_to_point(0, A100).seconds == 0
    assert point_to_point(MIB, A100).seconds < point_to_point(MIB, A100, between_machines=True).seconds


def test_groups_at_a_stride_meet_in_the_tiers_that_they_cross() -> None:
    """Racks of 16 GPUs in machines of 4: by hand, on links at 100, 10 and 1 bytes a second."""
    tiers = (Tier(4, AffineLink(1.0, 100.0)), Tier(16, AffineLink(2.0, 10.0)), Tier(64, AffineLink(4.0, 1.0)))
    network = Network(tiers, stated=True)

    def seconds(kind: Collective, group: range) -> float:
        return group_time(kind, 6400, group, network).seconds

    assert seconds("reduce_scatter", range(4)) == pytest.approx(1 + 4800 / 100)
    assert seconds("reduce_scatter", range(8, 64, 16)) == pytest.approx(4 + 4800 / 1)  # one GPU of each rack
    assert seconds("reduce_scatter", range(1, 17, 4)) == pytest.approx(2 + 4800 / 10)  # one of each machine of a rack
    two = 1 + 3200 / 100 + 2 + 2400 / 10  # two of each machine: a half each, of which 3/4 is passed on
    assert seconds("reduce_scatter", range(0, 16, 2)) == pytest.approx(two)
    whole = 1 + 4800 / 100 + 2 + 1200 / 10 + 4 + 300 / 1
    assert seconds("reduce_scatter", range(64)) == pytest.approx(whole)
    assert seconds("all_reduce", range(64)) == pytest.approx(2 * whole - 4)
    gathered = 4 + 3 * 6400 / 1 + 2 + 3 * 4 * 6400 / 10 + 1 + 3 * 16 * 6400 / 100
    assert seconds("all_gather", range(64)) == pytest.approx(gathered)
    assert seconds("all_to_all", range(64)) == pytest.approx(1 + 48 + 2 + 480 + 4 + 4800)
    assert seconds("all_to_all", range(3, 6)) == pytest.approx(2 + 6400 * 2 / 3 / 10)  # one and two: one ring


def test_a_shared_link_is_slower_by_as_many_as_share_it() -> None:
    """Four GPUs of a machine have one card: of one message all of it, of four at once a quarter each."""
    network = Network((Tier(4, AffineLink(0.0, 100.0)), Tier(8, AffineLink(1.0, 10.0), 4.0)), stated=True)
    assert network.seconds(100, (0,), (4,)) == 1 + 10
    assert network.seconds(100, (0, 1), (4, 5)) == 1 + 20
    assert network.seconds(100, range(4), range(4, 8)) == 1 + 40
    assert group_time("all_gather", 100, range(0, 8, 4), network).seconds == 1 + 40


def test_impossible_groups_are_refused() -> None:
    for devices, machines, size in ((8, 3, 1), (0, 1, 1), (8, 0, 1), (8, 1, -1)):
        with pytest.raises(ValueError, match="machines divide the devices"):
            collective_time("all_reduce", size, devices, V100, machines=machines)


def test_shares_are_those_of_the_experiment() -> None:
    found = json.loads((ROOT / "experiments" / "results" / "collectives.json").read_text())
    for kind in KINDS:
        assert {int(count): share for count, share in found[kind]["reached"].items()} == REACHED[kind]
