"""What all tests of captured models need."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def without_traces() -> Iterator[None]:
    """pytest listens to all levels, and torch writes traces of every tensor to the lowest one if anybody does."""
    logging.disable(logging.DEBUG)
    yield
    logging.disable(logging.NOTSET)
