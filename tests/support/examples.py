"""How many random examples a property is tried on: a tenth of its number at a desk, all of them in ``.ci/run``."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

#: The share of its examples that a property is tried on by the README's second command, and the least number.
SHARE, LEAST = 10, 5


def examples(number: int) -> int:
    """``number`` examples under ``--hypothesis-profile all``, otherwise one in ten of them, five at least."""
    return number if settings.get_current_profile_name().startswith("all") else min(number, max(LEAST, number // SHARE))
