"""An independent check of plans: every part runs on a virtual device with separate memory, and the result is compared
with one device.

A virtual device has only the outputs of its parts and of its communications; the check reports a part that reads
anything else. It does not depend on how communications were derived: a device's pieces are assembled by counting how
often each element of each term is present, collectives run as defined in :mod:`weft.models.layouts.values`, and a
part's inputs must be complete, each element once. Parts are computed as on ranks, with torch, all numbers in fp64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.models.layouts.layout import Box, intersection, shape_of, slices, within
from weft.models.layouts.steps import LayoutStep
from weft.models.layouts.values import Array, applied
from weft.models.transform.plan import Preserved
from weft.models.transform.planned import Part, Planned, View
from weft.models.transform.preserving import Communication, serving
from weft.models.transform.program import PlanError, PlanOperation, PlanProgram
from weft.runtime.by_hand.instructions import KernelCall


def computed(program: PlanProgram, operation: PlanOperation, arrays: Sequence[Array], sizes: Mapping[str, int],
             starts: Mapping[str, int]) -> list[Array]:
    """The output of a part of an operator with the given number of indices of each name and their starts."""
    import torch

    from weft.runtime.by_hand.kernels import run_kernel

    types = [program.tensors[program.terms(name)[0]].dtype or "float64" for name in operation.inputs]
    inputs = [torch.as_tensor(np.asarray(array)).to(getattr(torch, _widened(dtype)))
              for array, dtype in zip(arrays, types, strict=True)]
    how = operation.annotation
    call = KernelCall(operation.kind, how.inputs, how.outputs, sizes, starts, _widened(operation.attributes))
    try:
        return [one.numpy() for one in run_kernel(call, inputs)]
    except ValueError as refusal:
        raise PlanError(f"operator {operation.name!r}: {refusal}") from refusal


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


def run_planned(planned: Planned, joined: Sequence[Communication], order: Sequence[Part],
                given: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a program, and the tensors carried into its next step, assembled from the virtual devices.

    Raises :class:`~weft.models.transform.program.PlanError` if a part reads data that its device does not have, or if
    devices that should hold equal data do not.
    """
    planned.program.require_given(given)
    return _VirtualDevices(planned, joined, given).go(order)


def error(done: Preserved, given: Mapping[str, Array]) -> float:
    """The largest error of any output of a preserved plan against one device, relative to its largest element (at least
    1)."""
    program = done.planned.program
    dense, found = run_dense(program, given), run_planned(done.planned, done.joined, done.order, given)
    return max(_error(found[name], dense[name]) for name in program.outputs)


def _error(found: Array, dense: Array) -> float:
    """Non-finite values must be the same in both, or the error is infinite."""
    same = (found == dense) | (np.isnan(found) & np.isnan(dense))
    if not (np.isfinite(found) & np.isfinite(dense))[~same].all():
        return math.inf
    largest = float(np.abs(dense, where=np.isfinite(dense), out=np.zeros(dense.shape)).max(initial=0))
    return float(np.abs(np.subtract(found, dense, where=~same, out=np.zeros(dense.shape))).max(initial=0)) / max(
        1.0, largest)


class _VirtualDevices:
    def __init__(self, planned: Planned, joined: Sequence[Communication], given: Mapping[str, Array]) -> None:
        self.planned, self.program, self.given = planned, planned.program, given
        self.made: dict[tuple[Part, str], Array] = {}
        self.brought: dict[tuple[int, int], Array] = {}  # communication, device
        self.joined, self.serving = joined, serving(joined)

    def go(self, order: Sequence[Part]) -> dict[str, Array]:
        for part in order:
            self.run(part)
        found = {name: self.together(name) for name in self.program.outputs}
        for made, held in self.program.carried.items():
            for reader in self.program.readers.get(held, ()):
                for view in self.planned.reads(reader, held):
                    got = self.read(made, view, next_step=True)
                    self.require_same(made, got, found[made][slices(view.box)])
        return found

    def run(self, part: Part) -> None:
        device = self.planned.device(part)
        arrays = [self.read(name, View(part, device, box, (0, 1), ())) for name, box in self.planned.inputs(part)]
        starts = {name: low for name, (low, _) in self.planned.spans(part).items()}
        results = computed(self.program, self.program.by_name[part.operation], arrays, self.planned.sizes(part), starts)
        for (name, box), array in zip(self.planned.outputs(part), results, strict=True):
            if array.shape != shape_of(box):
                raise PlanError(f"{part} gives {name} of shape {array.shape}, its part is {box}")
            self.made[part, name] = array

    def read(self, name: str, view: View, *, next_step: bool = False) -> Array:
        """A part's input: external values and the results of communications, summed."""
        total = np.zeros(shape_of(view.box))
        terms = set(self.program.terms(name))
        for term in sorted(terms):
            if term in self.given:
                total = total + self.given[term][slices(view.box)]
                terms.discard(term)
        for i in self.serving.get((name, next_step, view.part), ()):
            entry = self.joined[i]
            if view.device not in entry.wanted or not self.inside(view.box, entry.wanted[view.device]):
                continue
            terms -= set(entry.terms)
            total = total + self.bring(i, view.device)[_at(view.box, entry.wanted[view.device])]
        if terms:
            raise PlanError(f"{view.part} reads {', '.join(sorted(terms))}, which is not on device {view.device}")
        return total

    @staticmethod
    def inside(box: Box, other: Box) -> bool:
        return all(a >= c and b <= d for (a, b), (c, d) in zip(box, other, strict=True))

    # -- communications --------------------------------------------------------------------------------------------

    def bring(self, i: int, device: int) -> Array:
        """The result of communication ``i`` on a device, run as far as the available data allow."""
        if (i, device) not in self.brought:
            entry = self.joined[i]
            found = self.converted(entry) if entry.conversion is not None else self.sent(entry, device)
            for target, array in found.items():
                self.brought[i, target] = array
        if (i, device) not in self.brought:
            raise PlanError(f"device {device} reads {self.joined[i].tensor} before what it needs of it is made")
        return self.brought[i, device]

    def converted(self, entry: Communication) -> dict[int, Array]:
        """The steps, in the groups in which every device has the data it must send."""
        assert entry.conversion is not None
        shape = shape_of(entry.frame)
        held = {}
        for device in entry.conversion.source.devices:
            own, box = entry.held(device)
            if not all((view.part, name) in self.made for view in own for name in entry.terms
                       if self.program.producer[name] == view.part.operation):
                continue
            held[device] = self.local(entry, own, box)
        for step in entry.conversion.steps:
            held = applied(_restricted(step, set(held)), held, shape)
        return held

    def local(self, entry: Communication, views: Sequence[View], box: Box) -> Array:
        """The sum of all terms of ``box`` on a device: every element of each term once."""
        total = np.zeros(shape_of(box))
        counts: dict[tuple[str, tuple[int, int]], Array] = {}
        for view in views:
            for term in entry.terms:
                if self.program.producer[term] != view.part.operation:
                    continue
                common = intersection(view.box, box)
                count = counts.setdefault((term, view.value), np.zeros(total.shape))
                if common is not None and not count[_at(common, box)].any():
                    count[_at(common, box)] += 1
                    total[_at(common, box)] += self.made[view.part, term][_at(common, view.box)]
        if {term for term, _ in counts} != set(entry.terms) or any((count != 1).any() for count in counts.values()):
            raise PlanError(f"{entry.tensor}: a device does not have all of its piece")
        return total

    def sent(self, entry: Communication, device: int) -> dict[int, Array]:
        found = {device: np.zeros(shape_of(entry.wanted[device]))}
        for message in entry.messages:
            if message.target != device:
                continue
            if (message.source, message.tensor) not in self.made:
                raise PlanError(f"{entry.tensor} is sent before {message.source} made it")
            if self.planned.device(message.source) != message.device:
                raise PlanError(f"{message.source} is not on device {message.device}")
            view = next(view for view in self.planned.gives(message.source.operation, message.tensor)
                        if view.part == message.source)
            found[message.target][_at(message.box, entry.wanted[message.target])] += self.made[
                message.source, message.tensor][_at(message.box, view.box)]
        return found

    # -- outputs --------------------------------------------------------------------------------------------

    def together(self, name: str) -> Array:
        """A tensor assembled from all parts that produce it; copies must be equal."""
        whole = np.zeros(self.program.tensors[name].shape)
        for term in self.program.terms(name):
            if term in self.given:
                whole = whole + self.given[term]
                continue
            pieces: dict[tuple[Box, tuple[int, int]], Array] = {}
            for view in self.planned.gives(self.program.producer[term], term):
                array = self.made[view.part, term]
                first = pieces.setdefault((view.box, view.value), array)
                self.require_same(term, array, first)
            for (box, _), array in pieces.items():
                whole[slices(box)] += array
        return whole

    @staticmethod
    def require_same(name: str, one: Array, other: Array) -> None:
        if not np.allclose(one, other, rtol=1e-9, atol=1e-9, equal_nan=True):
            raise PlanError(f"{name}: devices that should hold the same hold different numbers")


def _restricted(step: LayoutStep, ready: set[int]) -> LayoutStep:
    """``step`` without the groups, or targets, that still wait for others."""
    if step.kind == "send":
        late = {message.target for message in step.messages if message.source not in ready}
        pairs = [pair for pair in zip(step.after.devices, step.after.pieces, strict=True) if pair[0] not in late]
        after = replace(step.after, devices=tuple(device for device, _ in pairs),
                        pieces=tuple(piece for _, piece in pairs))
        return replace(step, after=after, messages=tuple(one for one in step.messages if one.target not in late))
    pairs_of = [pair for pair in zip(step.groups, step.gathered, strict=True) if set(pair[0]) <= ready]
    return replace(step, groups=tuple(one for one, _ in pairs_of), gathered=tuple(other for _, other in pairs_of))


def _at(box: Box, frame: Box) -> tuple[slice, ...]:
    return slices(within(box, frame))
