"""How figures and tables of the generated pages are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def most(values: Iterable[float], digits: int) -> str:
    """The largest, rounded up: nothing is above it."""
    return f"{math.ceil(max(values) * 10**digits) / 10**digits:.{digits}f}"


def span(values: Iterable[float], digits: int) -> str:
    """From the least to the most."""
    found = sorted(values)
    return f"{found[0]:.{digits}f} to {found[-1]:.{digits}f}"


def small(value: float) -> str:
    """Two digits, rounded up, with the exponent: 2.3e-16."""
    exponent = math.floor(math.log10(value))
    return f"{math.ceil(value / 10.0**exponent * 10) / 10:.1f}e{exponent}"


def listed(values: Iterable[object]) -> str:
    """``a, b and c``."""
    *some, last = map(str, values)
    return f"{', '.join(some)} and {last}" if some else last


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"
