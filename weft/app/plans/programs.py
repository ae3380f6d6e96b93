"""A model as a program for planning.

User-defined operators: an annotation for plans, a function of tensors to run them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from weft.models.transform.backward import OWN
from weft.models.transform.program import PlanError, annotation

if TYPE_CHECKING:
    from torch.nn import Module

    from weft.models.transform.program import PlanProgram

def program(source: str | os.PathLike[str] | Module, inputs: tuple[Any, ...] | None = None,
            keywords: Mapping[str, Any] | None = None) -> PlanProgram:
    """The operators of a model with their splits: of a ``.pt2`` file, or of a module called with ``inputs``.

    ``notes`` of the result name the unknown operators, which every device computes whole. A module that writes into
    views is exported again in functional form. Raises :class:`weft.models.capture.exported.ExportFault`, and
    :class:`~weft.models.transform.program.PlanError` for a file of one that does, and for a module that writes into its
    inputs or parameters.
    """
    import tempfile
    from pathlib import Path

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


def operator(how: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of tensors, and of attributes by keyword, as an operator that splits as ``how`` says.

    Its name is its kind; its gradients are autograd's. Raises :class:`~weft.models.transform.program.PlanError` for a
    meaningless annotation, or a known name.
    """
    from weft.runtime.by_hand.kernels import in_torch

    found = annotation(how)

    def registered(function: Callable[..., Any]) -> Callable[..., Any]:
        kind = function.__name__
        try:
            in_torch(kind)(function)
        except ValueError as refusal:
            raise PlanError(str(refusal)) from None
        OWN[kind] = found
        return function

    return registered


def forget(kind: str) -> None:
    """Unregister a user-defined operator."""
    from weft.runtime.by_hand.kernels import forget as without

    OWN.pop(kind, None)
    without(kind)
