"""From rows to Altair layers: the only place that knows the chart library."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from weft.figures.data import Row
from weft.figures.style import FONT, IDLE, INK, MUTED

__all__ = ["Scales", "layers", "page"]


@dataclass(frozen=True, slots=True)
class Scales:
    """Places ``domain`` on ``width`` pixels, heights 0 to ``height`` downwards, a colour per class, and the classes
    that the legend names."""

    domain: tuple[float, float]
    height: float
    width: float
    colours: dict[str, str]
    legend: list[str]

    def x(self, field: str = "x:Q", **options: Any) -> alt.X:
        """Horizontal position by place."""
        return alt.X(field, scale=alt.Scale(domain=list(self.domain), nice=False, zero=False), **options)

    def y(self) -> alt.Y:
        """Vertical position in pixels from the top."""
        return alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, self.height], nice=False, reverse=True))

    def colour(self) -> alt.Color:
        """Fill by class."""
        legend = alt.Legend(title=None, orient="top", values=self.legend, symbolType="square", symbolStrokeWidth=0,
                            symbolSize=110, labelFontSize=11, columnPadding=14, direction="horizontal")
        return alt.Color("kind:N", legend=legend,
                         scale=alt.Scale(domain=list(self.colours), range=list(self.colours.values())))


def layers(
    scales: Scales, *, idle: list[Row], areas: list[Row], levels: list[Row], boxes: list[Row], number_size: float,
    rules: list[Row], texts: list[Row], arrows: list[Row], hover: bool, ticks: Sequence[tuple[float, str]],
    time_title: str, title: str, notes: list[str],
) -> alt.LayerChart:
    """The chart of all rows, the first named below the later ones."""
    stack = [_rects(scales, idle).mark_rect(color=IDLE)]
    if areas:
        stack.append(_areas(scales, areas))
    if levels:
        tooltip = [alt.Tooltip(f"{name}:N") for name in ("device", "memory", "cap", "from")]
        stack.append(_rects(scales, levels).mark_rect(opacity=0).encode(tooltip=tooltip))
    if boxes:
        stack += _boxes(scales, boxes, number_size, hover)
    stack.append(_rules(scales, rules))
    if arrows:
        angle = alt.Angle("angle:Q", scale=None)
        stack.append(_table(arrows).mark_point(shape="triangle", filled=True, size=34, color=INK, opacity=1)
                     .encode(x=scales.x(), y=scales.y(), angle=angle))
    stack += _texts(scales, texts)
    stack[0] = stack[0].encode(x=scales.x(axis=_time_axis(ticks, time_title)))
    heading = alt.TitleParams(title, subtitle=notes, anchor="start", frame="group", fontSize=14, fontWeight="bold",
                              color=INK, subtitleColor=MUTED, subtitleFontSize=11, subtitlePadding=4, offset=8)
    chart: alt.LayerChart = alt.layer(*stack).properties(width=scales.width, height=scales.height, title=heading)
    return chart.configure(font=FONT, background="white", padding=12).configure_view(stroke=None)


def page(chart: alt.LayerChart, title: str) -> str:
    """A whole HTML page that holds the chart and all scripts it needs: it opens offline."""
    options = {"actions": {"export": True, "source": False, "compiled": False, "editor": False}}
    text: str = chart.to_html(inline=True, embed_options=options)
    name = f"<title>{html.escape(title)}</title>"
    return text.replace("<head>", f"<head>\n  {name}", 1)


def _table(rows: list[Row]) -> alt.Chart:
    """A chart on ``rows``, which go into the picture as they are: Altair limits only data frames, not inline values."""
    return alt.Chart(alt.InlineData(values=rows))


def _rects(scales: Scales, rows: list[Row]) -> alt.Chart:
    return _table(rows).encode(x=scales.x(), x2="x2:Q", y=scales.y(), y2="y2:Q")


def _time_axis(ticks: Sequence[tuple[float, str]], title: str) -> alt.Axis:
    labels = "".join(f"abs(datum.value - {place!r}) < {_near(ticks)!r} ? '{label}' : " for place, label in ticks) + "''"
    return alt.Axis(values=[place for place, _ in ticks], labelExpr=labels, title=title, grid=False, domain=True,
                    domainColor="#888888", tickColor="#888888", labelColor=INK, titleColor=INK, labelFontSize=10,
                    titleFontSize=11, titleFontWeight="normal", offset=6, labelOverlap=False)


def _near(ticks: Sequence[tuple[float, str]]) -> float:
    places = sorted(place for place, _ in ticks)
    return min((b - a for a, b in zip(places, places[1:], strict=False)), default=1.0) / 3


def _areas(scales: Scales, rows: list[Row]) -> alt.Chart:
    area = _table(rows).mark_area(interpolate="step-after", opacity=1)
    return area.encode(x=scales.x(), y=scales.y(), y2="y2:Q", color=scales.colour(), detail="area:N")


def _boxes(scales: Scales, rows: list[Row], size: float, hover: bool) -> list[alt.Chart]:
    edge = alt.Stroke("edge:N", scale=None, legend=None)
    boxes = _rects(scales, rows).mark_rect(strokeWidth=0.6).encode(color=scales.colour(), stroke=edge)
    if any("fade" in row for row in rows):
        for row in rows:
            row.setdefault("fade", 1.0)
        boxes = boxes.encode(fillOpacity=alt.FillOpacity("fade:Q", scale=None, legend=None))
    if hover:
        names = ("block", "micro-batch", "device", "does", "start", "end", "duration", "memory")
        titles = {"does": "kind", "memory": "memory change"}
        boxes = boxes.encode(tooltip=[alt.Tooltip(f"{name}:N", title=titles.get(name, name)) for name in names])
    numbers = [{"px": row["x"], "x2": row["x2"], "y": (row["y"] + row["y2"]) / 2, "label": row["label"]}
               for row in rows if "label" in row]
    if not numbers:
        return [boxes]
    for row in numbers:
        row["x"] = (row.pop("px") + row.pop("x2")) / 2
    text = _table(numbers).mark_text(fontSize=size, baseline="middle", color="#111111", dy=0.5, tooltip=None)
    return [boxes, text.encode(x=scales.x(), y=scales.y(), text="label:N")]


def _rules(scales: Scales, rows: list[Row]) -> alt.Chart:
    return _table(rows).mark_rule().encode(
        x=scales.x(), x2="x2:Q", y=scales.y(), y2="y2:Q",
        color=alt.Color("colour:N", scale=None, legend=None),
        strokeWidth=alt.StrokeWidth("width:Q", scale=None, legend=None),
        strokeDash=alt.StrokeDash("dash:N", scale=None, legend=None),
    )


def _texts(scales: Scales, rows: list[Row]) -> list[alt.Chart]:
    """Labels at pixels of the picture; one layer per alignment, which no encoding can carry."""
    per_pixel = (scales.domain[1] - scales.domain[0]) / scales.width
    groups: dict[tuple[str, bool], list[Row]] = {}
    for row in rows:
        placed = {"x": scales.domain[0] + row["px"] * per_pixel, "y": row["y"], "text": row["text"],
                  "size": row["size"], "colour": row["colour"]}
        groups.setdefault((row["align"], row["bold"]), []).append(placed)
    return [
        _table(members).mark_text(align=align, baseline="middle", fontWeight="bold" if bold else "normal", clip=False)
        .encode(x=scales.x(), y=scales.y(), text="text:N", color=alt.Color("colour:N", scale=None, legend=None),
                size=alt.Size("size:Q", scale=None, legend=None))
        for (align, bold), members in groups.items()
    ]
