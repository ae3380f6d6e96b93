"""The trace of a model: the inputs and outputs of its stages, which begin at submodules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import TreeSpec

from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.inputs.batch_dims import Leaf
from weft.runtime.interface.training import Boundary


class TensorName(str):
    """The name of a tensor, distinct from a string that a model returns."""

    __slots__ = ()


class ModuleCall(NamedTuple):
    """The results of a submodule that one stage runs: their nesting, and for each leaf its shape and type, the type of
    a number, or its value."""

    spec: TreeSpec
    leaves: tuple[Any, ...]


@dataclass
class StageEntry:
    """A stage's inputs and work. ``at``: its first submodule; ``arguments``: the places among the leaves of its
    arguments of tensors that the stage before made, with the first place of the same tensor; ``values`` of earlier
    stages, by name; ``inputs``: the leaves of the model's arguments whose numbers it reads; ``modules`` that it runs;
    ``parameters`` that are read beside them; ``copies``: names of values that it writes to and must copy."""

    at: str | None
    spec: TreeSpec | None = None
    arguments: dict[int, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    inputs: set[int] = field(default_factory=set)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    parameters: dict[int, nn.Parameter] = field(default_factory=dict)
    copies: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Traced:
    """The trace of a model, with the inputs and outputs of its stages.

    ``in_leaves`` and ``inputs`` are the leaves of ``(args, kwargs)``, ``results`` those of its result (names of
    tensors, places of returned inputs, or values); ``looks`` of every value that passes; ``through``: the submodules
    that every stage runs; ``ghostly``: tensors made from inputs, but written to with other values.
    """

    model: nn.Module
    names: Mapping[int, str]
    in_spec: TreeSpec
    out_spec: TreeSpec
    inputs: tuple[Leaf, ...]
    in_leaves: tuple[Any, ...]
    entries: tuple[StageEntry, ...]
    calls: Mapping[str, ModuleCall]
    looks: Mapping[str, Boundary]
    results: tuple[Any, ...]
    through: frozenset[str]
    ghostly: frozenset[str]

    def sizes(self) -> tuple[float | None, ...]:
        """The bytes of each value that passes."""
        return tuple(float(looks.nbytes) for looks in self.looks.values())

    @property
    def digest(self) -> str:
        """The identity of a model with this cut."""
        looks = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in self.in_leaves]
        facts = [looks, sorted(self.looks.items()), self.results, str(self.out_spec),
                 [(e.at, e.arguments, e.values, sorted(e.inputs), list(e.modules), sorted(e.copies))
                  for e in self.entries], [(name, tuple(p.shape)) for name, p in self.model.named_parameters()]]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def name_of(self, tensor: Tensor) -> str | None:
        """The model's own first name of a parameter or buffer."""
        return self.names.get(id(tensor))

    def unread(self) -> list[str]:
        """The trained parameters that are in no called submodule and not read otherwise."""
        read = {id(p) for entry in self.entries for module in entry.modules.values() for p in module.parameters()}
        read.update(key for entry in self.entries for key in entry.parameters)
        return [name for name, p in self.model.named_parameters() if p.requires_grad and id(p) not in read]


def merged(found: Sequence[Traced]) -> Traced:
    """The union of ``found``, traces of one model on several micro-batches.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` if they differ where they must not.
    """
    first = found[0]
    looks: dict[str, Boundary] = {}
    calls: dict[str, ModuleCall] = {}
    for each in found:
        if [e.at for e in each.entries] != [e.at for e in first.entries] or any(
                one.spec != other.spec for one, other in zip(each.entries, first.entries, strict=True)):
            raise CaptureError("split: the stages do not begin in one order, with the same arguments, in all "
                               "micro-batches of the example: name submodules that are always called")
        if each.out_spec != first.out_spec or each.results != first.results:
            raise CaptureError(f"split: {type(first.model).__name__} does not return the same in all micro-batches of "
                               "the example")
        for name, one in each.looks.items():
            if looks.setdefault(name, one) != one:
                raise CaptureError(f"split: {name!r}, which passes between submodules, has the shape {one.shape} in "
                                   f"one micro-batch of the example and {looks[name].shape} in another: it must "
                                   "always look the same")
        calls = {**each.calls, **calls}
        for mine, other in zip(first.entries, each.entries, strict=True):
            mine.arguments.update({**other.arguments, **mine.arguments})
            mine.values.update({**other.values, **mine.values})
            mine.inputs |= other.inputs
            mine.modules.update({**other.modules, **mine.modules})
            mine.parameters.update(other.parameters)
            mine.copies |= other.copies
    return replace(first, calls=calls, looks=looks)


def argument_name(path: str, place: int) -> str:
    """The name of the leaf at ``place`` of the arguments of a stage's first submodule."""
    return f"{path}@{place}"
