"""Which placements a bound over placements was proven for: what "optimal over them" covers, and what it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["NOTHING", "OTHERS", "Coverage"]

#: More placements than this are told by their number alone after the first ones: a caption is no list.
_MOST_TOLD = 12
#: What no proof over some placements says.
OTHERS = "other cuts and shapes may be faster"


@dataclass(frozen=True)
class Coverage:
    """``considered``: of each placement its title and its cut, the number of layers on each stage (empty where the
    model is no list of layers)."""

    considered: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, placements: Iterable[tuple[str, Mapping[str, Any]]]) -> Coverage:
        """``placements`` are titles with what schedules say of them (``layers_of_stage``)."""
        return cls(tuple((title, tuple(len(names) for names in details.get("layers_of_stage") or ()))
                         for title, details in placements))

    def text(self) -> str:
        """Such as "the 3 placements considered (1 stage a GPU, I+W; V, 2 chunks, I+W: 2 cuts)"; "" where a problem is
        placed already."""
        if not any(title for title, _ in self.considered):
            return ""
        cuts = Counter(title for title, _ in self.considered)
        told = [title if count == 1 else f"{title}: {count} cuts" for title, count in cuts.items()]
        if len(told) > _MOST_TOLD:
            told = [*told[:_MOST_TOLD], f"{len(told) - _MOST_TOLD} more"]
        number = len(self.considered)
        ending = "; one cut of each" if number > 1 and max(cuts.values()) == 1 else ""
        return ("the one placement considered" if number == 1 else f"the {number} placements considered") + (
            f" ({'; '.join(told)}{ending})")

    def to_json(self) -> list[dict[str, Any]]:
        """Every placement with its cut."""
        return [{"placement": title, "cut": list(cut)} for title, cut in self.considered]


#: Of a problem that is placed already.
NOTHING = Coverage(())
