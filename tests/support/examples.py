"""How much a test tries: few random examples and quick cases at a desk, all of them in ``.ci/run``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

__all__ = ["examples", "slow"]

#: The share of its examples that a property is tried on by the README's second command, and the least number.
SHARE, LEAST = 10, 5


def examples(number: int) -> int:
    """``number`` examples under ``--hypothesis-profile all``, otherwise one in ten of them, five at least."""
    return number if settings.get_current_profile_name().startswith("all") else min(number, max(LEAST, number // SHARE))


def slow(*values: Any) -> Any:
    """One case of a test with several, which a quicker case stands for at a desk."""
    return pytest.param(*values, marks=pytest.mark.slow)
