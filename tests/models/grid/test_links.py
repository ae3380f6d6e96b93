"""Where the GPUs of a group stand, and how long they take to pass tensors around."""

from __future__ import annotations

import pytest

from weft.models.grid.links import GridLinks
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import AffineLink, Network
from weft.models.layers.collectives import collective_time

A100 = DEVICES["a100"]
LINKS = GridLinks(A100, Network(AffineLink(15e-6, 300e9), AffineLink(2e-5, 25e9), 8))


@pytest.mark.parametrize(("count", "stride", "within"), [(8, 1, 8), (16, 1, 8), (4, 2, 4), (8, 2, 4), (8, 8, 1),
                                                         (6, 1, 2), (2, 64, 1)])
def test_how_many_stand_in_one_machine(count: int, stride: int, within: int) -> None:
    assert LINKS.within(count, stride) == within


def test_in_one_machine_it_is_the_collectives_time() -> None:
    assert LINKS.collective("all_reduce", 2**20, 8) == collective_time("all_reduce", 2**20, 8, A100).seconds
    assert LINKS.collective("all_reduce", 2**20, 1) == LINKS.collective("all_gather", 0, 8) == 0.0
    slower = GridLinks(A100, Network(AffineLink(15e-6, 30e9), AffineLink(2e-5, 25e9), 8))
    assert slower.collective("all_reduce", 2**30, 8) > 9 * LINKS.collective("all_reduce", 2**30, 8)


def test_links_to_the_network_of_a_machine_add_up() -> None:
    size = 2**30
    alone, together = LINKS.collective("all_reduce", size, 4, 8), LINKS.collective("all_reduce", size, 32, 1)
    assert alone - 2e-5 == pytest.approx(2 * 3 / 4 * size / (25e9 * 0.84))
    assert together - 2e-5 == pytest.approx(2 * 31 / 32 * size / (8 * 25e9 * 0.84))


def test_what_stays_in_the_machine_does_not_cross_the_network() -> None:
    size = 2**30
    assert LINKS.collective("all_to_all", size, 16, 1) - 2e-5 == pytest.approx(size / 2 / (25e9 * 0.6))
    assert LINKS.collective("all_to_all", size, 2, 8) - 2e-5 == pytest.approx(size / 2 / (25e9 * 0.6))


def test_the_next_stage_is_in_the_machine_or_in_another() -> None:
    assert LINKS.to_next(3 * 10**8, 4) == pytest.approx(15e-6 + 1e-3)
    assert LINKS.to_next(25 * 10**6, 8) == pytest.approx(2e-5 + 1e-3)
