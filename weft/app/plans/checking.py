"""A check of plans: all ranks run their instructions in one process, and the result is compared with one device.

A rank has only the outputs of its parts and of its communications, as where it runs by itself. Parts are computed with
torch, all numbers in fp64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.app.plans.lowering import lower
from weft.models.layouts.layout import Box, slices
from weft.models.transform.plan import Preserved
from weft.models.transform.program import PlanError, PlanOperation, PlanProgram
from weft.runtime.by_hand.instructions import KernelCall, RankProgram

if TYPE_CHECKING:
    import torch

Array: TypeAlias = NDArray[Any]


def computed(program: PlanProgram, operation: PlanOperation, arrays: Sequence[Array], sizes: Mapping[str, int],
             starts: Mapping[str, int]) -> list[Array]:
    """The output of a part of an operator with the given number of indices of each name and their starts."""
    from weft.runtime.by_hand.kernels import run_kernel

    inputs = [_tensor(array, program, name) for array, name in zip(arrays, operation.inputs, strict=True)]
    how = operation.annotation
    call = KernelCall(operation.kind, how.inputs, how.outputs, sizes, starts, _widened(operation.attributes))
    try:
        return [one.numpy() for one in run_kernel(call, inputs)]
    except ValueError as refusal:
        raise PlanError(f"operator {operation.name!r}: {refusal}") from refusal


def _tensor(array: Array, program: PlanProgram, name: str) -> torch.Tensor:
    """``array`` as torch has the tensor ``name``, in fp64 in place of less precise types."""
    import torch

    dtype = _widened(program.tensors[program.terms(name)[0]].dtype or "float64")
    return torch.as_tensor(np.asarray(array)).to(getattr(torch, dtype))


def _widened(value: Any) -> Any:
    """Arguments with fp64 in place of less precise types."""
    if isinstance(value, Mapping):
        return {key: _widened(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_widened, value))
    return "float64" if value in ("float16", "bfloat16", "float32") else value


def run_dense(program: PlanProgram, given: Mapping[str, Array]) -> dict[str, Array]:
    """All tensors of a program on one device, from its inputs, parameters and states."""
    program.require_given(given)
    values = dict(given)

    def value(name: str) -> Array:
        if name in program.sums and name not in values:
            terms = [values[term] for term in program.sums[name]]
            values[name] = sum(terms[1:], terms[0])
        return values[name]

    for operation in program.operations:
        made = computed(program, operation, [value(name) for name in operation.inputs], operation.sizes, {})
        values.update(zip(operation.outputs, made, strict=True))
    for name in program.outputs:
        value(name)
    return values


def run_planned(done: Preserved, given: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a program, and the tensors carried into its next step, assembled from all ranks' pieces.

    Raises :class:`~weft.models.transform.program.PlanError` if a rank reads data that it does not have, or if ranks
    that should hold equal data do not.
    """
    from weft.runtime.by_hand.executor import run_together

    program = done.planned.program
    program.require_given(given)
    wide = replace(done, planned=replace(done.planned, program=replace(
        program, tensors={name: replace(tensor, dtype=_widened(tensor.dtype)) for name, tensor in
                          program.tensors.items()},
        operations=tuple(replace(one, attributes=_widened(one.attributes)) for one in program.operations))))
    ranks = lower(wide, 1 + max(done.planned.device(part) for part in done.order))
    try:
        values = run_together(ranks, {name: _tensor(given[name], program, name) for name in program.given})
    except (LookupError, ValueError) as error:
        raise PlanError(f"{program.name}: a rank reads what it does not have: {error}") from error
    found = {name: sum((_together(program, term, ranks, values) if term in program.producer else
                        np.asarray(given[term]) for term in program.terms(name)),
                       np.zeros(program.tensors[name].shape)) for name in program.outputs}
    for rank, own in zip(ranks, values, strict=True):
        for key, (source, span) in rank.carried.items():
            held, box = rank.given[key]
            made = next(made for made, old in program.carried.items() if old == held)
            _require_same(made, own[source].numpy()[slices(span)], found[made][slices(box)])
    return found


def _together(program: PlanProgram, term: str, ranks: Sequence[RankProgram],
              values: Sequence[Mapping[str, torch.Tensor]]) -> Array:
    """A tensor from the pieces of all ranks that make it; copies must be equal."""
    pieces: dict[tuple[Box, tuple[int, int]], Array] = {}
    for rank, own in zip(ranks, values, strict=True):
        for key, box, value in rank.made.get(term, ()):
            _require_same(term, own[key].numpy(), pieces.setdefault((box, value), own[key].numpy()))
    whole = np.zeros(program.tensors[term].shape)
    for (box, _), array in pieces.items():
        whole[slices(box)] += array
    return whole


def _require_same(name: str, one: Array, other: Array) -> None:
    if not np.allclose(one, other, rtol=1e-9, atol=1e-9, equal_nan=True):
        raise PlanError(f"{name}: ranks that should hold the same hold different numbers")


def error(done: Preserved, given: Mapping[str, Array]) -> float:
    """The largest error of any output of a preserved plan against one device, relative to its largest element (at least
    1)."""
    dense, found = run_dense(done.planned.program, given), run_planned(done, given)
    return max(_error(found[name], dense[name]) for name in done.planned.program.outputs)


def _error(found: Array, dense: Array) -> float:
    """Non-finite values must be the same in both, or the error is infinite."""
    same = (found == dense) | (np.isnan(found) & np.isnan(dense))
    if not (np.isfinite(found) & np.isfinite(dense))[~same].all():
        return math.inf
    largest = float(np.abs(dense, where=np.isfinite(dense), out=np.zeros(dense.shape)).max(initial=0))
    return float(np.abs(np.subtract(found, dense, where=~same, out=np.zeros(dense.shape))).max(initial=0)) / max(
        1.0, largest)
