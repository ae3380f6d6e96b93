"""The sheet a picture is laid out on: what every layer will hold, gathered panel by panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.figures.axis import TimeAxis
from weft.figures.data import Record
from weft.figures.style import INK
from weft.text.units import TEXT, Unit, name_text

__all__ = ["WIDTH", "Heights", "Sheet", "heights_for"]

#: Pixels of the time axis: at the usual 96 per inch, ten inches, which a page in landscape holds.
WIDTH = 960


@dataclass(frozen=True, slots=True)
class Heights:
    """Pixels: a row of boxes, the memory under it, the space to the next device, and the font of labels."""

    lane: float
    memory: float
    space: float
    label: float

    @property
    def engine(self) -> float:
        """The thin row of a lane, under its device."""
        return max(5.0, 0.55 * self.lane)

    @property
    def plan(self) -> float:
        """The thin lane of planned boxes above a measured lane."""
        return self.lane / 2


def heights_for(devices: int, memory: bool) -> Heights:
    """Many devices get low lanes; more than 32 leave no room to label their memory."""
    heights = (Heights(20, 24, 10, 11) if devices <= 8 else Heights(15, 15, 7, 10) if devices <= 16
               else Heights(12, 10, 5, 9) if devices <= 32 else Heights(8, 7, 3, 8))
    return heights if memory else Heights(heights.lane, 0, heights.space / 2, heights.label)


@dataclass
class Sheet:
    """The rows of every layer, gathered panel by panel."""

    axis: TimeAxis
    units: tuple[Unit, Unit]
    heights: Heights
    memory_top: float
    hover: bool
    idle: list[Record] = field(default_factory=list)
    boxes: list[Record] = field(default_factory=list)
    numbers: list[Record] = field(default_factory=list)
    outlines: list[Record] = field(default_factory=list)
    areas: list[Record] = field(default_factory=list)
    levels: list[Record] = field(default_factory=list)
    rules: list[Record] = field(default_factory=list)
    texts: list[Record] = field(default_factory=list)
    arrows: list[Record] = field(default_factory=list)

    def text(self, text: str, y: float, size: float, *, x: float, colour: str = INK, align: str = "left",
             bold: bool = False) -> None:
        """Write ``text`` at ``x`` pixels from the left end of the axis, its middle at height ``y``."""
        self.texts.append({"text": name_text(text, TEXT), "px": x, "y": y, "size": size, "colour": colour,
                           "align": align, "bold": bold})

    def line(self, x: float, y: float, x2: float, y2: float, *, colour: str = INK, width: float = 1.0,
             dash: Sequence[float] = ()) -> None:
        """A straight line; ``x`` and ``x2`` are places on the axis."""
        self.rules.append({"x": x, "y": y, "x2": x2, "y2": y2, "colour": colour, "width": width, "dash": list(dash)})


