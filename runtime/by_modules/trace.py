"""A trace of a model's run: it finds the values that must pass between stages that begin at submodules.

A submodule with parameters runs in one stage. Submodules that contain a cut or have no parameters run in every stage,
as does the model's own code. A value is *free* if it depends only on inputs, buffers and constants: every stage that
needs it recomputes it. Any other value belongs to the stage that computed it, and is sent to each later stage that
reads it: passes it to its own submodule, computes with it, returns it, or passes its data to Python (``if h.mean() >
0``, ``.item()``), which all later stages then do too.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from weft.runtime.by_modules.calls import (
    READS,
    ValueNames,
    copy_of,
    function_name,
    intercepted,
    is_random,
    users_line,
    version,
)
from weft.runtime.by_modules.traced import ModuleCall, StageEntry, TensorName, Traced, argument_name, merged
from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.errors import raised_at
from weft.runtime.captured.inputs.batch_dims import leaves_of
from weft.runtime.captured.metadata_reads import preserved_state
from weft.runtime.interface.training import Boundary

#: The most restarts of a trace: a tensor assumed to be free was written to.
MAX_RESTARTS = 10
#: The most micro-batches of an example that are traced.
EXAMPLES = 8
#: Types of non-tensor results of a submodule: constants, equal in each call, and numbers, sent as these dtypes.
FIXED = (str, bytes, torch.dtype, torch.device, type(None))
NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def trace(model: nn.Module, examples: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
          split: Sequence[str]) -> Traced:
    """The trace of ``model`` on ``examples``, each the ``(args, kwargs)`` of a micro-batch, cut before the call of each
    submodule named in ``split``. Paths through the model may differ: a value that any of them needs is sent.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for names that are not submodules called once, and for
    values that cannot be sent.
    """
    _require_split(model, split)
    not_free: set[str] = set()
    for _ in range(MAX_RESTARTS):
        traces: list[Traced] = []
        try:
            for args, kwargs in examples[:EXAMPLES]:
                watched = _Trace(copy_of(model), split, not_free)
                traces.append(watched.run(model, tuple(args), dict(kwargs)))
            return merged(traces)
        except _Restart:
            not_free |= watched.not_free
    raise CaptureError("split: tensors are written to again and again between submodules: move that into one")


class _Value(NamedTuple):
    name: str
    stage: int
    free: bool
    input: int | None = None


class _Restart(BaseException):
    pass


def _require_split(model: nn.Module, split: Sequence[str]) -> None:
    known = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    for i, name in enumerate(split):
        if not isinstance(name, str) or name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            raise CaptureError(f"split names {name!r:.60}, which is no submodule of {type(model).__name__}" + (
                f": did you mean {near[0]!r}?" if near else ": see its named_modules()"))
        module = model.get_submodule(name)
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            inner = next((key for key, _ in module.named_children()), "0")
            raise CaptureError(f"split names {name!r}, which is a {type(module).__name__} and never called itself: "
                               f"name one of its members, as {name}.{inner}")
        if name in split[:i]:
            raise CaptureError(f"split names {name!r} twice: name each submodule that begins a stage once")


class _Trace(TorchFunctionMode):
    """A run of the whole model, with a record of the stage that computes and reads each value."""

    def __init__(self, model: nn.Module, split: Sequence[str], not_free: set[str]) -> None:
        super().__init__()
        self.model, self.split, self.not_free, self.known = model, split, set[str](), frozenset(not_free)
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.cuts = {self.paths[id(model.get_submodule(name))]: name for name in split}
        around = {id(model.get_submodule(above)) for path, module in model.named_modules(remove_duplicate=False)
                  if self.paths[id(module)] in self.cuts for above in _above(path)}
        self.through = frozenset(path for path, module in model.named_modules()
                                 if id(module) in around or next(module.parameters(), None) is None)
        self.names = {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}
        self.entries = [StageEntry(None)]
        self.counts, self.inside = ValueNames(), False
        self.values: dict[int, tuple[Tensor, _Value]] = {}  # the tensor too, so that its id is not reused
        self.calls: dict[str, ModuleCall] = {}
        self.boundaries: dict[str, Boundary] = {}
        self.reads: list[tuple[int, _Value]] = []  # stage, value: reads by Python
        self.free_reads: list[tuple[int, int]] = []  # first stage, input: reads by code that every stage runs
        self.changed: dict[str, int] = {}  # the stage that wrote into a value of an earlier stage
        self.arguments: set[int] = set()  # ids of tensor arguments of the submodule that begins this stage

    @property
    def stage(self) -> int:
        return len(self.entries) - 1

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
        leaves, in_spec = tree_flatten((args, kwargs))
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]  # so that ids are unique
        args, kwargs = tree_unflatten(leaves, in_spec)
        inputs = leaves_of(model, args, kwargs)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                self.values[id(leaf)] = leaf, _Value(inputs[i].name, 0, True, i)
        python = random.getstate()
        with preserved_state(model), torch.no_grad(), intercepted(self), self:
            try:
                result = self.model(*args, **kwargs)
            except (CaptureError, _Restart):
                raise
            except Exception as error:  # the user's code may raise anything
                raise CaptureError(f"split: {type(model).__name__} cannot be run on the example: {raised_at(error)}"
                                   ) from error
        if random.getstate() != python:
            raise CaptureError("split: the model draws from Python's own random numbers, which differ between ranks: "
                               "draw with torch.rand")
        for name in self.cuts:
            if name not in {entry.at for entry in self.entries}:
                raise CaptureError(f"split names {name!r}, which is not called in the example: name a submodule that "
                                   "is, once in each forward")
        leaves_out, out_spec = tree_flatten(result)
        self._record_reads([leaf for leaf in leaves_out if isinstance(leaf, Tensor)])
        self._spread_reads()
        for leaf in leaves_out:
            if not isinstance(leaf, (Tensor, *FIXED, *NUMBERS)):
                raise CaptureError(f"split: {type(model).__name__} returns a {type(leaf).__name__}, which is no "
                                   "tensor: return tensors in tuples, lists or dicts, and for a model of transformers "
                                   "give use_cache=False among kwargs")
        results = tuple(TensorName(f"out.{i}") if isinstance(leaf, Tensor) else leaf
                        for i, leaf in enumerate(leaves_out))
        if not any(isinstance(leaf, Tensor) for leaf in leaves_out):
            raise CaptureError(f"split: {type(model).__name__} gives no tensor")
        names: dict[int, str] = {}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            names.setdefault(id(tensor), name)
        crossing = {name for entry in self.entries for name in entry.values}
        return Traced(model, names, in_spec, out_spec, inputs, tuple(leaves), tuple(self.entries), self.calls,
                      {name: own for name, own in self.boundaries.items() if name in crossing or "@" in name}, results,
                      self.through, self.known)

    # -- submodules ----------------------------------------------------------------------------------------------------

    def call(self, plain: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See :class:`~weft.runtime.by_modules.calls.Interceptor`."""
        path = self.paths.get(id(module))
        if path is None or self.inside:
            return plain(module, *args, **kwargs)
        if path in self.cuts:
            self._enter(path, args, kwargs)
        if path in self.through:
            return plain(module, *args, **kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        self._record_reads(given)
        before = [version(leaf) for leaf in given]
        name = self.counts.next(path)
        self.inside = True
        try:
            result = plain(module, *args, **kwargs)
        finally:
            self.inside = False
        self._record_writes([leaf for leaf, was in zip(given, before, strict=True) if version(leaf) != was], path)
        self.entries[-1].modules.setdefault(path, module)
        self._record_results(name, path, result)
        return result

    def _enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(entry.at == path for entry in self.entries):
            raise CaptureError(f"split names {path!r}, which is called several times in one forward: name a submodule "
                               "that is called once")
        leaves, spec = tree_flatten((args, kwargs))
        self.entries.append(entry := StageEntry(path, spec))
        self.arguments = set()
        first: dict[int, int] = {}
        for i, leaf in enumerate(leaves):
            value = self._value(leaf) if isinstance(leaf, Tensor) else None
            if value is not None and not value.free and value.stage == self.stage - 1:
                entry.arguments[i] = first.setdefault(id(leaf), i)
                self.arguments.add(id(leaf))
                self.boundaries[argument_name(path, first[id(leaf)])] = _boundary(leaf)

    def _record_results(self, name: str, path: str, result: Any) -> None:
        leaves, spec = tree_flatten(result)
        found: list[Any] = []
        for i, leaf in enumerate(leaves):
            own = f"{name}.{i}"
            if isinstance(leaf, Tensor):
                if id(leaf) in self.names and isinstance(leaf, nn.Parameter):
                    raise CaptureError(f"split: the submodule {path!r} returns its own parameter, which cannot be "
                                       "sent: return a clone of it")
                self._record(leaf, own, free=False)
                found.append(self.boundaries[own])
            elif isinstance(leaf, tuple(NUMBERS)):
                self.boundaries[own] = Boundary((), NUMBERS[type(leaf)])
                self.reads.append((self.stage, _Value(own, self.stage, False)))
                found.append(type(leaf))
            elif isinstance(leaf, FIXED):
                found.append(leaf)
            else:
                raise CaptureError(f"split: the submodule {path!r} returns a {type(leaf).__name__}, which cannot be "
                                   "sent to another stage: return tensors in tuples, lists or dicts, and for a model "
                                   "of transformers give use_cache=False among kwargs")
        self.calls[name] = ModuleCall(spec, tuple(found))

    # -- torch's functions ---------------------------------------------------------------------------------------------

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        given = kwargs or {}
        if self.inside:
            return func(*args, **given)
        tensors = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
        values = [self._value(leaf) for leaf in tensors]
        free = not is_random(function_name(func)) and all(value.free for value in values)
        before = [version(leaf) for leaf in tensors]
        result = func(*args, **given)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        written = [leaf for leaf, was in zip(tensors, before, strict=True) if version(leaf) != was]
        if function_name(func) in READS:
            self._read(tensors)
        elif made or written:
            self._record_reads(tensors, free)
            self._function(function_name(func), made, written, free)
        return result

    def _function(self, producer: str, made: Sequence[Tensor], written: Sequence[Tensor], free: bool) -> None:
        name = self.counts.next(f"{producer}()")
        self._record_writes(written, producer, free)
        for i, leaf in enumerate(made or written[:1]):
            self._record(leaf, f"{name}.{i}", free)

    def _read(self, tensors: Sequence[Tensor]) -> None:
        for leaf in tensors:
            value = self._value(leaf)
            if isinstance(leaf, nn.Parameter) and id(leaf) in self.names:
                raise CaptureError(f"split: {users_line()} reads the numbers of the parameter "
                                   f"{self.names[id(leaf)]!r} between submodules: move this into a submodule")
            if value.input is not None:
                self.free_reads.append((self.stage, value.input))
            if not value.free:
                self.reads.append((self.stage, value))

    # -- values --------------------------------------------------------------------------------------------------------

    def _value(self, leaf: Tensor) -> _Value:
        if id(leaf) in self.values:
            return self.values[id(leaf)][1]
        if isinstance(leaf, nn.Parameter):
            return _Value(self.names.get(id(leaf), "a parameter"), self.stage, False)
        return _Value("a constant", 0, True)

    def _record(self, leaf: Tensor, name: str, free: bool) -> None:
        free = free and name not in self.known
        self.values[id(leaf)] = leaf, _Value(name, self.stage, free)
        self.boundaries[name] = _boundary(leaf)

    def _record_reads(self, tensors: Sequence[Tensor], free: bool = False) -> None:
        """Record reads by this stage; with ``free``, each later stage reads the inputs too."""
        entry = self.entries[-1]
        for leaf in tensors:
            value = self._value(leaf)
            if id(leaf) not in self.values and isinstance(leaf, nn.Parameter):
                entry.parameters[id(leaf)] = leaf
            elif value.input is not None:
                if free:
                    self.free_reads.append((self.stage, value.input))
                entry.inputs.add(value.input)
            elif not value.free and value.stage < self.stage and id(leaf) not in self.arguments:
                if self.changed.get(value.name, self.stage) < self.stage:
                    raise CaptureError(f"split: at {users_line()} {value.name!r} is read after stage "
                                       f"{self.changed[value.name]} has written into it in place: write x = f(x) there")
                entry.values[value.name] = value.stage

    def _record_writes(self, written: Sequence[Tensor], by: str, free: bool = False) -> None:
        for leaf in written:
            value = self._value(leaf)
            if value.input is not None:
                raise CaptureError(f"split: {by!r} writes into the input {value.name!r} ({users_line()}), which every "
                                   "stage has its own copy of: give it a clone")
            if id(leaf) in self.names and id(leaf) not in self.values:
                raise CaptureError(f"split: {users_line()} writes into {self.names[id(leaf)]!r} between submodules, "
                                   "which every stage would do: move it into a submodule")
            if value.free and not free:
                if value.name == "a constant":
                    raise CaptureError(f"split: {by!r} writes into a tensor that is not made in the forward "
                                       f"({users_line()}): make it there")
                storage = leaf.untyped_storage()._cdata
                self.not_free |= {other.name for tensor, other in self.values.values()
                                  if other.free and tensor.untyped_storage()._cdata == storage}
                raise _Restart
            if not value.free and value.stage < self.stage:
                self.changed[value.name] = self.stage
                self.entries[-1].copies.add(value.name)
                self.entries[-1].copies.update(
                    argument_name(str(self.entries[-1].at), i) for i in set(self.entries[-1].arguments.values()))

    def _spread_reads(self) -> None:
        """Add values that Python reads to the inputs of all later stages."""
        for s, value in self.reads:
            for entry in self.entries[max(s, value.stage + 1):]:
                entry.values[value.name] = value.stage
        for s, place in self.free_reads:
            for entry in self.entries[s:]:
                entry.inputs.add(place)


def _above(path: str) -> list[str]:
    """The names of all modules that contain the one at ``path``: ``""``, ``"a"`` and ``"a.b"`` for ``"a.b.c"``."""
    steps = path.split(".")
    return [".".join(steps[:i]) for i in range(len(steps))]


def _boundary(leaf: Tensor) -> Boundary:
    return Boundary(tuple(leaf.shape), leaf.dtype)
