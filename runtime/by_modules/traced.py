"""What is known of a model that was run once and watched: what its stages, which begin at submodules, take and give."""

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
    """The name of a tensor, which tells it from a string that a model returns."""

    __slots__ = ()


class ModuleCall(NamedTuple):
    """What a submodule that one stage runs gave: how it is nested, and of each leaf how it looks, the type of a number,
    or what it is."""

    spec: TreeSpec
    leaves: tuple[Any, ...]


@dataclass
class StageEntry:
    """What a stage takes and does. ``at``: the submodule that it begins with; ``arguments``: the places among the
    leaves of its arguments of what the stage before made, with the place where the same tensor stands first; ``values``
    of earlier stages, by name; ``inputs``: the leaves of the model's arguments whose numbers it reads; ``modules`` that
    it runs; ``parameters`` that are read beside them; ``copies``: names of what it writes to and must not own."""

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
    """A model, run once and watched, and what its stages take and give.

    ``in_leaves`` and ``inputs`` are the leaves of ``(args, kwargs)``, ``results`` those of what it returned (names of
    tensors that are made, places of inputs given back, or what they are); ``looks`` of every value that crosses;
    ``through``: the submodules that every stage goes through; ``ghostly``: tensors that are made of inputs, but written
    to with what is not.
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
        """What tells two models, cut so, apart."""
        looks = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in self.in_leaves]
        facts = [looks, sorted(self.looks.items()), self.results, str(self.out_spec),
                 [(e.at, e.arguments, e.values, sorted(e.inputs), list(e.modules), sorted(e.copies))
                  for e in self.entries], [(name, tuple(p.shape)) for name, p in self.model.named_parameters()]]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def name_of(self, tensor: Tensor) -> str | None:
        """The model's own first name of a parameter or buffer."""
        return self.names.get(id(tensor))

    def unread(self) -> list[str]:
        """The trained parameters of no submodule that was called, which nothing else read either."""
        read = {id(p) for entry in self.entries for module in entry.modules.values() for p in module.parameters()}
        read.update(key for entry in self.entries for key in entry.parameters)
        return [name for name, p in self.model.named_parameters() if p.requires_grad and id(p) not in read]


def merged(found: Sequence[Traced]) -> Traced:
    """What all of ``found``, traces of one model on several micro-batches, need.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` where they differ in what must be the same.
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
    """What the leaf at ``place`` of the arguments of a stage's first submodule is called."""
    return f"{path}@{place}"
