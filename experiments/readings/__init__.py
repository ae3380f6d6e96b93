"""The figures of docs/RESULTS.md: one function for each file of ``experiments/results``, by its name.

In comes the content of a file, out come the fields that ``experiments/results.md`` writes as ``{NAME.field}``. A
sentence without a number is checked here (:func:`~experiments.readings.writing.require`): where its file does not bear
it out, the page is not written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from experiments.readings import communication, placements, runs, searches
from experiments.readings.writing import Fields

__all__ = ["READINGS"]

READINGS: dict[str, Callable[[Any], Fields]] = {
    name.rstrip("_"): function for room in (searches, placements, communication, runs)
    for name, function in inspect.getmembers(room, inspect.isfunction)
    if function.__module__ == room.__name__ and not name.startswith("_")}
