"""Properties of operators that an export drops: the ``torch.utils.checkpoint`` call that contains an operator, and,
under ``torch.autocast``, whether gradients are recorded.

During an export, checkpointed code (reentrant or not) runs directly, and its operators are marked with the number of
the call. Of nested calls the outermost counts, as it is the one whose inputs torch keeps.

Also custom backwards: an export keeps only the operators of the forward, so a user's ``torch.autograd.Function`` or a
hook on a tensor would change gradients without a trace in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint as torchs
from torch import Tensor, nn
from torch.autograd import Function
from torch.fx import Node
from torch.fx.proxy import TracerBase

_Below: Any = Function.__mro__[1]
#: The key of a mark in a node's ``meta``: torch copies the value of this key when it retraces a graph.
_MARK = "ac_graph_id"


class _Mark(NamedTuple):
    call: int | None
    graded: bool


class Marks(NamedTuple):
    """``seen``: for each checkpoint, whether it has its own policy; ``inside``: the number of the running one, or none.
    """

    seen: list[bool]
    inside: list[int]


def mark_of(node: Node) -> tuple[int | None, bool] | None:
    """The mark of ``node`` (checkpoint, whether gradients are recorded) as plain values; ``None`` without a mark."""
    mark = node.meta.get(_MARK)
    return (mark.call, mark.graded) if isinstance(mark, _Mark) else None


def put_mark(node: Node, call: int | None, graded: bool) -> None:
    """Set the mark of ``node`` to a result of :func:`mark_of`."""
    node.meta[_MARK] = _Mark(call, graded)


def checkpointed(nodes: Iterable[Node]) -> dict[str, int]:
    """The number of the checkpoint that contains each of ``nodes``, by name; nodes outside of checkpoints are absent.
    """
    calls = {node.name: mark.call for node in nodes if isinstance(mark := node.meta.get(_MARK), _Mark)}
    return {name: call for name, call in calls.items() if call is not None}


def is_ungraded(node: Node) -> bool:
    """Whether the mark of ``node`` says that it ran under ``torch.no_grad``."""
    mark = node.meta.get(_MARK)
    return isinstance(mark, _Mark) and not mark.graded


@contextmanager
def marked() -> Iterator[Marks]:
    """Inside, mark traced operators."""
    marks = Marks([], [])
    seen, inside = marks
    graded = [True]  # the state in the graph: torch 2.6 traces ``_set_grad_enabled`` and does not run it
    create_node = TracerBase.create_node

    @contextmanager
    def marking(has_policy: bool = False) -> Iterator[None]:
        if inside:
            yield
            return
        inside.append(len(seen))
        seen.append(has_policy)
        try:
            yield
        finally:
            inside.clear()

    class Reentrant:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            torchs.check_backward_validity(args)  # warns where torch would give the inside no gradients
            learns = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)
            with marking(), torch.set_grad_enabled(learns):
                return function(*args)

    def plain(function: object, preserve: object, context_fn: object, *settings: Any, **kwargs: Any) -> Iterator[None]:
        with marking(context_fn is not torchs.noop_context_fn):
            yield

    def create_marked(tracer: TracerBase, *args: Any, **settings: Any) -> Node:
        node = create_node(tracer, *args, **settings)
        if getattr(node.target, "__name__", "") == "_set_grad_enabled":
            graded[0] = bool(node.args[0])
        mark = _Mark(inside[0] if inside else None, graded[0] and torch.is_grad_enabled())
        node.meta.setdefault(_MARK, mark)
        return node

    private = {"CheckpointFunction": Reentrant, "_checkpoint_without_reentrant_generator": plain}
    originals = {name: getattr(torchs, name) for name in private}  # they exist in torch 2.1 to 2.13
    for name, own in private.items():
        setattr(torchs, name, own)
    TracerBase.create_node = create_marked  # type: ignore[assignment]
    try:
        yield marks
    finally:
        TracerBase.create_node = create_node  # type: ignore[method-assign]
        for name, own in originals.items():
            setattr(torchs, name, own)


@contextmanager
def own_backwards(model: nn.Module) -> Iterator[list[str]]:
    """The custom backwards of ``model``, as words for a message: its hooks, and those found while it runs inside."""
    found = [f"a backward hook on {name or 'itself'}" for name, module in model.named_modules()
             if module._backward_hooks or module._backward_pre_hooks]
    register_hook: Callable[..., Any] = torch.Tensor.register_hook

    def applied(cls: type[Function], *args: Any, **settings: Any) -> Any:
        if not cls.__module__.startswith("torch."):
            found.append(f"torch.autograd.Function {cls.__name__}")
        return super(_Below, cls).apply(*args, **settings)

    def hooked(tensor: Tensor, hook: Callable[..., Any]) -> Any:
        found.append("a hook on a tensor")
        return register_hook(tensor, hook)

    _Below.apply = classmethod(applied)  # Function.apply calls it; the model may hold a reference to Function.apply
    torch.Tensor.register_hook = hooked  # type: ignore[method-assign]
    try:
        yield found
    finally:
        del _Below.apply
        torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
