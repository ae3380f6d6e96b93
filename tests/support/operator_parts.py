"""Every operator of a program in parts, on its own, against the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from weft.app.plans.checking import Array, computed
from weft.models.transform.planned import Part, Planned
from weft.models.transform.program import PlanError, PlanOperation, PlanProgram
from weft.models.transform.transformations import split
from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels import run_kernel


def differences(program: PlanProgram, values: Mapping[str, Array]) -> Iterator[tuple[str, float]]:
    """Operator and cut, and the largest difference of the parts together from ``values``, which one device has; the
    whole itself is among them."""
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
            yield f"{operation.name} ({operation.annotation}) along {along}", _apart(planned, operation, values)


def wrong_types(program: PlanProgram, given: Mapping[str, Array]) -> list[str]:
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


def _apart(planned: Planned, operation: PlanOperation, values: Mapping[str, Array]) -> float:
    totals = [np.zeros(np.shape(values[name])) for name in operation.outputs]
    for part in planned.parts(operation.name):
        for total, array, dimensions in zip(totals, _part(planned, operation, part, values),
                                            operation.annotation.outputs, strict=True):
            total[_slices(planned, part, dimensions)] += array
    return max(float(np.abs(total - values[name]).max(initial=0)) / max(1.0, float(np.abs(values[name]).max(initial=0)))
               for total, name in zip(totals, operation.outputs, strict=True))


def _part(planned: Planned, operation: PlanOperation, part: Part, values: Mapping[str, Array]) -> Sequence[Array]:
    spans = planned.spans(part)
    arrays = [values[name][_slices(planned, part, dimensions)] for name, dimensions in zip(
        operation.inputs, operation.annotation.inputs, strict=True)]
    return computed(planned.program, operation, arrays, {name: high - low for name, (low, high) in spans.items()},
                    {name: low for name, (low, _) in spans.items()})


def _slices(planned: Planned, part: Part, dimensions: tuple[tuple[str, ...], ...]) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in planned.box(part, dimensions))
