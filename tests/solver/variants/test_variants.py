"""Problems of one graph side by side."""

from __future__ import annotations

import numpy as np

from tests.support.cut_specs import all_cuts, space_of
from weft.models.cuts.numbers import variants_of


def test_some_are_chosen_by_number_by_mask_and_by_slice() -> None:
    space = space_of(1, "split", "v", 2)
    variants = variants_of(space.ground, np.array(list(all_cuts(space)), dtype=np.int16), trains=True)
    assert len(variants) == 10 and variants.devices == 2
    assert variants.blocks_on(0) == [0, 3, 4, 7, 8, 11] and variants.blocks_on(1) == [1, 2, 5, 6, 9, 10]
    for which, expected in (([7, 2], [7, 2]), (np.isin(np.arange(10), (2, 7)), [2, 7]), (slice(2, 8, 5), [2, 7])):
        chosen = variants.chosen(which)
        assert len(chosen) == 2
        for name in ("durations", "lags", "take", "change", "capacity"):
            assert (getattr(chosen, name) == getattr(variants, name)[expected]).all()
