"""An exported program as its file states it: what it starts from, its calls, and what is known of each tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

__all__ = ["ExportError", "Exported", "Meta", "Named", "Ref", "Source", "Step"]


class ExportError(ValueError):
    """A file that is no exported program, or one of another version; the message names the file and what to do."""


class Ref(NamedTuple):
    """An argument that is a tensor of the program, by name."""

    name: str


class Named(NamedTuple):
    """An argument that is a constant of torch: ``torch.<name>``, or a device."""

    kind: Literal["constant", "device"]
    name: str


@dataclass(frozen=True, slots=True)
class Meta:
    """What is known of a tensor: sizes and strides in elements, type, device, and whether it needs a gradient."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that the program starts from. ``target``: its name in the module (of an input, its own name)."""

    name: str
    role: Literal["parameter", "buffer", "constant", "input"]
    target: str


@dataclass(frozen=True, slots=True)
class Step:
    """One call. ``outputs`` name its results in order (``None``: no tensor). ``module``: path of the ``nn.Module`` it
    was made in, ``module_type`` that module's class. ``grad``: false inside ``torch.no_grad``."""

    name: str
    target: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    outputs: tuple[str | None, ...]
    module: str
    module_type: str
    grad: bool = True


@dataclass(frozen=True)
class Exported:
    """A program: where it starts, its calls in order, the names of the tensors it returns, and all tensors' metas."""

    name: str
    torch_version: str
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    metas: Mapping[str, Meta]
    notes: tuple[str, ...] = ()
