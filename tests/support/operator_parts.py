"""Every operator of a program in parts, on its own: in numpy and with torch, against the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from weft.models.transform.annotation import PlanError
from weft.models.transform.kernels import Array, Call, kernel
from weft.models.transform.planned import Part, Planned, split
from weft.models.transform.program import Operation, Program
from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels import run_kernel

__all__ = ["differences", "wrong_types"]

_Run = Callable[[Operation, Sequence[Array], Call], Sequence[Array]]


def _in_numpy(operation: Operation, arrays: Sequence[Array], call: Call) -> Sequence[Array]:
    return kernel(operation.kind).run([array * 1.0 for array in arrays], call)


def _with_torch(operation: Operation, arrays: Sequence[Array], call: Call) -> Sequence[Array]:
    how = operation.annotation
    made = run_kernel(KernelCall(operation.kind, how.inputs, how.outputs, call.sizes, call.starts,
                                 operation.attributes), [torch.tensor(array) for array in arrays])
    return [one.numpy() for one in made]


def differences(program: Program, values: Mapping[str, Array],
                whole: Mapping[str, Array]) -> Iterator[tuple[str, str, float]]:
    """Operator and cut, library, and the largest difference of the parts together from ``values``, which one device
    has; the whole itself is among them. ``whole``: tensors of the types that torch is to have."""
    base = Planned(program, devices={operation.name: (0,) for operation in program.operations})
    for operation in program.operations:
        for along in (None, *operation.annotation.names):
            planned = base
            if along is not None:
                size = operation.sizes[along]
                parts = next((n for n in range(2, size + 1) if size % n == 0), 0)
                try:
                    planned = split(base, operation.name, along, parts, in_turn=True)
                except PlanError:
                    continue
            for library, run in (("numpy", _in_numpy), ("torch", _with_torch)):
                apart = _apart(planned, operation, values, whole, run)
                yield f"{operation.name} ({operation.annotation}) along {along}", library, apart


def wrong_types(program: Program, given: Mapping[str, Array]) -> list[str]:
    """Tensors that torch makes of another type than the program says, all operators run whole."""
    values = {name: torch.tensor(array) for name, array in given.items()}

    def value(name: str) -> torch.Tensor:
        terms = [values[term] for term in program.terms(name)]
        return sum(terms[1:], terms[0])

    wrong = []
    for operation in program.operations:
        how = operation.annotation
        call = KernelCall(operation.kind, how.inputs, how.outputs, operation.sizes, {}, operation.attributes)
        made = run_kernel(call, [value(name) for name in operation.inputs])
        for name, tensor in zip(operation.outputs, made, strict=True):
            values[name] = tensor
            if str(tensor.dtype).removeprefix("torch.") != (program.tensors[name].dtype or "float64"):
                wrong.append(f"{name} of {operation.kind}: {tensor.dtype}")
    return wrong


def _apart(planned: Planned, operation: Operation, values: Mapping[str, Array], whole: Mapping[str, Array],
           run: _Run) -> float:
    totals = [np.zeros(np.shape(values[name])) for name in operation.outputs]
    for part in planned.parts(operation.name):
        made = _part(planned, operation, part, whole, run)
        for total, array, dimensions in zip(totals, made, operation.annotation.outputs, strict=True):
            total[_slices(planned, part, dimensions)] += array
    return max(float(np.abs(total - values[name]).max(initial=0)) / max(1.0, float(np.abs(values[name]).max(initial=0)))
               for total, name in zip(totals, operation.outputs, strict=True))


def _part(planned: Planned, operation: Operation, part: Part, whole: Mapping[str, Array], run: _Run) -> Sequence[Array]:
    spans = planned.spans(part)
    call = Call(operation.annotation, {name: high - low for name, (low, high) in spans.items()}, operation.sizes,
                {name: low for name, (low, _) in spans.items()}, operation.attributes)
    arrays = [whole[name][_slices(planned, part, dimensions)] for name, dimensions in zip(
        operation.inputs, operation.annotation.inputs, strict=True)]
    return run(operation, arrays, call)


def _slices(planned: Planned, part: Part, dimensions: tuple[tuple[str, ...], ...]) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in planned.box(part, dimensions))
