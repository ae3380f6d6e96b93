"""Stages of a model, by its captured operators or by the submodules that ``split=`` names, which needs no export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.planning.whole_numbers import whole_numbers
from weft.runtime.by_modules.cut import ModuleCut, checked
from weft.runtime.by_modules.traced import Traced
from weft.runtime.captured.captured import Captured, CaptureError, is_on_meta, where
from weft.runtime.captured.cut import CapturedCut
from weft.runtime.captured.division import ModelDivision
from weft.runtime.captured.purity import Purity
from weft.runtime.interface.training import Ports

if TYPE_CHECKING:
    from weft.app.pipeline.planning.measuring import Example

#: A model that was exported, or traced by a run.
Model: TypeAlias = Captured | Traced


def divided(model: Model, places: Sequence[int], purity: Purity | None) -> ModelDivision:
    """The stages of ``model``: cut at operators, or at the submodules of its trace."""
    return ModuleCut(model) if isinstance(model, Traced) else CapturedCut(model, places, purity)


def divided_alike(model: Model, wanted: ModelDivision, purity: Purity | None) -> ModelDivision:
    """``model``, captured for batches of another shape, in the same stages as ``wanted``: equal operators, values
    between stages, and parameters. Only operators that expand a tensor over samples may be missing, as in a batch of
    one sample.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` if they differ.
    """
    places: Sequence[int] = ()
    names: dict[str, str] = {}
    if isinstance(model, Captured) and isinstance(wanted, CapturedCut):
        pairs = list(zip_longest(*([node for node in each.calls if node.target is not torch.ops.aten.expand.default]
                                   for each in (model, wanted.captured))))
        for own, like in pairs:
            if own is None or like is None or own.target != like.target:
                raise CaptureError("the model computes something else for this shape: "
                                   f"{'nothing' if own is None else own.name}{'' if own is None else where(own)} "
                                   f"in place of {'nothing' if like is None else like.name}")
        mine, theirs = ({node: i for i, node in enumerate(each.calls)} for each in (model, wanted.captured))
        places = [next(mine[own] for own, like in pairs if theirs[like] >= place) for place in wanted.places]
        names = {own.name: like.name for own, like in pairs}
    found = divided(model, places, purity)
    ports = {s: Ports(*(tuple(names.get(name, name) for name in own) for own in each))
             for s, each in found.stages(()).ports.items()}
    if ports != wanted.stages(()).ports or [list(map(id, own)) for own in found.parameters] != [
            list(map(id, own)) for own in wanted.parameters]:
        raise CaptureError("for this shape the model's stages exchange other values, or have other parameters")
    return found


def require_split(module: nn.Module, options: PipelineOptions) -> None:
    """Refuse a ``split`` that is no list of names, and one of a model that cannot run."""
    if options.split is None:
        return
    if isinstance(options.split, str) or not isinstance(options.split, Sequence):
        raise CaptureError(f"split is {options.split!r:.60}, it must be a list of names of submodules")
    if is_on_meta(module):
        raise CaptureError("split runs the model, but it is on the meta device: build it with weights, or leave split "
                           "out")


def fixed_places(model: Model, options: PipelineOptions) -> tuple[int, ...] | None:
    """The cuts that the user has fixed; ``None`` if they are searched for. With ``split``, cuts are the numbers of the
    stages."""
    if isinstance(model, Traced):
        return tuple(range(1, len(model.entries)))
    return None if options.cuts is None else tuple(options.cuts)


def stage_counts(model: Model, counts: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """The numbers of stages in ``counts`` that ``model`` can have: all, or that of its trace. Raises
    :class:`~weft.runtime.captured.captured.CaptureError` if a traced model has another number."""
    if not isinstance(model, Traced):
        return counts
    found = len(model.entries)
    if found not in counts:
        raise CaptureError(f"split names {found - 1} submodules, which makes {found} stages, but {ranks} ranks need "
                           f"{' or '.join(map(str, counts))}: name {' or '.join(str(count - 1) for count in counts)}")
    return (found,)


def with_values(example: Example, model: Model) -> Example:
    """``example`` with the values between stages that measurement needs: integers of a captured model, all values of a
    traced one. Raises :class:`~weft.runtime.captured.captured.CaptureError` if the stages' result is not the model's.
    """
    if isinstance(model, Captured):
        return example if is_on_meta(model.model) else replace(
            example, named={**whole_numbers(model, example.leaves), **example.named})
    return replace(example, named={**checked(ModuleCut(model)), **example.named})
