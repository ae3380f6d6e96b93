"""What ranks must replay alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.replay.options import ReplayOptions
from weft.runtime.replay.replay import _require_alike


@pytest.mark.parametrize(("name", "value"), [("--transport", "shared"), ("--paced", True)])
def test_ranks_that_replay_in_another_way_are_refused_by_the_option(name: str, value: Any) -> None:
    class Two:
        agree_on = Session.agree_on

        def _exchange(self, values: Mapping[str, object], text: str) -> list[Mapping[str, object]]:
            return [values, {**values, name: value}]

    with pytest.raises(SessionError, match=f"^{name} must be the same on all ranks, .* and {value!r} on rank 1"):
        _require_alike(cast(Session, Two()), ReplayOptions(emulate=True))
