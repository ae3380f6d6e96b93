"""The second way from a model to stages: cut before submodules that the user names, in place of an export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from weft.app.pipeline.options import PipelineOptions
from weft.runtime.by_modules.check import checked
from weft.runtime.by_modules.cut import ModuleCut
from weft.runtime.by_modules.trace import Traced
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import Cut
from weft.runtime.captured.division import Division
from weft.runtime.captured.purity import Purity

if TYPE_CHECKING:
    from weft.app.pipeline.decide import Example

__all__ = ["Model", "divided", "require_split", "require_stages", "with_values"]

#: A model that is known by an export, or by a run.
Model: TypeAlias = Captured | Traced


def divided(model: Model, places: Sequence[int], purity: Purity | None) -> Division:
    """The stages of ``model``: cut at operators, or at the submodules that it was traced for."""
    return ModuleCut(model) if isinstance(model, Traced) else Cut(model, places, purity)


def require_split(options: PipelineOptions) -> None:
    """Refuse a ``split`` that is no list of names, or that stands beside ``cuts``."""
    if options.split is None:
        return
    if isinstance(options.split, str) or not isinstance(options.split, Sequence):
        raise CaptureError(f"split is {options.split!r:.60}, it must be a list of names of submodules")
    if options.cuts is not None:
        raise CaptureError("cuts and split both say where the model is cut: give one of them")


def require_stages(traced: Traced, ranks: int, count: int | None) -> None:
    """Refuse another number of stages than ``count``, or, without, than one or two a rank."""
    found = len(traced.entries)
    if found not in ({count} if count is not None else {ranks, 2 * ranks}):
        wanted = count if count is not None else ranks
        raise CaptureError(f"split names {found - 1} submodules, which makes {found} stages, but {wanted} are needed "
                           f"on {ranks} ranks: name {wanted - 1}")


def with_values(example: Example, model: Model) -> Example:
    """``example`` with all that passes between stages in it, where these are measured on such. Raises
    :class:`~weft.runtime.captured.captured.CaptureError` for stages that do not compute what the model does."""
    if not isinstance(model, Traced):
        return example
    return replace(example, named={**checked(ModuleCut(model)), **example.named})
