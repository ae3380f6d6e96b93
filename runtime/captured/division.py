"""What a model is when it has been cut, in whatever way: what the rest of a pipeline asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils._pytree import TreeSpec

from weft.runtime.interface.training import Boundary, Ports

__all__ = ["Division", "InputLeaf", "KnownModel", "Parts"]


class InputLeaf(Protocol):
    """A leaf of the arguments that a model is called with."""

    @property
    def name(self) -> str:
        """What it is called: in a batch, behind :data:`~weft.runtime.captured.cut.BATCH`."""


class KnownModel(Protocol):
    """A model of which it is known what it does, by an export or by a run."""

    @property
    def model(self) -> nn.Module:
        """The model itself."""

    @property
    def inputs(self) -> Sequence[InputLeaf]:
        """The leaves of ``(args, kwargs)``."""

    @property
    def out_spec(self) -> TreeSpec:
        """How its results are put together."""

    @property
    def digest(self) -> str:
        """What tells two models apart."""

    def name_of(self, tensor: Tensor) -> str | None:
        """The model's own name of a parameter or buffer."""

    def unread(self) -> list[str]:
        """The trained parameters that nothing reads."""


class Parts(Protocol):
    """The stages: modules by number (those asked for), ports of all, how every value that passes looks, and the model's
    results: names of values (``str``), and what is no tensor."""

    @property
    def modules(self) -> Mapping[int, nn.Module]:
        """Those that were asked for."""

    @property
    def ports(self) -> Mapping[int, Ports]:
        """Of all stages."""

    @property
    def boundaries(self) -> Mapping[str, Boundary]:
        """Of all values that pass."""

    @property
    def results(self) -> tuple[Any, ...]:
        """The leaves of the model's result."""

    @property
    def untrained(self) -> frozenset[str]:
        """The values that depend on no trained parameter."""


class Division(Protocol):
    """A model cut into ``count`` stages."""

    @property
    def captured(self) -> KnownModel:
        """The model."""

    @property
    def count(self) -> int:
        """The number of stages."""

    @property
    def parameters(self) -> tuple[tuple[nn.Parameter, ...], ...]:
        """The trained parameters that each stage reads."""

    def stages(self, only: Sequence[int] | None = None, plain: bool = False) -> Parts:
        """The stages, or the modules of those in ``only``; ``plain``: as the model's own code is, with random numbers
        that have no seeds."""

    def tensors(self, s: int) -> list[Tensor]:
        """The parameters, buffers and constants that stage ``s`` reads."""

    def ties(self) -> list[dict[int, str]]:
        """Parameters of several stages: by stage, the name in its module."""

    def spans(self) -> tuple[tuple[str, str], ...]:
        """The first and the last operator, or submodule, of each stage."""
