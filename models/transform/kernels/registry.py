"""What a kernel is, and all of them by name; :func:`operator` registers a user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from numpy.typing import NDArray

from weft.models.transform.annotation import Annotation, Dimensions, PlanError, annotation

__all__ = ["KERNELS", "Array", "Call", "Gradient", "Kernel", "forget", "kernel", "of_input", "operator",
           "own_annotation"]

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Call:
    """One part: its ``annotation``, the ``sizes`` of the names in it and in the ``whole`` operator, and the first index
    of each name that is cut (``starts``)."""

    annotation: Annotation
    sizes: Mapping[str, int]
    whole: Mapping[str, int]
    starts: Mapping[str, int]
    attributes: Mapping[str, Any]

    def flat(self, array: Array, tensor: Dimensions) -> Array:
        """One axis a name."""
        return array.reshape([self.sizes[name] for axis in tensor for name in axis])

    def grouped(self, array: Array, tensor: Dimensions) -> Array:
        """One axis a dimension."""
        return array.reshape(Annotation.shape(tensor, self.sizes))

    def axes(self, names: Sequence[str], tensor: int = 0) -> tuple[int, ...]:
        """Which axes of an input the names are, where each is a dimension of its own."""
        return tuple(i for i, axis in enumerate(self.annotation.inputs[tensor]) if set(axis) & set(names))


@dataclass(frozen=True)
class Gradient:
    """How an input's gradient is computed: the kernel, and what it reads beside the output's gradient: ``i`` and a
    number for an input, ``o0`` for the output."""

    kind: str
    reads: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    """``run`` computes a part; ``gradient`` says how an input's gradient comes about (``None``: it has none)."""

    run: Callable[[Sequence[Array], Call], tuple[Array, ...]]
    gradient: Callable[[int, int, Mapping[str, Any]], Gradient | None] = lambda i, count, attributes: None


KERNELS: dict[str, Kernel] = {}
_OWN: dict[str, Annotation] = {}


def forget(kind: str) -> None:
    """Take back a user's own operator."""
    _OWN.pop(kind, None)
    for known in [name for name in KERNELS if name == kind or name.startswith(f"{kind}_grad")]:
        del KERNELS[known]


def kernel(kind: str) -> Kernel:
    """The kernel of a kind. Raises :class:`~weft.models.transform.annotation.PlanError` for an unknown one."""
    if kind not in KERNELS:
        raise PlanError(f"there is no kernel {kind!r}: register a function of that name with weft.plans.operator")
    return KERNELS[kind]


def operator(how: str, *, gradients: Sequence[Callable[..., Array] | None] = ()) -> Callable[
        [Callable[..., Any]], Callable[..., Any]]:
    """Register a function of numpy arrays as an operator that splits as the annotation ``how`` says.

    Its name is its kind. ``gradients``: for each input a function of the output's gradient and all inputs, or ``None``.
    Raises :class:`~weft.models.transform.annotation.PlanError` for an annotation that means nothing, or a known name.
    """
    found = annotation(how)

    def registered(function: Callable[..., Any]) -> Callable[..., Any]:
        kind = function.__name__
        if kind in KERNELS:
            raise PlanError(f"there is a kernel {kind!r} already")
        count = len(found.inputs)

        def run(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
            made = function(*arrays, **call.attributes)
            return made if isinstance(made, tuple) else (made,)

        def backward(back: Callable[..., Array]) -> Kernel:
            return Kernel(lambda arrays, call: (back(*arrays, **call.attributes),))

        for i, back in enumerate(gradients):
            if back is not None:
                KERNELS[f"{kind}_grad{i}"] = backward(back)
        KERNELS[kind] = Kernel(run, lambda i, _, attributes: Gradient(
            f"{kind}_grad{i}", tuple(f"i{n}" for n in range(count)), attributes)
            if i < len(gradients) and gradients[i] is not None else None)
        _OWN[kind] = found
        return function

    return registered


def own_annotation(kind: str) -> Annotation | None:
    """The annotation of a user's own operator."""
    return _OWN.get(kind)


def of_input(kind: str, reads: tuple[str, ...]) -> Callable[[int, int, Mapping[str, Any]], Gradient | None]:
    """The gradient of an operator of which the first input alone has one."""
    return lambda i, count, attributes: Gradient(kind, reads, attributes) if i == 0 else None
