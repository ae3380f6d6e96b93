"""Which placements and cuts a bound over placements was proven for: what "optimal over them" covers, and what not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: More placements than this are told by their number alone after the first ones: a caption is no list.
_MOST_TOLD = 12
_EVERY = "every cut of "


def others(covered: str) -> str:
    """What no proof over what is ``covered`` says."""
    return "other shapes may be faster" if covered.startswith(_EVERY) else "other cuts and shapes may be faster"


def cut_of_details(details: Mapping[str, Any]) -> tuple[int, ...]:
    """The number of layers on each stage of a placement; empty where the model is no list of layers."""
    return tuple(len(names) for names in details.get("layers_of_stage") or ())


@dataclass(frozen=True)
class Coverage:
    """``considered``: of each placement its title and its cut, the number of layers on each stage (empty where the
    model is no list of layers). ``spaces``: of all cuts of some layers how they lie on GPUs, how their backward runs,
    and how many layers there are; ``alike``: in them all stages are alike, in others they are not."""

    considered: tuple[tuple[str, tuple[int, ...]], ...]
    spaces: tuple[tuple[str, str, int], ...] = ()
    alike: bool = False

    @classmethod
    def of(cls, placements: Iterable[tuple[str, Mapping[str, Any]]],
           spaces: Iterable[tuple[str, str, int]] = (), *, alike: bool = False) -> Coverage:
        """``placements`` are titles with what schedules say of them (``layers_of_stage``)."""
        return cls(tuple((title, cut_of_details(details)) for title, details in placements), tuple(spaces), alike)

    def text(self) -> str:
        """Such as "the 3 placements considered (1 stage a GPU, I+W; V, 2 chunks, I+W: 2 cuts)", or "every cut of the 26
        layers (1 stage a GPU; V, 2 chunks; I+W)"; "" where a problem is placed already."""
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
    """The placements that are listed, by title with the number of their cuts."""
    told = [title if count == 1 else f"{title}: {count} cuts" for title, count in cuts.items()]
    if len(told) > _MOST_TOLD:
        told = [*told[:_MOST_TOLD], f"{len(told) - _MOST_TOLD} more"]
    number = sum(cuts.values())
    if not number:
        return ""
    ending = "; one cut of each" if number > 1 and max(cuts.values()) == 1 else ""
    what = "other placement" if beside else "placement"
    return (f"the one {what} considered" if number == 1 else f"the {number} {what}s considered") + (
        f" ({'; '.join(told)}{ending})")


#: Of a problem that is placed already.
NOTHING = Coverage(())
