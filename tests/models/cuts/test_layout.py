"""Shapes with their numbers of stages a GPU."""

from __future__ import annotations

import pytest

from weft.models.cuts.layout import Layout, layouts


@pytest.mark.parametrize(("shapes", "gpus", "chunks", "layers", "found"), [
    (("chain", "v", "loop", "wave"), 2, 3, 9, ["chain 1", "v 2", "loop 2", "wave 3", "loop 3"]),
    (("chain", "v", "loop", "wave"), 2, 3, 5, ["chain 1", "v 2", "loop 2"]),
    (("chain", "v", "loop", "wave"), 2, 1, 9, ["chain 1"]),
    (("v", "groups"), 2, 4, 9, ["v 2"]),
    (("wave",), 2, 4, 9, ["wave 3", "wave 4"]),
    (("wave",), 2, 2, 9, []),
    (("chain", "loop"), 1, 3, 9, ["chain 1"]),
    (("chain", "loop"), 4, 3, 3, []),
])
def test_those_that_the_layers_can_fill(shapes: tuple[str, ...], gpus: int, chunks: int, layers: int,
                                        found: list[str]) -> None:
    assert [f"{layout.shape} {layout.chunks}" for layout in layouts(shapes, gpus, chunks, layers)] == found


def test_a_wave_goes_down_up_and_down() -> None:
    assert Layout("wave", 3, 2).devices == (0, 1, 1, 0, 0, 1) and Layout("wave", 3, 2).stages == 6
    assert Layout("loop", 3, 2).devices == (0, 1, 0, 1, 0, 1)
