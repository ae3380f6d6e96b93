"""A small sweep that several test files run."""

from __future__ import annotations

from typing import Any

import weft
from tests.support.builders import chain, pipeline
from weft.app.sweep.result import Sweep
from weft.solver.problem import Problem

EFFORT = 0.05


def uniform() -> Problem:
    """Two stages on two devices with room for two micro-batches each."""
    return pipeline(chain(2), memory=2)


def sweep(source: Any = None, **options: Any) -> Sweep:
    """One of :func:`uniform` in this process and without a cache, unless ``options`` say otherwise."""
    return weft.sweep(source or uniform(), **{"micro_batches": [4], "workers": 1, "cache": False, "effort": EFFORT,
                                              **options})
