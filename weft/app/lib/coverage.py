"""The placements and cuts for which a bound over placements was proven: the scope of "optimal over them"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Beyond this many placements a caption gives only their number.
_MOST_TITLES = 12
_EVERY = "every cut of "


def others(covered: str) -> str:
    """The part outside every proof over ``covered``."""
    return "other shapes may be faster" if covered.startswith(_EVERY) else "other cuts and shapes may be faster"


def cut_of_details(details: Mapping[str, Any]) -> tuple[int, ...]:
    """The number of layers on each stage of a placement; empty if the model is not a list of layers."""
    return tuple(len(names) for names in details.get("layers_of_stage") or ())


@dataclass(frozen=True)
class Coverage:
    """``considered``: each placement's title and cut, the number of layers on each stage (empty if the model is not a
    list of layers). ``spaces``: for all cuts of some layers, their layout on GPUs, their kind of backward, and the
    number of layers; ``alike``: whether all their stages are alike."""

    considered: tuple[tuple[str, tuple[int, ...]], ...]
    spaces: tuple[tuple[str, str, int], ...] = ()
    alike: bool = False

    @classmethod
    def of(cls, placements: Iterable[tuple[str, Mapping[str, Any]]],
           spaces: Iterable[tuple[str, str, int]] = (), *, alike: bool = False) -> Coverage:
        """``placements`` are titles with their schedules' entries (``layers_of_stage``)."""
        return cls(tuple((title, cut_of_details(details)) for title, details in placements), tuple(spaces), alike)

    def text(self) -> str:
        """Such as "the 3 placements considered (1 stage a GPU, I+W; V, 2 chunks, I+W: 2 cuts)", or "every cut of the 26
        layers (1 stage a GPU; V, 2 chunks; I+W)"; "" if the problem is already placed."""
        if not any(title for title, _ in self.considered):
            return ""
        whole = {f"{layout}, {backward}" for layout, backward, _ in self.spaces}
        cuts = Counter(title for title, _ in self.considered if title not in whole)
        return " and ".join(filter(None, (self._spaces(), _placements(cuts, bool(whole)))))

    def _spaces(self) -> str:
        if not self.spaces:
            return ""
        layouts = list(dict.fromkeys(layout for layout, _, _ in self.spaces))
        backwards = list(dict.fromkeys(backward for _, backward, _ in self.spaces))
        return f"{_EVERY}the {self.spaces[0][2]} layers ({'; '.join(layouts)}; {' or '.join(backwards)}" + (
            "; all stages alike)" if self.alike else ")")

    def to_json(self) -> list[dict[str, Any]]:
        """Every placement with its cut."""
        return [{"placement": title, "cut": list(cut)} for title, cut in self.considered]


def _placements(cuts: Counter[str], beside: bool) -> str:
    """The listed placements, by title with the number of their cuts."""
    titles = [title if count == 1 else f"{title}: {count} cuts" for title, count in cuts.items()]
    if len(titles) > _MOST_TITLES:
        titles = [*titles[:_MOST_TITLES], f"{len(titles) - _MOST_TITLES} more"]
    number = sum(cuts.values())
    if not number:
        return ""
    ending = "; one cut of each" if number > 1 and max(cuts.values()) == 1 else ""
    what = "other placement" if beside else "placement"
    return (f"the one {what} considered" if number == 1 else f"the {number} {what}s considered") + (
        f" ({'; '.join(titles)}{ending})")


#: For a problem that is already placed.
NOTHING = Coverage(())
