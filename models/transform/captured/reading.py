"""The program of an exported module, or of a file of one."""

from __future__ import annotations

import os

from weft.models.capture.exported import Exported
from weft.models.transform.captured.writer import Writer
from weft.models.transform.program import Program

__all__ = ["program_of", "read_program"]


def read_program(path: str | os.PathLike[str]) -> Program:
    """The program in a ``.pt2`` file of ``torch.export.save``. Raises
    :class:`~weft.models.capture.exported.ExportError`; nothing of the file is run."""
    from weft.models.capture.exported_file import read_exported

    return program_of(read_exported(path))


def program_of(exported: Exported) -> Program:
    """The program of an exported module; parameters go by their names in the module.

    ``notes`` of the result name the operators that are not known, and are computed whole.
    """
    writer = Writer(exported)
    for step in exported.steps:
        writer.write(step)
    return writer.build()
