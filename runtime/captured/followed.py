"""The computation of a model's forward in a run: it shows whether a kept capture is of the model as it is now.

Two models with the same computation are captured as the same graph, whatever their source. So a run is followed at two
levels. ``calls`` are the torch functions that the model's own code calls, module by module, with the state of
gradients, autocast and checkpoints of each call: an export of the model makes the same calls, or has taken another
path. ``digest`` covers in addition all operators that ran on tensors of this run, parameters, buffers and other
tensors, these with their numbers, and all their other arguments.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, wraps
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from weft.runtime.captured.looks import FunctionWatch, untouched
from weft.runtime.captured.marks import Marks, marked, own_backwards

#: Types of operators' arguments that are identified by ``repr``.
PLAIN = (int, float, complex, bool, str, slice, type(None), torch.dtype, torch.device, torch.layout,
         torch.memory_format)
_MODULES_OWN = set(vars(nn.Module()))
#: Attributes of a tensor that are tensors.
TENSORS = {"T", "H", "mT", "mH", "data", "grad", "real", "imag"}


@dataclass
class ForwardCalls:
    """What the model's own code calls, and whether it changes attributes of modules."""

    model: nn.Module
    lines: list[str] = field(default_factory=list)
    changes: bool = False

    def see(self, func: Callable[..., Any], given: object) -> None:
        """Record a call of ``func`` with ``given``. Reading a tensor's shape or the like is not a call: an export reads
        it too.
        """
        name = _name(func)
        if name.startswith("get ") and name.removeprefix("get ") not in TENSORS:
            return
        self.lines.append(f"{name} {[_shown(leaf) for leaf in tree_leaves(given)]} {_state()}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, calls are recorded while the model runs."""
        model, names = self.model, {id(module): name for name, module in self.model.named_modules()}
        own, forward = vars(model).get("forward"), model.forward

        @wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            before = plain_attributes(model)
            with FunctionWatch(self.see):  # as the innermost of the modes there are then
                result = forward(*args, **kwargs)
            self.changes = plain_attributes(model) != before  # an export takes changes back
            return result

        def enter(module: nn.Module, given: Any) -> None:
            if id(module) in names:  # an export has other modules around the model
                self.lines.append(f"> {names[id(module)]}")

        def leave(module: nn.Module, given: Any, result: Any) -> None:
            if id(module) in names:
                self.lines.append("<")

        hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
        vars(model)["forward"] = watched
        try:
            yield
        finally:
            vars(model).pop("forward") if own is None else vars(model).update(forward=own)
            for hook in hooks:
                hook.remove()


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``digest``: of all operators that run inside, with their checkpoint of ``marks``; ``names`` of the existing
    tensors.
    """

    def __init__(self, names: Mapping[Tensor, str], marks: Marks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.marks, self.digest, self.known = marks, hashlib.sha256(), True
        self.numbers, self.count = WeakIdKeyDictionary(), count()  # of each live tensor
        for tensor, name in names.items():
            self.numbers[tensor] = name

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing of it is compiled; to find that out, torch would import all of dynamo, which takes over a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        given, spec = tree_flatten((args, kwargs))
        told = [self.said(leaf) for leaf in given]
        found = func(*args, **kwargs or {})
        made = [self.said(leaf, new=True) for leaf in tree_leaves(found)]
        self.digest.update(f"{func} {spec} {told} {made} {self.marks}\n".encode())
        return found

    def said(self, leaf: Any, new: bool = False) -> str:
        """An identifier of ``leaf``: for a tensor not made by an operator, its numbers (``new``: an operator makes
        it)."""
        if not isinstance(leaf, Tensor):
            self.known &= isinstance(leaf, PLAIN)
            return f"{type(leaf).__name__} {leaf!r}"
        if (name := self.numbers.get(leaf)) is None:  # type: ignore[no-untyped-call]
            name = self.numbers[leaf] = f"#{next(self.count)}" if new else f"={numbers_of(leaf)}"
        return f"{name} {looks_of(leaf)}"


def numbers_of(tensor: Tensor) -> str:
    """A hash of the numbers of a tensor."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def looks_of(tensor: Tensor) -> str:
    """A tensor's type, shape, strides and device as text."""
    return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.device}"


@dataclass(frozen=True)
class Followed:
    """A run's computation, for each checkpoint in it whether it has its own policy, and the ``result``."""

    calls: tuple[str, ...]
    digest: str
    checkpoints: tuple[bool, ...]
    result: Any


def followed(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Followed | None:
    """Run ``model`` as an export would, and restore it; ``None`` if that fails, or if the run does things that an
    export does not keep or that cannot be followed."""
    names = dict[Tensor, str]()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        names.setdefault(tensor, name)
    for i, leaf in enumerate(tree_leaves((args, kwargs))):
        if isinstance(leaf, Tensor):
            names.setdefault(leaf, f"{i}")
    try:
        with (untouched(model), as_it_was(model), own_backwards(model) as lost, marked() as marks, _exporting(),
              saved_tensors_hooks(lambda tensor: None, lambda nothing: nothing)):  # nothing goes back
            calls, operators = ForwardCalls(model), _Operators(names, marks)
            with calls.watching(), operators:
                result = model(*args, **kwargs)
            given = [operators.said(leaf) for leaf in tree_leaves(result)]
    except Exception:  # anything that the model's own code raises: an export says why
        return None
    if lost or not operators.known or torch.is_inference_mode_enabled():
        return None
    operators.digest.update("\n".join((*calls.lines, repr(given), str(tree_flatten(result)[1]))).encode())
    return Followed(tuple(calls.lines), operators.digest.hexdigest(), tuple(marks.seen), result)


def plain_attributes(model: nn.Module) -> dict[str, str]:
    """How the numbers, words and rows of such that modules have as attributes are written, by name."""
    return {f"{path}.{name}".lstrip("."): repr(value) for path, module in model.named_modules()
            for name, value in vars(module).items() if name not in _MODULES_OWN
            and all(isinstance(leaf, PLAIN) for leaf in tree_leaves(value))}


def changed(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Which of these a run of ``model`` changes so that the next one does something else, and ``True``; or, where none
    does, which each run changes."""
    states, runs = [plain_attributes(model)], [followed(model, args, kwargs)]
    with as_it_was(model):
        for _ in range(2):
            with untouched(model), torch.no_grad():
                model(*args, **kwargs)
            states.append(plain_attributes(model))
            runs.append(followed(model, args, kwargs))
    digests = [run.digest if run is not None else "" for run in runs]
    before, after = states[:2] if digests[0] != digests[1] == digests[2] else states[1:]
    return [name for name, value in after.items() if before.get(name) != value], (
        "" not in digests and len(set(digests)) > 1)


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Afterwards the attributes of all modules are those that they were, hooks among them."""
    kept = [(held, dict(held)) for own in map(vars, model.modules())
            for held in (own, *(value for value in own.values() if type(value) in (dict, OrderedDict)))]
    try:
        yield
    finally:
        for held, before in kept:
            held.clear()
            held.update(before)


@contextmanager
def _exporting() -> Iterator[None]:
    """Inside, a model that checks whether it is being exported finds that it is."""
    flags = {name: getattr(torch.compiler, name) for name in ("_is_compiling_flag", "_is_exporting_flag")
             if hasattr(torch.compiler, name)}
    for name in flags:
        setattr(torch.compiler, name, True)
    try:
        yield
    finally:
        for name, value in flags.items():
            setattr(torch.compiler, name, value)


@cache
def _name(func: Callable[..., Any]) -> str:
    if getattr(func, "__name__", "") == "__get__":
        return f"get {func.__self__.__name__}"  # type: ignore[attr-defined]
    return f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', None) or func}"


def _shown(leaf: Any) -> str:
    """A tensor by its type and shape, as in an export; an object not in :data:`PLAIN` by its type."""
    if isinstance(leaf, Tensor):
        return f"{leaf.dtype}{tuple(leaf.shape)}"
    return repr(leaf) if isinstance(leaf, PLAIN) else type(leaf).__name__


def _state() -> str:
    return f"{torch.is_grad_enabled()} " + " ".join(
        f"{torch.is_autocast_enabled(kind)} {torch.get_autocast_dtype(kind)}" for kind in ("cpu", "cuda"))
