"""Common parts of all pictures: data by name, axes, a heading; and writing them to a file."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import altair as alt

from weft.figures.data import Record
from weft.figures.style import FONT, INK, MUTED, ending_of
from weft.solver.io.writing import write_atomically
from weft.text.units import TEXT, name_text

_Channel = TypeVar("_Channel", alt.X, alt.Y)

#: The permissions of an HTML page: run its own code (Vega compiles expressions), show and save images made from it.
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
#: Maximum characters of a heading.
TITLE = 400


class ChartData:
    """A picture's data, by name. Layers refer to them, so that Altair does not copy, check or limit them row by row
    whenever a layer is passed on."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Record]] = {}

    def add(self, name: str, rows: list[Record]) -> alt.Chart:
        """An empty chart on ``rows``."""
        self.rows[name] = rows
        return alt.Chart(alt.NamedData(name=name))


def axis_of(title: str, **options: Any) -> alt.Axis:
    """An axis in the style of all pictures."""
    return alt.Axis(**{"title": title, "gridColor": "#eeeeee", "domainColor": "#888888", "tickColor": "#888888",
                       "labelColor": INK, "titleColor": INK, "labelFontSize": 10, "titleFontSize": 11,
                       "titleFontWeight": "normal", **options})


def along(channel: type[_Channel], field: str, domain: Sequence[float], title: str | None = None) -> _Channel:
    """Numbers of ``field`` from one end of ``domain`` to the other, with an axis if ``title`` is given."""
    found: _Channel = channel(f"{field}:Q", scale=alt.Scale(domain=list(domain), nice=False, zero=False))
    return found if title is None else found.axis(axis_of(title))


def with_room(values: Iterable[float]) -> tuple[float, float]:
    """The range from minimum to maximum, with room for marks and labels at both ends."""
    low, high = min(values := list(values)), max(values)
    room = 0.08 * ((high - low) or abs(high) or 1.0)
    return max(0.0, low - room), high + room


def tips(fields: Mapping[str, str] | Sequence[str]) -> list[alt.Tooltip]:
    """Tooltips: fields, each with its title if that differs."""
    named = fields if isinstance(fields, Mapping) else dict(zip(fields, fields, strict=True))
    return [alt.Tooltip(f"{name}:N", title=title) for name, title in named.items()]


def framed(layers: Sequence[Any], tables: ChartData, size: tuple[float, float], title: str, notes: Sequence[str]
           ) -> alt.LayerChart:
    """The chart of ``layers``, the first below the later ones, of the given width and height in pixels, under its
    heading.
    """
    below: dict[str, Any] = {"subtitle": list(notes), "subtitleColor": MUTED, "subtitleFontSize": 11,
                             "subtitlePadding": 4} if notes else {}
    heading = alt.TitleParams(title, anchor="start", frame="group", fontSize=14, fontWeight="bold", color=INK, offset=8,
                              **below)
    chart: alt.LayerChart = alt.layer(*layers, width=size[0], height=size[1], title=heading).configure(
        font=FONT, background="white", padding=12, view=alt.ViewConfig(stroke=None))
    chart.datasets = tables.rows
    return chart


# -- files -------------------------------------------------------------------------------------------------------------


def to_file(path: str | os.PathLike[str], title: str, made: Callable[[bool], alt.LayerChart]) -> None:
    """Write to ``path`` the result of ``made``, whose argument says whether tooltips are supported: ``.html``
    (offline), ``.svg`` or ``.png``.

    Raises ``ValueError`` for another ending, and ``OSError`` if the file cannot be written; in both cases no partial
    file is left behind.
    """
    ending = ending_of(path)
    import vl_convert

    specified = specification(made(ending == ".html"))
    version = alt.SCHEMA_VERSION.rpartition(".")[0]
    content: str | bytes
    if ending == ".png":
        scale = 2.0 if specified["height"] <= 1500 else 1.5
        content = vl_convert.vegalite_to_png(specified, vl_version=version, scale=scale)
    elif ending == ".svg":
        content = vl_convert.vegalite_to_svg(specified, vl_version=version)
    else:
        script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version)
        content = _page(specified, name_text(title, TEXT), script)
    write_atomically(path, content)


def specification(chart: alt.LayerChart) -> dict[str, Any]:
    """The Vega-Lite specification of ``chart``: checked by Altair, except for the data, which it would check row by
    row. Names in it are shortened, and characters that cannot be drawn are replaced: the renderer would end the
    process."""
    bare = chart.copy(deep=False)
    bare.datasets = alt.Undefined
    return {**_texts_shown(bare.to_dict()), "datasets": {
        name: [{key: name_text(value, TEXT) if isinstance(value, str) else value for key, value in row.items()}
               for row in rows] for name, rows in chart.datasets.items()}}


def _texts_shown(part: Any) -> Any:
    """The specification with all texts drawable; expressions, which are weft's own, are unchanged."""
    if isinstance(part, dict):
        return {key: value if key == "labelExpr" else _texts_shown(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_texts_shown(value) for value in part]
    return name_text(part, TITLE) if isinstance(part, str) else part


def _page(specified: dict[str, Any], title: str, script: str) -> str:
    """A complete HTML page with ``script`` (Vega, Vega-Lite and Vega-Embed) that opens offline.

    The page's policy forbids network access.
    """
    options = {"renderer": "svg",
               "actions": {"export": True, "source": False, "compiled": False, "editor": False}}
    data = json.dumps(specified, ensure_ascii=False).replace("<", "\\u003c")  # a name may contain "</script>"
    script = script.replace("</script", "<\\/script")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{html.escape(title)}</title>
<style>body {{ margin: 8px; font-family: {FONT}; }}</style>
<script>{script}</script>
</head>
<body>
<div id="picture"></div>
<script>
vegaEmbed("#picture", {data}, {json.dumps(options)});
</script>
</body>
</html>
"""
