"""The common interface of commands' results: a table, numbers, and files of the numbers or of a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from weft.solver.io.writing import write_atomically
from weft.text.tables import table_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from weft.app.lib.sources import PathLike
    from weft.solver.schedule import Schedule

#: The endings that :meth:`SavedResult.save` understands.
OUTPUTS = (".html", ".svg", ".png", ".json")


class Tabular:
    """A result whose ``str()`` is its table, of :attr:`WIDTH` columns unless a terminal sets the width."""

    __slots__ = ()
    WIDTH: ClassVar[int] = 140

    def table(self) -> RenderableType:
        """The table, to be printed by rich."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data."""
        raise NotImplementedError

    def __str__(self) -> str:
        return table_text(self.table(), self.WIDTH)


class SavedResult(Tabular):
    """A result that can be drawn, and saved as its numbers or as one ``answer`` in their place."""

    @property
    def answer(self) -> Schedule | None:
        """The resulting schedule, if the result is one."""
        return None

    def draw(self, path: PathLike, title: str | None) -> None:
        """Draw it to ``path``."""
        raise NotImplementedError

    def save(self, path: PathLike, *, title: str | None = None) -> None:
        """Write the picture (``.html``, ``.svg``, ``.png``), or the numbers (``.json``; a single schedule as
        ``weft.schedule/1``), to ``path``.

        Raises ``ValueError`` for another ending and ``OSError`` if the file cannot be written.
        """
        if Path(path).suffix.lower() != ".json":
            self.draw(path, title)
        elif self.answer is None:
            write_atomically(path, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")
        else:
            from weft.solver.io.schedule_files import save_schedule

            save_schedule(self.answer, path)
