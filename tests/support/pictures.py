"""What a chart is drawn from, as tests look at it."""

from __future__ import annotations

from typing import Any

from weft.figures import chart
from weft.solver.schedule import Schedule

GIB = 2**30


def rows(schedule: Schedule, name: str, **options: Any) -> list[dict[str, Any]]:
    """One of the tables in the chart of ``schedule``."""
    tables: dict[str, list[dict[str, Any]]] = chart(schedule, **options).datasets
    return tables.get(name, [])
