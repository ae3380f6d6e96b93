"""What the end of a step adds."""

from __future__ import annotations

import pytest

from tests.models.grid.test_rank import GPT, links
from tests.models.grid.test_state import ADAM
from weft.models.grid.degrees import Degrees
from weft.models.grid.rank import GridRanks, RankLayer
from weft.models.grid.state import gathered, reduced
from weft.models.grid.step_end import least_end, step_end


def layers(near: float = 450e9) -> list[RankLayer]:
    return list(GridRanks(GPT, links(near=near)).of(Degrees()))


def test_alone_nothing_is_sent() -> None:
    end = step_end([layers()], Degrees(), links(), ADAM)
    assert end.gradients == end.parameters == 0.0
    assert end.seconds == end.optimizer > 0


def test_the_last_sum_and_the_first_gathering_are_beside_nothing() -> None:
    own, degrees, fast = layers(), Degrees(data=8), links(near=1e15)
    end = step_end([own], degrees, fast, ADAM)
    assert end.gradients == pytest.approx(reduced(own[0], degrees, fast))
    assert end.parameters == pytest.approx(gathered(own[0], degrees, fast, ADAM))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("near", [1e9, 450e9])
def test_no_step_ends_sooner_than_its_first_layer_allows(zero: int, near: float) -> None:
    own, degrees = layers(near), Degrees(data=4, pipeline=2, zero=zero)
    for at in range(1, len(own)):
        end = step_end([own[:at], own[at:]], degrees, links(near=near), ADAM)
        assert least_end(own[0], degrees, links(near=near), ADAM) <= end.seconds + 1e-12
