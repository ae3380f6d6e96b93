"""Putting an operator graph together, one operator after another.

What all operators have in common is worked out here, so that a block says only what is its own: names (a layer's
operators, tensors and parameters carry the layer's name in front), whether there is a backward at all, and the bytes
that each pass moves:

* forward: reads its inputs and parameters, writes its outputs and what it keeps for itself;
* input gradient: reads the gradients of its outputs, what it kept and its parameters, writes its inputs' gradients;
* weight gradient: reads the gradients of its outputs and what it kept for it, writes its parameters' gradients.

Blocks that move more (a loss in several kernels) say so themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from weft.models.graph.operators import Layout, Operator, OperatorGraph, Parameter, Split, Tensor, Work

__all__ = ["DTYPES", "Builder", "Passes", "Saved"]

#: Bytes of one element.
DTYPES: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "bool": 1}


@dataclass(frozen=True, slots=True)
class Passes:
    """The work of an operator's passes.

    ``flops``: floating-point operations of the forward, and of each gradient unless ``input_flops`` says otherwise for
    the input's. A :class:`Work` given for a pass replaces what is worked out for it.
    """

    flops: float = 0.0
    input_flops: float | None = None
    forward: Work | None = None
    input_grad: Work | None = None
    weight_grad: Work | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """Tensors beside an operator's inputs and outputs, and which of all of them stay.

    ``keeps``: for its backward. ``deferred``: of these, until its weight gradient (``None``: that runs in the
    input-gradient pass). ``internal``: tensors that it makes for itself; those not kept are its workspace.
    """

    keeps: Sequence[Tensor] = ()
    deferred: Sequence[Tensor] | None = None
    internal: Sequence[Tensor] = ()


_NO_WORK, _NOTHING = Passes(), Saved()


class Builder:
    """An operator graph in the making.

    ``dtype``: what activations and parameters are stored in. Without ``training`` nothing is kept and nothing has a
    backward. ``dropout`` off leaves dropout operators out, as inference does.
    """

    def __init__(self, name: str, *, dtype: str = "float16", training: bool = True, dropout: bool = True) -> None:
        self.name = name
        self.dtype = dtype
        self.training = training
        self.dropout = dropout and training
        self._operators: list[Operator] = []
        self._inputs: list[Tensor] = []
        self._constant: set[str] = set()  # tensors without a gradient
        self._layer = ""
        self._parameter_scope: str | None = None
        self._grad = training

    # -- names ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Operators made inside belong to layer ``name``."""
        before, self._layer = self._layer, name
        try:
            yield
        finally:
            self._layer = before

    @contextmanager
    def forward_only(self, scope: str | None = None) -> Iterator[None]:
        """Operators made inside keep nothing and have no backward; nor has what reads only them.

        Their parameters are named as those of layer ``scope`` (default: of their own layer), to be shared with it.
        """
        before = self._grad, self._parameter_scope
        self._grad, self._parameter_scope = False, scope
        try:
            yield
        finally:
            self._grad, self._parameter_scope = before

    def _named(self, name: str) -> str:
        return f"{self._layer}.{name}" if self._layer else name

    # -- tensors -------------------------------------------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int], dtype: str | None = None) -> Tensor:
        """A tensor that comes from outside the model; it has no gradient."""
        made = _tensor(name, shape, dtype or self.dtype)
        self._inputs.append(made)
        self._constant.add(name)
        return made

    def tensor(self, name: str, shape: Sequence[int], dtype: str | None = None, base: Tensor | None = None) -> Tensor:
        """A tensor of the current layer; with ``base`` a view of that one."""
        made = _tensor(self._named(name), shape, dtype or self.dtype)
        return made if base is None else replace(made, base=base.name)

    def parameter(self, name: str, *shape: int, dtype: str | None = None) -> Parameter:
        """A trained tensor of the current layer."""
        count = math.prod(shape)
        scope = self._parameter_scope if self._parameter_scope is not None else self._layer
        return Parameter(f"{scope}.{name}" if scope else name, count, count * DTYPES[dtype or self.dtype], tuple(shape))

    # -- operators -----------------------------------------------------------------------------------------------------

    def add(self, kind: str, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *,
            work: Passes = _NO_WORK, parameters: Sequence[Parameter] = (), saved: Saved = _NOTHING,
            splits: Iterable[Split] = ()) -> Operator:
        """One operator. Its outputs have a gradient if an input or a parameter has one."""
        needs_input_grad = [t for t in inputs if t.name not in self._constant and _is_float(t)]
        backward = self._grad and bool(needs_input_grad or parameters)
        if not backward:
            self._constant.update(tensor.name for tensor in outputs)
        internal, keeps, deferred = saved.internal, saved.keeps, saved.deferred
        read, written, kept = _bytes(inputs), _bytes(outputs), _bytes(keeps)
        weights = sum(parameter.bytes for parameter in parameters)
        grads = _bytes(t for t in outputs if _is_float(t))
        held = tuple(dict.fromkeys(tensor.name for tensor in keeps)) if backward else ()
        working = 0 if backward else _bytes(internal)
        operator = Operator(
            name=self._named(name), kind=kind, layer=self._layer,
            forward=work.forward or Work(work.flops, read + weights, written + _bytes(internal)),
            inputs=tuple(dict.fromkeys(tensor.name for tensor in inputs)), outputs=tuple(outputs),
            input_grad=None if not (backward and needs_input_grad) else work.input_grad or Work(
                work.flops if work.input_flops is None else work.input_flops, grads + kept + weights,
                _bytes(needs_input_grad)),
            weight_grad=None if not (backward and parameters) else work.weight_grad or Work(
                work.flops, grads + _bytes(deferred or ()), weights),
            parameters=tuple(parameters), internal=tuple(internal) if backward else (), keeps=held,
            deferred=tuple(t.name for t in deferred) if backward and parameters and deferred is not None else None,
            workspace=working, splits=tuple(split for split in splits if split.size > 1))
        self._operators.append(operator)
        return operator

    def graph(self, *outputs: Tensor) -> OperatorGraph:
        """The finished graph; ``outputs`` leave the model."""
        return OperatorGraph(self.name, tuple(self._operators), tuple(self._inputs),
                             tuple(tensor.name for tensor in outputs))

    # -- splits --------------------------------------------------------------------------------------------------------

    def along(self, dimension: str, axis: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor],
              parameters: Sequence[Parameter] = ()) -> Split:
        """Everything cut along the same ``axis``, as batch and sequence are."""
        return Split(dimension, outputs[0].shape[axis], _laid(inputs, axis), _laid(outputs, axis),
                     frozenset(parameter.name for parameter in parameters))


def _tensor(name: str, shape: Sequence[int], dtype: str) -> Tensor:
    return Tensor(name, math.prod(shape) * DTYPES[dtype], tuple(shape), dtype)


def _is_float(tensor: Tensor) -> bool:
    return "float" in tensor.dtype


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum({tensor.name: tensor.bytes for tensor in tensors}.values())


def _laid(tensors: Sequence[Tensor], layout: Layout) -> dict[str, Layout]:
    return {tensor.name: layout for tensor in tensors}
