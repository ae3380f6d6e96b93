"""The picture in docs/ARCHITECTURE.md: rooms and who imports whom, from the real imports and a layout given by hand.

    python -m experiments.house.picture

An arrow leads from a room to one that it imports; what follows from other arrows is left out. The script refuses a
room without a place, and an arrow that does not lead down (or, at the front door, to the right): the picture is a proof
that there are no circles between rooms. Only rooms are drawn, not the parts of a room, which stand under its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import networkx as nx

from experiments.house.imports import ROOMS, Sources
from experiments.lib.provenance import ROOT
from weft.solver.io.writing import write_atomically

__all__ = ["PICTURE", "Picture", "main"]

PICTURE = ROOT / "docs" / "architecture.svg"
#: Pixels: of a room's box, between rows, around the rooms of an area and above them, for its name.
_WIDTH, _HEIGHT, _GAP, _MARGIN, _TITLE = 132, 38, 24, 16, 24
#: Pixels of a page.
_PAGE = 1000
_INK, _LINE = "#1f2933", "#7b8794"
#: Of each area its title and colours.
_AREAS = {
    "weft": ("weft: the front door", "#eef2ff", "#c7d2fe"),
    "runtime": ("runtime: the executor", "#ecfdf5", "#a7f3d0"),
    "models": ("models: where problems come from", "#fff7ed", "#fed7aa"),
    "solver": ("solver: the search", "#f8fafc", "#cbd5e1"),
}


@dataclass(frozen=True)
class Place:
    """Where a room is in its area: the middle, in boxes from the left, and the row from above; under its name, what it
    is or has."""

    column: float
    row: int
    says: str


#: The layout: by area and room, ``""`` for the files of the area itself.
PLACES = {
    "weft": {
        "cli": Place(0.5, 0, "a command each"),
        "api": Place(1.85, 0, "a function each"),
        "app": Place(3.2, 0, "what commands do"),
        "figures": Place(4.55, 0, "pictures"),
        "text": Place(5.9, 0, "tables, units"),
    },
    "runtime": {
        "share": Place(0.5, 0, "jobs on the same ranks"),
        "replay": Place(1.6, 1, "one rank's run"),
        "by_modules": Place(2.7, 0, "cut, no export"),
        "captured": Place(2.7, 1, "any model, cut"),
        "checkpoint": Place(0.5, 2, "save, resume"),
        "measure": Place(1.6, 2, "costs for the solver"),
        "communication": Place(0.5, 3, "beside computation"),
        "train": Place(1.6, 3, "real modules"),
        "by_hand": Place(2.7, 2, "plans by hand"),
        "execute": Place(1.6, 4, "instructions in order"),
        "interface": Place(0.5, 5, "what users write"),
        "transports": Place(1.6, 5, "tensors move"),
        "ranks": Place(1.6, 6, "processes, watchdog"),
        "export": Place(2.7, 6, "other tools' files"),
        "plan": Place(1.6, 7, "instruction lists"),
    },
    "models": {
        "overlap": Place(1.6, 0, "sums beside work"),
        "share": Place(0.5, 1, "several jobs"),
        "tensor_parallel": Place(1.6, 1, "layers on groups"),
        "cuts": Place(2.7, 1, "all cuts, bounded"),
        "transform": Place(0.5, 2, "plans by hand"),
        "communication": Place(2.7, 2, "passes"),
        "candidates": Place(1.6, 2, "placements"),
        "layouts": Place(0.5, 3, "and conversions"),
        "zoo": Place(2.7, 3, "families"),
        "capture": Place(0.5, 4, "torch.export"),
        "layers": Place(1.6, 4, "costs of layers"),
        "times": Place(1.6, 5, "of operators"),
        "graph": Place(1.6, 6, "operators"),
        "spec": Place(1.6, 7, "the user's YAML"),
        "files": Place(1.0, 8, "limits"),
        "hardware": Place(2.2, 8, "GPUs, links"),
    },
    "solver": {
        "diagnose": Place(2.0, 0, "what limits it"),
        "step": Place(2.0, 1, "the whole step"),
        "latency": Place(3.5, 1, "under a floor"),
        "choices": Place(3.5, 0, "options, sequences"),
        "orders": Place(5.2, 3, "local search of them"),
        "period": Place(3.5, 2, "the steady state"),
        "placement": Place(5.2, 0, "operator graphs"),
        "baselines": Place(1.3, 3, "published schedules"),
        "bounds": Place(2.7, 3, "lower bounds"),
        "feasibility": Place(4.0, 3, "why nothing fits"),
        "io": Place(0.45, 4, "files"),
        "wide": Place(0.45, 5, "choices, jobs"),
        "judge": Place(1.55, 4, "is it valid?"),
        "relations": Place(2.7, 4, "least distances"),
        "cpsat": Place(4.0, 4, "budget, models"),
        "variants": Place(5.2, 4, "many at once"),
        "": Place(1.8, 6, "problems, schedules"),
        "control": Place(3.0, 7, "clock, stop"),
    },
}


@dataclass(frozen=True)
class Box:
    """A room on the page: the middle of its upper edge."""

    name: str
    x: float
    y: float
    says: str

    def port(self, share: float, *, above: bool) -> tuple[float, float]:
        """Where an arrow meets the upper or lower edge, ``share`` of the way from the left."""
        return self.x + (share - 0.5) * _WIDTH * 0.7, self.y if above else self.y + _HEIGHT


class Picture:
    """The page. Raises ``ValueError`` for a room without a place and for an arrow that leads up."""

    def __init__(self, root: Path = ROOT) -> None:
        sources = Sources(root)
        # The public names of weft/__init__.py are those of weft/api.
        self.between = nx.relabel_nodes(sources.between(2), {"weft": "weft/api"})
        self.between.remove_edges_from(list(nx.selfloop_edges(self.between)))
        missing = {room for room in self.between if _part(room) not in PLACES[room.split("/")[0]]}
        gone = {f"{area}/{room}".rstrip("/") for area, rooms in PLACES.items() for room in rooms} - set(self.between)
        if missing or gone:
            raise ValueError(f"rooms without a place in experiments/house/picture.py: {sorted(missing)}; places of no "
                             f"room: {sorted(gone)}")
        self.boxes: dict[str, Box] = {}
        self.frames: dict[str, tuple[float, float, float, float]] = {}
        half = (_PAGE - 3 * _MARGIN) / 2
        below = self._area("weft", _MARGIN, _MARGIN, _PAGE - 2 * _MARGIN) + 34
        lower = max(self._area("runtime", _MARGIN, below, half), self._area("models", _PAGE - _MARGIN - half, below,
                                                                             half))
        for area in ("runtime", "models"):
            x, y, width, _ = self.frames[area]
            self.frames[area] = (x, y, width, lower - y)
        self.height = self._area("solver", _MARGIN, lower + 34, _PAGE - 2 * _MARGIN) + _MARGIN
        self._refuse_upward()

    def _area(self, area: str, left: float, top: float, width: float) -> float:
        """Place the boxes of ``area``; gives its lower edge."""
        columns = max(place.column for place in PLACES[area].values()) + 0.5
        step = min((width - 2 * _MARGIN) / columns, _WIDTH + 26)
        shift = left + (width - step * columns) / 2
        for room, place in PLACES[area].items():
            self.boxes[f"{area}/{room}".rstrip("/")] = Box(
                room or "ground floor", shift + place.column * step,
                top + _TITLE + 8 + place.row * (_HEIGHT + _GAP), place.says)
        rows = max(place.row for place in PLACES[area].values()) + 1
        bottom = top + _TITLE + 8 + rows * (_HEIGHT + _GAP) - _GAP + _MARGIN
        self.frames[area] = (left, top, width, bottom - top)
        return bottom

    def _refuse_upward(self) -> None:
        for one, other in self.between.edges:
            a, b = self.boxes[one], self.boxes[other]
            if not (b.y > a.y or (b.y == a.y and one.startswith("weft") and b.x > a.x)):
                raise ValueError(f"{one} imports {other}, which stands no lower in the picture")

    @property
    def arrows(self) -> list[tuple[str, str]]:
        """Inside the areas, without those that follow from others."""
        return [edge for area in ROOMS for edge in sorted(nx.transitive_reduction(self.between.subgraph(
            [room for room in self.between if room.split("/")[0] == area])).edges)]

    def svg(self) -> str:
        """The drawing."""
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_PAGE} {self.height:.0f}" width="{_PAGE}" '
                 f'height="{self.height:.0f}" font-family="Helvetica, Arial, sans-serif">',
                 '<title>The rooms of weft and which imports which</title>',
                 f'<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                 f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{_LINE}"/></marker></defs>',
                 f'<rect width="{_PAGE}" height="{self.height:.0f}" fill="white"/>']
        for area, frame in self.frames.items():
            parts += _frame(area, *frame)
        parts += self._between_areas()
        parts += [_path(points) for points in self._routes()]
        for name, box in self.boxes.items():
            parts += _box(box, _AREAS[name.split("/")[0]][2])
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _routes(self) -> Iterator[Sequence[tuple[float, float]]]:
        arrows = self.arrows
        for one, other in arrows:
            a, b = self.boxes[one], self.boxes[other]
            if a.y == b.y:
                yield (a.x + _WIDTH / 2, a.y + _HEIGHT / 2), (b.x - _WIDTH / 2, b.y + _HEIGHT / 2)
                continue
            leaving = sorted((self.boxes[y].x, y) for x, y in arrows if x == one)
            coming = sorted((self.boxes[x].x, x) for x, y in arrows if y == other)
            start = a.port(_share(leaving.index((b.x, other)), len(leaving)), above=False)
            end = b.port(_share(coming.index((a.x, one)), len(coming)), above=True)
            yield self._around(start, end, (a, b))

    def _around(self, start: tuple[float, float], end: tuple[float, float], ends: Sequence[Box]
                ) -> Sequence[tuple[float, float]]:
        """A straight line; where boxes stand on it, one that passes them by the side with the least way."""
        others = [box for box in self.boxes.values() if box not in ends]
        if not _hit((start, end), others):
            return start, end
        rows = [box for box in others if start[1] < box.y < end[1]]
        sides = sorted({box.x + side * (_WIDTH / 2 + 11) for box in rows for side in (-1, 1)},
                       key=lambda x: abs(x - start[0]) + abs(x - end[0]))
        for x in sides:
            route = (start, (x, start[1] + _GAP * 0.75), (x, end[1] - _GAP * 0.75), end)
            if not _hit(route, others):
                return route
        raise ValueError(f"no way for an arrow from {ends[0].name} to {ends[1].name}: give the rooms other places")

    def _between_areas(self) -> Iterator[str]:
        """One broad arrow for all imports of one area from another."""
        bottom = {area: y + height for area, (_, y, _, height) in self.frames.items()}
        for one, other, x in (("weft", "runtime", 0.25), ("weft", "models", 0.75), ("runtime", "solver", 0.25),
                              ("models", "solver", 0.75), ("weft", "solver", 0.5)):
            if self.between_areas(one, other):
                top, end = bottom[one], self.frames[other][1]
                yield (f'<path d="M{_PAGE * x:.0f} {top + 4:.0f}V{end - 12:.0f}" stroke="{_LINE}" stroke-width="5" '
                       f'fill="none"/><path d="M{_PAGE * x - 10:.0f} {end - 15:.0f}h20l-10 12z" fill="{_LINE}"/>')

    def between_areas(self, one: str, other: str) -> bool:
        """Whether a room of the first area imports one of the second."""
        return any(a.split("/")[0] == one and b.split("/")[0] == other for a, b in self.between.edges)


def _part(room: str) -> str:
    return room.partition("/")[2]


def _share(index: int, count: int) -> float:
    return (index + 1) / (count + 1)


def _hit(route: Sequence[tuple[float, float]], boxes: Sequence[Box]) -> bool:
    """Whether a route comes close to a box."""
    for (x0, y0), (x1, y1) in pairwise(route):
        for box in boxes:
            for step in range(41):
                x, y = x0 + (x1 - x0) * step / 40, y0 + (y1 - y0) * step / 40
                if abs(x - box.x) < _WIDTH / 2 + 6 and box.y - 4 < y < box.y + _HEIGHT + 4:
                    return True
    return False


def _path(points: Sequence[tuple[float, float]]) -> str:
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{way}" stroke="{_LINE}" stroke-width="1.3" fill="none" marker-end="url(#head)"/>'


def _frame(area: str, x: float, y: float, width: float, height: float) -> Iterator[str]:
    title, colour, edge = _AREAS[area]
    yield (f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="8" fill="{colour}" '
           f'stroke="{edge}"/>')
    yield f'<text x="{x + 12:.0f}" y="{y + 20:.0f}" font-size="15" font-weight="bold" fill="{_INK}">{title}</text>'


def _box(box: Box, edge: str) -> Iterator[str]:
    yield (f'<rect x="{box.x - _WIDTH / 2:.1f}" y="{box.y:.1f}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" '
           f'fill="white" stroke="{edge}" stroke-width="1.5"/>')
    yield (f'<text x="{box.x:.1f}" y="{box.y + 16:.1f}" font-size="14" font-weight="bold" text-anchor="middle" '
           f'fill="{_INK}">{escape(box.name)}</text>')
    yield (f'<text x="{box.x:.1f}" y="{box.y + 30.5:.1f}" font-size="11.5" text-anchor="middle" '
           f'fill="#52606d">{escape(box.says)}</text>')


def main() -> int:
    """Draw it, as SVG and PNG."""
    import vl_convert

    drawn = Picture().svg()
    write_atomically(PICTURE, drawn)
    PICTURE.with_suffix(".png").write_bytes(vl_convert.svg_to_png(drawn, scale=1))
    return 0


if __name__ == "__main__":
    main()
