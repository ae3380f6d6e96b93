"""Collectives: measured among V100s, modelled elsewhere."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from tests.support.paths import ROOT
from weft.models.hardware.devices import DEVICES
from weft.models.layers.collectives import (
    REACHED,
    Collective,
    collective_time,
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


@pytest.mark.parametrize(("count", "machines", "device"), [(16, 1, V100), (8, 2, V100), (8, 1, A100), (3, 1, V100)])
def test_elsewhere_times_are_modelled(count: int, machines: int, device: object) -> None:
    assert device in (V100, A100)
    chosen = V100 if device is V100 else A100
    assert collective_time("all_gather", MIB, count, chosen, machines=machines).origin is Origin.MODELLED


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


def test_impossible_groups_are_refused() -> None:
    for devices, machines, size in ((8, 3, 1), (0, 1, 1), (8, 0, 1), (8, 1, -1)):
        with pytest.raises(ValueError, match="machines divide the devices"):
            collective_time("all_reduce", size, devices, V100, machines=machines)


def test_shares_are_those_of_the_experiment() -> None:
    found = json.loads((ROOT / "experiments" / "results" / "collectives.json").read_text())
    for kind in KINDS:
        assert {int(count): share for count, share in found[kind]["reached"].items()} == REACHED[kind]
