"""The notation: what it means, and every way to get it wrong."""

from __future__ import annotations

import pytest

from weft.models.transform.program import PlanError, annotation, mirrored


def test_groups_and_ones() -> None:
    found = annotation("b (h d), 1 -> b h d")
    assert found.inputs == ((("b",), ("h", "d")), ((),))
    assert found.sizes([(2, 12), (1,)], {"h": 3}) == {"b": 2, "h": 3, "d": 4}
    assert found.shape(found.outputs[0], {"b": 2, "h": 3, "d": 4}) == (2, 3, 4)
    assert str(annotation("a (b c^) -> a b")) == "a (b c^) -> a b"


def test_gradients_sum_over_what_they_do_not_have() -> None:
    product = annotation("m k+, k+ n -> m n")
    back = mirrored([product.outputs[0], product.inputs[1]], [product.inputs[0]], [])
    assert str(back) == "m n+, k n+ -> m k"


@pytest.mark.parametrize(("text", "said"), [
    ("m k, k n -> m n", "'k' is spatial, but an output does not have it; write k\\+"),
    ("m k+ -> m k", "'k' is a reduction, but an output has it"),
    ("m k+, k^ n -> m n", "'k' is marked \\+ and \\^"),
    ("m m -> m", "'m' stands twice in one tensor"),
    ("m n", "needs one arrow"),
    ("m -> n -> m", "needs one arrow"),
    ("m % -> m", "'%' is no dimension"),
    ("m 7 -> m", "'7' is no dimension"),
    ("m (a (b c)) -> m", "is no dimension"),
])
def test_what_means_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        annotation(text)


@pytest.mark.parametrize(("text", "shapes", "said"), [
    ("m k+, k+ n -> m n", [(2, 3), (5, 4)], "k\\+ is 3 in one place and 5 in another"),
    ("m k+, k+ n -> m n", [(2, 3)], "has 2 inputs, 1 are given"),
    ("m k+ -> m", [(2, 3, 4)], "names 2 dimensions"),
    ("(a b) -> a b", [(6,)], "the size of 'a' follows from no shape"),
])
def test_shapes_that_do_not_fit_are_refused(text: str, shapes: list[tuple[int, ...]], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        annotation(text).sizes(shapes)
