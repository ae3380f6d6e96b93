"""Tables of all runs of layers against the stages that they are made of."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from weft.models.candidates.stages import Stages, static_bytes
from weft.models.layers.costs import LayerCost
from weft.models.tensor_parallel.group_split import StageTables


def layer(draw: random.Random, number: int) -> LayerCost:
    """Random costs; some of what it holds and keeps is of other layers too."""
    def shared() -> tuple[tuple[str, int], ...]:
        return tuple((name, 7 + ord(name[0])) for name in ("a", "b") if draw.random() < 0.4)

    def size() -> int:
        return draw.randint(200, 900)

    return LayerCost(f"layer{number}", draw.random(), draw.random(), 0.1, 0.1, size(), size(), size(), size(),
                     size(), size(), size(), size(), size(), shared_activations=tuple(
                         (f"kept {name}", amount) for name, amount in shared()), shared_parameters=shared(),
                     held_gradients=tuple((f"gradient of {name}", amount) for name, amount in shared()))


@pytest.mark.parametrize("backward", ["full", "split", "none"])
def test_tables_are_those_of_the_stages(backward: Literal["full", "split", "none"]) -> None:
    draw = random.Random(2)
    layers = [layer(draw, number) for number in range(9)]
    tables, stages = StageTables.of(layers, 16, backward), Stages(layers)
    for first in range(9):
        for end in range(first + 1, 10):
            stage = stages.stage(first, end)
            needed = (stage.working_set if backward == "none" else
                      max(stage.workspace_forward, stage.workspace_backward,
                          stage.workspace_after_forward if backward == "split" else 0))
            assert (tables.load[first, end], tables.static[first, end], tables.workspace[first, end],
                    tables.each[first, end]) == (
                stage.load, static_bytes([stage], 16), needed, 0 if backward == "none" else stage.activation)
