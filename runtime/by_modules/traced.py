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
    """The results of a submodule: their structure, and for each leaf its shape and dtype, the type of a number, or the
    constant."""

    spec: TreeSpec
    leaves: tuple[Any, ...]


@dataclass
class StageEntry:
    """A stage's inputs and modules. ``at``: the path of its first submodule, ``None`` for the first stage; ``spec``:
    the structure of that submodule's arguments. ``arguments``: the places among their leaves of tensors that the
    previous stage computed, each with the first place of the same tensor. ``values``: the stage of each value received
    by name. ``inputs``: the numbers of the leaves of the model's arguments whose data it reads. ``modules``: the
    submodules that it runs, by path. ``parameters``: those that the code between submodules reads, by ``id``.
    ``copies``: the names of received values that it writes into, and so must copy."""

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

    ``in_leaves`` and ``inputs``: the leaves of ``(args, kwargs)``. ``results``: the leaves of its result, names of
    tensors or constants. ``boundaries``: the shape and dtype of every value between stages, by name. ``through``: the
    paths of the submodules that every stage runs. ``not_free``: the names of values computed from inputs alone into
    which other values are written.
    """

    model: nn.Module
    names: Mapping[int, str]
    in_spec: TreeSpec
    out_spec: TreeSpec
    inputs: tuple[Leaf, ...]
    in_leaves: tuple[Any, ...]
    entries: tuple[StageEntry, ...]
    calls: Mapping[str, ModuleCall]
    boundaries: Mapping[str, Boundary]
    results: tuple[Any, ...]
    through: frozenset[str]
    not_free: frozenset[str]

    def sizes(self) -> tuple[float | None, ...]:
        """The bytes of each value between stages."""
        return tuple(float(boundary.nbytes) for boundary in self.boundaries.values())

    @property
    def digest(self) -> str:
        """A hash of the model's parameters, its inputs and this cut."""
        leaves = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in self.in_leaves]
        facts = [leaves, sorted(self.boundaries.items()), self.results, str(self.out_spec),
                 [(e.at, e.arguments, e.values, sorted(e.inputs), list(e.modules), sorted(e.copies))
                  for e in self.entries], [(name, tuple(p.shape)) for name, p in self.model.named_parameters()]]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def name_of(self, tensor: Tensor) -> str | None:
        """The model's first name of a parameter or buffer."""
        return self.names.get(id(tensor))

    def unread(self) -> list[str]:
        """The trained parameters that neither a called submodule has nor other code reads."""
        read = {id(p) for entry in self.entries for module in entry.modules.values() for p in module.parameters()}
        read.update(key for entry in self.entries for key in entry.parameters)
        return [name for name, p in self.model.named_parameters() if p.requires_grad and id(p) not in read]


def merged(traces: Sequence[Traced]) -> Traced:
    """The union of ``traces`` of one model on several micro-batches; the entries of the first are changed.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` if they differ in the order of stages, in results, or
    in the shape of a value.
    """
    first = traces[0]
    boundaries: dict[str, Boundary] = {}
    calls: dict[str, ModuleCall] = {}
    for each in traces:
        if [e.at for e in each.entries] != [e.at for e in first.entries] or any(
                one.spec != other.spec for one, other in zip(each.entries, first.entries, strict=True)):
            raise CaptureError("split: the stages do not begin in one order, with the same arguments, in all "
                               "micro-batches of the example: name submodules that are always called")
        if each.out_spec != first.out_spec or each.results != first.results:
            raise CaptureError(f"split: {type(first.model).__name__} does not return the same in all micro-batches of "
                               "the example")
        for name, one in each.boundaries.items():
            if boundaries.setdefault(name, one) != one:
                raise CaptureError(f"split: {name!r}, which passes between submodules, has the shape {one.shape} in "
                                   f"one micro-batch of the example and {boundaries[name].shape} in another: it must "
                                   "always look the same")
        calls = {**each.calls, **calls}
        for mine, other in zip(first.entries, each.entries, strict=True):
            mine.arguments.update({**other.arguments, **mine.arguments})
            mine.values.update({**other.values, **mine.values})
            mine.inputs |= other.inputs
            mine.modules.update({**other.modules, **mine.modules})
            mine.parameters.update(other.parameters)
            mine.copies |= other.copies
    return replace(first, calls=calls, boundaries=boundaries)


def argument_name(path: str, place: int) -> str:
    """The name of the leaf at ``place`` of the arguments of a stage's first submodule."""
    return f"{path}@{place}"
