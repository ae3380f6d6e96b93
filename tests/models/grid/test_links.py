"""Where the GPUs of a group stand, and how long they take to pass tensors around."""

from __future__ import annotations

import pytest

from weft.models.grid.links import GridLinks
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import AffineLink, Network, Tier, two_tiers
from weft.models.layers.collectives import NETWORK_REACHED, collective_time, group_time

A100 = DEVICES["a100"]
LINKS = GridLinks(A100, two_tiers(AffineLink(15e-6, 300e9), AffineLink(2e-5, 25e9), 8))


def test_in_one_machine_it_is_the_collectives_time() -> None:
    assert LINKS.collective("all_reduce", 2**20, 8) == pytest.approx(
        collective_time("all_reduce", 2**20, 8, A100).seconds, abs=1e-9)
    assert LINKS.collective("all_reduce", 2**20, 1) == LINKS.collective("all_gather", 0, 8) == 0.0


def test_across_machines_it_is_the_time_of_the_strided_group() -> None:
    size = 2**30
    assert LINKS.collective("all_reduce", size, 4, 8) == group_time(
        "all_reduce", size, (0, 8, 16, 24), LINKS.network, A100).seconds
    assert LINKS.collective("all_reduce", size, 4, 8) - 2e-5 == pytest.approx(
        2 * 3 / 4 * size / (25e9 * NETWORK_REACHED))


def test_each_gpu_of_a_machine_brings_its_link_to_the_network() -> None:
    size = 2**30
    assert LINKS.collective("all_reduce", size, 32, 1) < LINKS.collective("all_reduce", size, 4, 8) / 2.5


def test_what_stays_in_the_machine_does_not_cross_the_network() -> None:
    size = 2**30
    across = size / 2 / (25e9 * NETWORK_REACHED)
    assert LINKS.collective("all_to_all", size, 2, 8) - 2e-5 == pytest.approx(across)
    assert LINKS.collective("all_to_all", size, 16, 1) == pytest.approx(
        2e-5 + across + LINKS.collective("all_to_all", size, 8))


def test_the_next_stage_is_in_the_machine_or_in_another() -> None:
    assert LINKS.to_next(3 * 10**8, 4) == pytest.approx(15e-6 + 1e-3)
    assert LINKS.to_next(25 * 10**6, 8) == pytest.approx(2e-5 + 1e-3)
    racks = GridLinks(A100, Network((Tier(8, AffineLink(1e-6, 300e9)), Tier(32, AffineLink(2e-6, 50e9)),
                                     Tier(128, AffineLink(3e-6, 25e9)))))
    assert [racks.next_link(stride) for stride in (4, 8, 32)] == [tier.link for tier in racks.network.tiers]
