"""What the end of a step adds.

What states take, and what dividing them sends.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.models.grid.test_rank import GPT, MOE, links
from weft.models.grid.degrees import Degrees
from weft.models.grid.rank import GridRanks, RankLayer
from weft.models.grid.step_end import StateBytes, gathered, least_end, reduced, static_of, step_end, with_state


def layers(near: float = 450e9) -> list[RankLayer]:
    return list(GridRanks(GPT, links(near=near)).of(Degrees()))


def test_alone_nothing_is_sent() -> None:
    end = step_end([layers()], [0.0], Degrees(), links(), ADAM)
    assert end.gradients == end.parameters == 0.0
    assert end.seconds == end.optimizer > 0


def test_the_last_sum_and_the_first_gathering_are_beside_nothing() -> None:
    own, degrees, fast = layers(), Degrees(data=8), links(near=1e15)
    end = step_end([own], [0.0], degrees, fast, ADAM)
    assert end.gradients == pytest.approx(reduced(own[0], degrees, fast))
    assert end.parameters == pytest.approx(gathered(own[0], degrees, fast, ADAM))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("near", [1e9, 450e9])
def test_no_step_ends_sooner_than_its_first_layer_allows(zero: int, near: float) -> None:
    own, degrees = layers(near), Degrees(data=4, pipeline=2, zero=zero)
    for at in range(1, len(own)):
        end = step_end([own[:at], own[at:]], [0.0, 1.0], degrees, links(near=near), ADAM)
        assert least_end(own[0], degrees, links(near=near), ADAM) <= end.seconds + 1e-12


def test_a_gpu_without_time_between_steps_may_end_last() -> None:
    own, degrees = layers(), Degrees(data=4, pipeline=2)
    ends = [step_end([own[1:2], own], [0.0, idle], degrees, links(), ADAM) for idle in (0.0, 1.0)]
    assert [end.rank for end in ends] == [1, 0]
    assert ends[0].seconds > ends[1].seconds


ADAM = StateBytes(2, 4, 12)


@pytest.mark.parametrize(("zero", "bytes_each"), [(0, 18), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 18 / 8)])
def test_states_are_divided_among_replicas(zero: int, bytes_each: float) -> None:
    layer = GridRanks(GPT, links()).of(Degrees())[1]
    degrees = Degrees(data=4, context=2, zero=zero)
    assert static_of(layer, degrees, ADAM) == pytest.approx(layer.cost.parameters * bytes_each, abs=3)


def test_experts_have_fewer_replicas() -> None:
    layer = GridRanks(MOE, links()).of(Degrees(expert=4))[3]
    dense = layer.cost.parameters - layer.experts
    held = static_of(layer, Degrees(data=8, expert=4), ADAM)
    assert held == pytest.approx(dense * (6 + 12 / 8) + layer.experts * (6 + 12 / 2), abs=3)


def test_what_is_sent_for_every_micro_batch_hides_behind_the_layer() -> None:
    fast, slow = links(), links(near=5e9)
    for own, is_hidden in ((fast, True), (slow, False)):
        layer = GridRanks(GPT, own).of(Degrees(micro_batch=8))[1]
        for zero in (1, 2, 3):
            found = with_state(layer, Degrees(data=8, zero=zero, micro_batch=8), own, ADAM)
            kept = zero == 1 or is_hidden
            assert (found.backward == layer.cost.backward) is kept
            assert (found.forward == layer.cost.forward) is (kept or zero == 2)
            assert found.input_grad is not None and found.weight_grad is not None
            assert found.backward == pytest.approx(found.input_grad + found.weight_grad)
    slowest = with_state(layer, Degrees(data=8, zero=3), slow, ADAM)
    assert slowest.forward == pytest.approx(gathered(layer, Degrees(data=8, zero=3), slow, ADAM))


def test_without_zero_sums_are_whole_and_nothing_is_gathered() -> None:
    own = links()
    layer = GridRanks(GPT, own).of(Degrees())[1]
    assert reduced(layer, Degrees(data=8, zero=0), own) == own.collective("all_reduce", 4 * layer.cost.parameters, 8)
    assert reduced(layer, Degrees(data=8, collective_bytes=2), own) == own.collective(
        "reduce_scatter", 2 * layer.cost.parameters, 8)
    assert gathered(layer, Degrees(data=8, zero=0), own, ADAM) == 0.0
    assert gathered(layer, replace(Degrees(), data=8), own, ADAM) == own.collective(
        "all_gather", 2 * layer.cost.parameters // 8, 8)
