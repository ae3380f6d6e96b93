"""Pictures of a schedule, of the search for it, or of a trade-off.

In come schedules and the numbers of sweeps and latencies, as plain data; out comes a file (``.html``, ``.svg``,
``.png``) or an Altair chart for a notebook. A schedule has one lane per GPU, memory under it, and a second schedule
above to compare with. The room depends on no command: it draws their results by attributes
(:mod:`~weft.figures.trade_offs`). Altair is loaded on the first call.
"""

from weft.figures.drawing import Window, chart, draw, draw_curve
from weft.figures.style import FORMATS

__all__ = ["FORMATS", "Window", "chart", "draw", "draw_curve"]
