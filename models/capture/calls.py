"""An exported program followed call by call on fake tensors, which have shapes, types and storages but no data.

Nothing is computed, no weight is loaded, and for a file only torch's own operators run. Tensors saved by autograd are
observed by hooks (``torch.autograd.graph.saved_tensors_hooks``), views by their storages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from weft.models.capture.exported import Exported, Meta, Named, Ref, Step
from weft.models.capture.operator_costs import mutated, storage

_TARGET = re.compile(r"torch\.ops\.(?P<space>[A-Za-z]\w*)\.(?P<name>[A-Za-z_]\w*)\.(?P<overload>[A-Za-z]\w*)")

#: Operators of torch with side effects outside its tensors.
_TOUCHES_FILES = {"from_file"}


def follow(exported: Exported, *, trusted: bool = False) -> ProgramRun:
    """Run ``exported`` on fake tensors. With ``trusted``, operators of other loaded libraries run too."""
    run = ProgramRun(exported, trusted)
    with run.mode:
        run.go()
    return run


@dataclass
class TracedCall:
    """One step of the program, run on fake tensors.

    ``reads``, ``weights`` and ``constants`` name its inputs; ``saved`` are its storages kept by autograd, with one
    tensor each. ``function`` is ``None`` if torch could not run it and its results are guesses.
    """

    step: Step
    function: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    reads: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    weight_ids: frozenset[int] = frozenset()
    outputs: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    saved: dict[int, torch.Tensor] = field(default_factory=dict)
    backward: bool = False
    problem: str = ""

    @property
    def kind(self) -> str:
        """The operator's name without its overload; with its library if that is not torch's own."""
        found = _TARGET.fullmatch(self.step.target)
        if found is None:
            return self.step.target.removeprefix("torch.ops.")
        return found["name"] if found["space"] == "aten" else f"{found['space']}.{found['name']}"


class ProgramRun:
    """The program's run: ``calls`` in order, ``values`` by name, and in ``owner`` the tensor for which each storage was
    made.

    ``trained`` and ``held`` are the parameters and the module's other tensors, by their names in the program.
    """

    def __init__(self, exported: Exported, trusted: bool) -> None:
        self.exported, self.trusted, self.mode = exported, trusted, FakeTensorMode()
        self.values: dict[str, torch.Tensor] = {}
        self.trained = {source.name: source.target for source in exported.sources
                        if source.role == "parameter" and exported.metas[source.name].requires_grad}
        self.held = {source.name: source.target for source in exported.sources
                     if source.role != "input" and source.name not in self.trained}
        self.owner: dict[int, str] = {}   # storage -> the name of the tensor, parameter or constant it was made for
        self.changed: dict[int, tuple[int, str]] = {}  # storage -> the last step that wrote into it, and its output
        self.made: dict[str, int] = {}    # name -> the step that made it
        self.calls: list[TracedCall] = []
        self.others: set[str] = set()     # devices other than the CPU

    def go(self) -> None:
        """Make every call once, in order."""
        for source in self.exported.sources:
            value = self.values[source.name] = self.fake(self.exported.metas[source.name])
            self.owner[storage(value)] = source.name
            self.made[source.name] = -1
        for i, step in enumerate(self.exported.steps):
            self.calls.append(self.call(i, step))
        self.mark_backward()

    def fake(self, meta: Meta) -> torch.Tensor:
        if meta.device != "cpu":
            self.others.add(meta.device)
        dtype = getattr(torch, meta.dtype)
        differentiable = dtype.is_floating_point or dtype.is_complex
        return torch.empty_strided(meta.shape, meta.stride, dtype=dtype, device="cpu",
                                   requires_grad=meta.requires_grad and differentiable)

    def call(self, i: int, step: Step) -> TracedCall:
        function, problem = _resolve(step.target, self.trusted)
        arguments, keywords = _real(step.arguments, self.values), _real(step.keywords, self.values)
        call = TracedCall(step, function, arguments, keywords, problem=problem)
        self.classify(call, list(dict.fromkeys(step.reads)))
        results = self.results(call)
        writes = [] if function is None else [storage(tensor) for tensor in mutated(function, arguments, keywords)]
        for name, value in zip(step.outputs, results, strict=False):
            if name is None or not isinstance(value, torch.Tensor):
                continue
            self.values[name], self.made[name] = value, i
            owner = self.owner.setdefault(storage(value), name)
            if owner not in self.trained and owner not in self.held:
                call.outputs.append((name, value))
                if storage(value) in writes:
                    self.changed[storage(value)] = i, name
        return call

    def classify(self, call: TracedCall, names: list[str]) -> None:
        reads, weights, constants = [], [], []
        for name in names:
            owner = self.owner[storage(self.values[name])]
            if owner in self.trained:
                weights.append(owner)
            elif owner in self.held:
                constants.append(owner)
            else:
                reads.append(name)
                when, version = self.changed.get(storage(self.values[name]), (-1, name))
                if when > self.made[name]:
                    reads.append(version)
        call.reads, call.weights = tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(weights))
        call.constants = tuple(dict.fromkeys(constants))
        call.weight_ids = frozenset(id(self.values[name]) for name in names
                                    if self.owner[storage(self.values[name])] in self.trained)

    def results(self, call: TracedCall) -> list[Any]:
        if call.function is not None:
            def keep(tensor: torch.Tensor) -> torch.Tensor:
                call.saved.setdefault(storage(tensor), tensor.detach())
                return tensor.detach()

            try:
                with torch.set_grad_enabled(call.step.grad), saved_tensors_hooks(keep, lambda tensor: tensor):
                    return tree_leaves(call.function(*call.arguments, **call.keywords),
                                       is_leaf=lambda value: value is None)
            except Exception as error:  # torch's own refusals are of many types
                call.problem = f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"
                call.function = None
        made = [None if name is None else self.fake(self.exported.metas[name]) for name in call.step.outputs]
        given = [self.values[name] for name in call.reads] + [self.values[name] for name in call.weights]
        if call.step.grad and any(tensor.requires_grad for tensor in given):
            made = [None if value is None else value.requires_grad_(value.is_floating_point()) for value in made]
            call.saved = {storage(value): value for value in [*given, *made] if value is not None}
        return made

    def tensor_owner(self, name: str) -> str | None:
        """The tensor that owns the storage of ``name``; ``None`` if that is a parameter or a constant."""
        owner = self.owner[storage(self.values[name])]
        return None if owner in self.trained or owner in self.held else owner

    def mark_backward(self) -> None:
        """A call has a backward if its output reaches a result through tensors that require gradients."""
        wanted = {name for name in self.exported.results if name in self.values and self.values[name].requires_grad}
        for call in reversed(self.calls):
            if any(name in wanted for name, _ in call.outputs) and any(v.requires_grad for _, v in call.outputs):
                call.backward = True
                wanted.update(name for name in call.reads if self.values[name].requires_grad)


def _resolve(target: str, trusted: bool) -> tuple[Any, str]:
    """The operator of that name, or ``None`` and the reason why it is not run."""
    found = _TARGET.fullmatch(target)
    if found is None:
        return None, "it is no plain operator"
    if found["space"] != "aten" and not trusted:
        return None, "it is not torch's own, and no code but torch's runs for a file"
    if found["name"] in _TOUCHES_FILES and not trusted:
        return None, "it reads or writes files"
    try:
        function = getattr(getattr(getattr(torch.ops, found["space"]), found["name"]), found["overload"])
    except (AttributeError, RuntimeError):
        return None, f"torch {torch.__version__} does not have it"
    return (function, "") if isinstance(function, torch._ops.OpOverload) else (None, "it is no plain operator")


def _real(value: Any, values: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, Ref):
        return values[value.name]
    if isinstance(value, Named):
        return torch.device("cpu") if value.kind == "device" else getattr(torch, value.name)
    if isinstance(value, list | tuple):
        return type(value)(_real(item, values) for item in value)
    if isinstance(value, Mapping):
        return {key: _real(item, values) for key, item in value.items()}
    return value
