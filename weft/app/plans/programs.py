"""A model as a program that can be planned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn import Module

    from weft.models.transform.program import Program

__all__ = ["program"]


def program(source: str | os.PathLike[str] | Module, inputs: tuple[Any, ...] | None = None,
            keywords: Mapping[str, Any] | None = None) -> Program:
    """The operators of a model, each with how it splits: of a ``.pt2`` file, or of a module called with ``inputs``.

    ``notes`` of the result name the operators that are not known; every device computes all of those. A module that
    writes into views is exported once more, as one that does not. Raises
    :class:`weft.models.capture.exported.ExportError`, and :class:`~weft.models.transform.annotation.PlanError` for a
    file of one that does, and for a module that writes into its inputs or parameters.
    """
    import tempfile
    from pathlib import Path

    from weft.models.transform.annotation import PlanError
    from weft.models.transform.captured import read_program

    if isinstance(source, str | os.PathLike):
        return read_program(source)
    from weft.models.capture.capture import save_exported

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{type(source).__name__}.pt2"
        save_exported(source, inputs or (), path, keywords)
        try:
            return read_program(path)
        except PlanError as error:
            if "shares its memory with views" not in str(error):
                raise
        save_exported(source, inputs or (), path, keywords, functional=True)
        return read_program(path)
