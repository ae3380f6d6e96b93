"""What does not fit is named with what is missing."""

from __future__ import annotations

import pytest

from tests.support.placements import chain
from weft.solver.placement.chain.place import place
from weft.solver.placement.refusals import NoPlacement


@pytest.mark.parametrize(("held", "memory", "sentence"), [
    ([8, 20, 3], 12.0, "operator 'n1' holds 20 byte, a device of kind gpu has 12 byte: 8 byte are missing"),
    ([8, 9, 9], 12.0, "the operators hold 26 byte together, all devices have 24 byte: 2 byte are missing; the largest "
                      "is operator 'n1' with 9 byte"),
    ([6, 6, 6], 10.0, "no division of the operators into stages fits: 2 byte are missing on a device of kind gpu "
                      "however they are divided; the largest operator in the fullest stage is operator 'n"),
])
def test_what_does_not_fit_is_named_with_what_is_missing(held: list[float], memory: float, sentence: str) -> None:
    with pytest.raises(NoPlacement) as refused:
        place(chain([1, 1, 1], memory=memory, held=held))
    assert str(refused.value).startswith(sentence)
