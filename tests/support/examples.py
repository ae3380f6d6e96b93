"""How much a test tries: few random examples and quick cases at a desk, more of them in ``.ci/run``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

#: One in how many of its examples a property is tried on by the README's second command, and the least number.
SHARE, LEAST = 10, 5
_Test = Callable[..., None]


def examples(number: int) -> int:
    """``number`` examples under ``--hypothesis-profile all``, half of them under ``half``, otherwise one in ten of
    them; five at least."""
    share = {"all": 1, "half": 2}.get(settings.get_current_profile_name(), SHARE)
    return min(number, max(LEAST, number // share))


def for_all(*drawn: SearchStrategy[Any], tries: int, **named: SearchStrategy[Any]) -> Callable[[_Test], _Test]:
    """A test of what holds for everything that is drawn: Hypothesis's ``given``, with so many :func:`examples`."""
    def tried(test: _Test) -> _Test:
        return settings(max_examples=examples(tries))(given(*drawn, **named)(test))

    return tried


def slow(*values: Any) -> Any:
    """One case of a test with several, which a quicker case stands for at a desk."""
    return pytest.param(*values, marks=pytest.mark.slow)
