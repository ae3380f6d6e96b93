"""The scale of losses finds itself."""

from __future__ import annotations

from weft.runtime.interface.scaling import FIRST, LossScale


def test_the_scale_halves_where_gradients_overflow_and_doubles_after_a_while() -> None:
    scale = LossScale(interval=2)
    for is_finite, value in ((True, FIRST), (False, FIRST / 2), (True, FIRST / 2), (True, FIRST), (True, FIRST)):
        scale.update(is_finite)
        assert scale.value == value
    assert scale.skipped == 1
    other = LossScale(interval=2)
    other.load_state_dict(scale.state_dict())
    other.update(True)
    assert other.value == 2 * FIRST and other.good == 0


def test_the_scale_has_bounds() -> None:
    scale = LossScale(interval=1)
    for _ in range(100):
        scale.update(False)
    assert 0 < scale.value < 1e-2
    for _ in range(100):
        scale.update(True)
    assert 1e6 < scale.value < 1e9
