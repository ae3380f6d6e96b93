"""Materialises a model on the meta device: each rank its own stages, and stages under measurement for as long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from weft.runtime.captured.captured import Captured, replace_tensors
from weft.runtime.captured.division import ModelDivision
from weft.runtime.captured.materials import Materials, stand_in
from weft.runtime.checkpoint.weights import named_tensors
from weft.runtime.interface.training import Training


def real(value: Any, device: torch.device) -> Any:
    """``value`` (a tree) with zeros in place of tensors on the meta device."""
    return tree_map(lambda leaf: torch.zeros(leaf.shape, dtype=leaf.dtype, device=device)
                    if isinstance(leaf, Tensor) and leaf.is_meta else leaf, value)


def numbers_for(captured: Captured, cut: ModelDivision, stages: tuple[int, ...], materials: Materials,
                with_the_rest: bool) -> tuple[Captured, dict[str, Tensor]]:
    """``captured`` with the tensors of ``stages`` materialised; ``with_the_rest``: also entries of the state dict that
    no stage reads. And their values by name before rounding to the model's dtype."""
    wanted = [tensor for s in stages for tensor in cut.tensors(s)]
    if with_the_rest:
        read = {id(tensor) for s in range(cut.count) for tensor in cut.tensors(s)}
        wanted += [item.tensor for item in named_tensors(captured.model) if item.is_saved
                   and id(item.tensor) not in read]
    values = materials.of(wanted)
    names = {id(item.tensor): item.name for item in named_tensors(captured.model)}
    precise = {names[own]: value for own, value in values.items()}
    return captured.with_tensors(_rounded(wanted, values)), precise


def built_on_lookup(training: Training, make: Callable[[int], nn.Module], materials: Materials) -> Training:
    """``training`` whose stages are built by ``make`` and materialised at each lookup, so that at most one is in
    memory."""
    return replace(training, stages=BuiltOnLookup(make, tuple(training.stages), materials))


def with_numbers(module: nn.Module, materials: Materials, known: dict[int, Tensor] | None = None) -> nn.Module:
    """Materialise ``module``, a stage of a model on the meta device; the model itself is unchanged. Stages of one rank
    share the tensors in ``known``, by the ``id`` of the model's tensors."""
    known = {} if known is None else known
    wanted = [tensor for tensor in chain(module.parameters(), module.buffers()) if id(tensor) not in known]
    known.update(_rounded(wanted, materials.of(wanted)))
    replace_tensors(module, known)
    return module


class BuiltOnLookup(Mapping[int, nn.Module]):
    """Stages by number, each built at every lookup."""

    def __init__(self, make: Callable[[int], nn.Module], stages: tuple[int, ...], materials: Materials) -> None:
        self.make, self.stages, self.materials = make, stages, materials

    def __getitem__(self, stage: int) -> nn.Module:
        if stage not in self.stages:
            raise KeyError(stage)
        return with_numbers(self.make(stage), self.materials)

    def __iter__(self) -> Iterator[int]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)


def _rounded(wanted: list[Tensor], values: Mapping[int, Tensor]) -> dict[int, Tensor]:
    return {id(tensor): stand_in(tensor, values[id(tensor)].to(tensor.dtype)) for tensor in wanted
            if id(tensor) in values}
