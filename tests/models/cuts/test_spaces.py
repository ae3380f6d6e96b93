"""From a spec to the spaces of all its cuts."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.cut_specs import all_cuts, spec_of
from weft.models.cuts.spaces import _in_need, cut_spaces
from weft.models.spec.spec import Spec


def titles(spec: Spec) -> list[str]:
    return [f"{space.ground.layout.shape} {space.ground.layout.chunks} {space.backward}"
            for space in cut_spaces(spec, 3)]


def layers(count: int = 6, **more: Any) -> list[dict[str, Any]]:
    return [{"name": f"l{i}", "forward": 1e-3, "input_grad": 1e-3, "weight_grad": 1e-3, "activation_memory": 4000,
             "weight_grad_memory": 1000, "workspace": 500, **more} for i in range(count)]


def both(entries: list[dict[str, Any]], **more: Any) -> Spec:
    spec = spec_of(entries, "full", **more)
    return spec.model_copy(update={"placement": spec.placement.model_copy(update={"backward": ("full", "split")})})


def test_one_for_each_layout_and_mode() -> None:
    assert titles(spec_of(layers(), "full")) == ["chain 1 full", "v 2 full", "loop 2 full", "wave 3 full",
                                                 "loop 3 full"]
    assert titles(spec_of(layers(), "split", shapes=["chain"], chunks=1)) == ["chain 1 split"]
    assert titles(spec_of(layers(), "none", shapes=["wave"])) == ["wave 3 none"]
    assert titles(spec_of(layers(), "full", shapes=["v"], chunks=4)) == ["v 2 full"]
    assert titles(spec_of(layers(), "full", gpus=1)) == ["chain 1 full"]


def test_none_where_the_cut_is_given_or_a_layer_has_no_backward_or_layers_are_too_many() -> None:
    assert not titles(spec_of(layers(), "full", cut=[3, 3]))
    assert not titles(spec_of(layers(257), "none", shapes=["chain"]))
    assert titles(spec_of(layers(256), "none", shapes=["chain"]))


def test_whole_backwards_are_left_out_where_split_ones_do_as_well() -> None:
    assert titles(both(layers(), shapes=["chain"], chunks=1)) == ["chain 1 split"]
    held = layers()
    held[2]["weight_grad_memory"] = 9000  # back to back, both parts hold 5000 more than the whole
    for space in cut_spaces(both(held, shapes=["chain"], chunks=1), 3):
        needed = space.ground.needed
        assert (needed is None) == (space.backward == "split")
        if needed is not None:
            assert {(first, last) for first in range(6) for last in range(first + 1, 7) if needed[first, last]} == {
                (first, last) for first in range(6) for last in range(first + 1, 7)
                if first <= 2 < last and 9000 + 1000 * (last - first - 1) > 4000 * (last - first)}
            space.open(1 << 50)
            assert space.cuts is not None
            assert {tuple(map(int, row)) for row in space.cuts.borders} == {
                cut for cut in all_cuts(space) if any(needed[pair] for pair in pairwise(cut))}
    assert titles(both(held, shapes=["chain"], chunks=1)) == ["chain 1 full", "chain 1 split"]


@pytest.mark.parametrize(("part", "block", "more"), [
    (None, 0, 0), ("durations", 1, 1), ("durations", 2, 1), ("durations", 0, 1), ("durations", 0, -1), ("take", 0, 1),
    ("take", 0, -1), ("change", 0, 1), ("take", 1, 3), ("take", 2, 2), ("change", 2, 1)])
def test_a_split_backward_does_for_a_whole_one_that_takes_as_long_and_holds_as_much(
        part: str | None, block: int, more: int) -> None:
    """Forward, backward (or its two parts, of which the first gives 2 of 6 back); one number at a time is too large, or
    another than the forward's. Room is left for 2 and 1 more while the parts run."""
    full: Any = SimpleNamespace(durations=np.array([[3], [9], [0]]), take=np.array([[6], [4], [0]]),
                                change=np.array([[6], [-6], [0]]))
    split: Any = SimpleNamespace(durations=np.array([[3], [5], [4]]), take=np.array([[6], [2], [5]]),
                                 change=np.array([[6], [-2], [-4]]))
    if part is not None:
        getattr(split, part)[block] += more
    assert _in_need(split, full).tolist() == [part is not None]
