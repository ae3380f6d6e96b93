"""A trace of one run of a model's forward: it shows whether a cached capture is of the model in its current state.

Two models with the same computation are captured as the same graph, whatever their source. A run is traced at two
levels. ``calls`` are the torch functions that the model's code calls, module by module, each with the state of
gradients and autocast: an export that follows the same path makes the same calls. ``digest`` also covers all operators
that run on inputs, parameters, buffers and other tensors (the last ones with their data), their other arguments, and
their checkpoints.
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

from weft.runtime.captured.marks import Marks, marked, own_backwards
from weft.runtime.captured.metadata_reads import FunctionWatch, preserved_state

#: Types of arguments that ``repr`` identifies.
PLAIN = (int, float, complex, bool, str, slice, type(None), torch.dtype, torch.device, torch.layout,
         torch.memory_format)
_MODULES_OWN = set(vars(nn.Module()))
#: Attributes of a tensor that are tensors: reading them is a call.
TENSORS = {"T", "H", "mT", "mH", "data", "grad", "real", "imag"}


@dataclass
class ForwardCalls:
    """``lines``: the calls of the model's code; ``changes``: whether a run changes attributes of modules."""

    model: nn.Module
    lines: list[str] = field(default_factory=list)
    changes: bool = False

    def see(self, func: Callable[..., Any], given: object) -> None:
        """Record a call of ``func`` with ``given``. Reading a tensor's metadata does not count as a call."""
        name = _name(func)
        if name.startswith("get ") and name.removeprefix("get ") not in TENSORS:
            return
        self.lines.append(f"{name} {[_shown(leaf) for leaf in tree_leaves(given)]} {_state()}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, record calls while the model runs."""
        model, names = self.model, {id(module): name for name, module in self.model.named_modules()}
        own, forward = vars(model).get("forward"), model.forward

        @wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            before = plain_attributes(model)
            with FunctionWatch(self.see):  # entered here to be the innermost mode
                result = forward(*args, **kwargs)
            self.changes = plain_attributes(model) != before  # compared here, as an export reverts changes
            return result

        def enter(module: nn.Module, given: Any) -> None:
            if id(module) in names:  # an export wraps the model in other modules
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
    """Hashes all operators that run inside, with the checkpoint state in ``marks``, into ``digest``. ``names``: of
    existing tensors. ``known``: whether all arguments could be identified.
    """

    def __init__(self, names: Mapping[Tensor, str], marks: Marks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.marks, self.digest, self.known = marks, hashlib.sha256(), True
        self.identifiers, self.count = WeakIdKeyDictionary(), count()  # of each live tensor
        for tensor, name in names.items():
            self.identifiers[tensor] = name

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing here is compiled, and torch would import all of dynamo (over a second) to find that out."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        given, spec = tree_flatten((args, kwargs))
        inputs = [self.identified(leaf) for leaf in given]
        result = func(*args, **kwargs or {})
        outputs = [self.identified(leaf, new=True) for leaf in tree_leaves(result)]
        self.digest.update(f"{func} {spec} {inputs} {outputs} {self.marks}\n".encode())
        return result

    def identified(self, leaf: Any, new: bool = False) -> str:
        """An identifier of ``leaf``. An output of an operator (``new``) gets the next number; any other new tensor is
        identified by its data."""
        if not isinstance(leaf, Tensor):
            self.known &= isinstance(leaf, PLAIN)
            return f"{type(leaf).__name__} {leaf!r}"
        if (name := self.identifiers.get(leaf)) is None:  # type: ignore[no-untyped-call]
            name = self.identifiers[leaf] = f"#{next(self.count)}" if new else f"={data_hash(leaf)}"
        return f"{name} {metadata_of(leaf)}"


def data_hash(tensor: Tensor) -> str:
    """A hash of a tensor's data."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def metadata_of(tensor: Tensor) -> str:
    """A tensor's dtype, shape, strides and device as text."""
    return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.device}"


@dataclass(frozen=True)
class RunTrace:
    """One run: its ``calls`` and ``digest``, for each of its checkpoints whether it has its own policy, and the
    ``result``."""

    calls: tuple[str, ...]
    digest: str
    checkpoints: tuple[bool, ...]
    result: Any


def trace_run(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> RunTrace | None:
    """The trace of ``model``, run as an export would run it; its state is restored. ``None`` if the run fails, has a
    custom backward, which an export drops, or an argument that cannot be identified."""
    names = dict[Tensor, str]()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        names.setdefault(tensor, name)
    for i, leaf in enumerate(tree_leaves((args, kwargs))):
        if isinstance(leaf, Tensor):
            names.setdefault(leaf, f"{i}")
    try:
        with (preserved_state(model), restored(model), own_backwards(model) as lost, marked() as marks, _exporting(),
              saved_tensors_hooks(lambda tensor: None, lambda nothing: nothing)):  # there is no backward
            calls, operators = ForwardCalls(model), _Operators(names, marks)
            with calls.watching(), operators:
                result = model(*args, **kwargs)
            given = [operators.identified(leaf) for leaf in tree_leaves(result)]
    except Exception:  # the model's code may raise anything; the export reports it
        return None
    if lost or not operators.known or torch.is_inference_mode_enabled():
        return None
    operators.digest.update("\n".join((*calls.lines, repr(given), str(tree_flatten(result)[1]))).encode())
    return RunTrace(tuple(calls.lines), operators.digest.hexdigest(), tuple(marks.seen), result)


def plain_attributes(model: nn.Module) -> dict[str, str]:
    """The ``repr`` of the attributes of modules that consist of plain values (:data:`PLAIN`), by dotted name."""
    return {f"{path}.{name}".lstrip("."): repr(value) for path, module in model.named_modules()
            for name, value in vars(module).items() if name not in _MODULES_OWN
            and all(isinstance(leaf, PLAIN) for leaf in tree_leaves(value))}


def changed_attributes(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[str], bool]:
    """The plain attributes that a run of ``model`` changes, and whether later runs compute something else because of
    that."""
    states, runs = [plain_attributes(model)], [trace_run(model, args, kwargs)]
    with restored(model):
        for _ in range(2):
            with preserved_state(model), torch.no_grad():
                model(*args, **kwargs)
            states.append(plain_attributes(model))
            runs.append(trace_run(model, args, kwargs))
    digests = [run.digest if run is not None else "" for run in runs]
    before, after = states[:2] if digests[0] != digests[1] == digests[2] else states[1:]
    return [name for name, value in after.items() if before.get(name) != value], (
        "" not in digests and len(set(digests)) > 1)


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restore on exit the attributes of all modules, hooks included."""
    saved = [(table, dict(table)) for own in map(vars, model.modules())
             for table in (own, *(value for value in own.values() if type(value) in (dict, OrderedDict)))]
    try:
        yield
    finally:
        for table, before in saved:
            table.clear()
            table.update(before)


@contextmanager
def _exporting() -> Iterator[None]:
    """Inside, ``torch.compiler.is_exporting()`` and ``is_compiling()`` are true."""
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
    """A tensor's dtype and shape, which an export has too; of an object not in :data:`PLAIN`, its type."""
    if isinstance(leaf, Tensor):
        return f"{leaf.dtype}{tuple(leaf.shape)}"
    return repr(leaf) if isinstance(leaf, PLAIN) else type(leaf).__name__


def _state() -> str:
    return f"{torch.is_grad_enabled()} " + " ".join(
        f"{torch.is_autocast_enabled(kind)} {torch.get_autocast_dtype(kind)}" for kind in ("cpu", "cuda"))
