"""Pictures of a schedule, of the search for it, or of a trade-off.

The input is schedules and the numbers of sweeps and latencies, as plain data; the output is a file (``.html``,
``.svg``, ``.png``) or an Altair chart for a notebook. A schedule has one lane per GPU, memory under it, and a second
schedule above for comparison. The room does not depend on commands: their results are drawn by their attributes
(:mod:`~weft.figures.trade_offs`). Altair is loaded on the first call.
"""

from weft.figures.drawing import Window, chart, draw, draw_curve
from weft.figures.style import FORMATS

__all__ = ["FORMATS", "Window", "chart", "draw", "draw_curve"]
