"""Memory allocated and freed by a plan's blocks: tensors from the block that makes or receives them to the last reader.

With several unordered readers, the last is unknown: then a tensor is freed by the first block after all of them, or
stays. So the result is never less than a device's actual memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from weft.models.layouts.layout import Box, intersection, volume
from weft.models.transform.as_blocks.grouping import Grouped
from weft.models.transform.plan import Preserved
from weft.models.transform.planned import Part


@dataclass(frozen=True)
class DeviceMemory:
    """By device: the ``change`` of a block (allocated at its start, or freed at its end), and the additional
    ``workspace`` while it runs; in bytes."""

    change: dict[int, int]
    workspace: dict[int, int]


@dataclass
class _Tensor:
    """Bytes on a device, produced by a block (by its part, or received), and the blocks and parts that read them."""

    device: int
    size: int
    block: int
    part: Part | None
    readers: set[int] = field(default_factory=set)
    last: set[Part] = field(default_factory=set)


def resident(done: Preserved) -> dict[int, int]:
    """Bytes of parameters and states on each device through the step, by the pieces that its parts read."""
    program, found = done.planned.program, dict[int, set[tuple[str, Box]]]()
    for operation in program.operations:
        for name in dict.fromkeys(operation.inputs):
            if program.tensors.get(name) is not None and program.tensors[name].source in ("parameter", "state"):
                for view in done.planned.reads(operation.name, name):
                    found.setdefault(view.device, set()).add((name, view.box))
    return {device: sum(volume(box) * program.tensors[name].itemsize for name, box in pieces)
            for device, pieces in found.items()}


def holdings(done: Preserved, blocks: Sequence[Grouped]) -> list[DeviceMemory]:
    """The memory of each block."""
    return _Holdings(done, blocks).all()


class _Holdings:
    def __init__(self, done: Preserved, blocks: Sequence[Grouped]) -> None:
        self.done, self.blocks, self.program = done, blocks, done.planned.program
        self.block_of = {part: i for i, block in enumerate(blocks) for part in block.parts}
        self.bringing = {entry: i for i, block in enumerate(blocks) for entry in block.joined}

    @cached_property
    def tensors(self) -> list[_Tensor]:
        """All tensors produced or received. The output of an update replaces its input."""
        made: dict[tuple[Part, str], _Tensor] = {}
        for part, block in self.block_of.items():
            for name, box in self.done.planned.outputs(part):
                if name not in self.program.carried:
                    size = volume(box) * self.program.tensors[name].itemsize
                    made[part, name] = _Tensor(self.done.planned.device(part), size, block, part)
        found = list(made.values())
        for i, entry in enumerate(self.done.joined):
            own = [made[view.part, term] for view in entry.producers for term in entry.terms
                   if (view.part, term) in made]
            if not entry.silent:
                block = self.bringing[i]
                for tensor in own:
                    tensor.readers.add(block)
                size = self.program.tensors[entry.terms[0]].itemsize
                if not entry.next_step:
                    for device, box in entry.wanted.items():
                        brought = _Tensor(device, volume(box) * size, block, None)
                        brought.readers = {self.block_of[view.part] for view in entry.readers if view.device == device}
                        found.append(brought)
            elif not entry.next_step:
                for view in entry.producers:
                    for term in entry.terms:
                        tensor_made = made.get((view.part, term))
                        if tensor_made is not None:
                            near = [read.part for read in entry.readers if read.device == view.device
                                    and intersection(read.box, view.box) is not None]
                            tensor_made.readers |= {self.block_of[part] for part in near}
                            tensor_made.last |= set(near)
        return found

    @cached_property
    def reached(self) -> list[int]:
        """Per block a bit set: its predecessors and itself."""
        found: list[int] = []
        for i, block in enumerate(self.blocks):
            bits = 1 << i
            for before in block.after:
                bits |= found[before]
            found.append(bits)
        return found

    def last_of(self, tensor: _Tensor) -> int | None:
        """The block that frees a tensor: the first on its device that is, or comes after, each reader."""
        needed = 0
        for reader in tensor.readers or {tensor.block}:
            needed |= 1 << reader
        return next((i for i, block in enumerate(self.blocks) if tensor.device in block.devices
                     and self.reached[i] & needed == needed), None)

    def all(self) -> list[DeviceMemory]:
        inner: list[dict[int, list[_Tensor]]] = [{} for _ in self.blocks]
        taken: list[dict[int, int]] = [{} for _ in self.blocks]
        given: list[dict[int, int]] = [{} for _ in self.blocks]
        kept = {name for output in self.program.outputs for name in self.program.terms(output)}
        outputs = {id(t) for t in self.tensors if t.part is not None
                   and kept & set(self.program.by_name[t.part.operation].outputs)}
        for tensor in self.tensors:
            last = None if id(tensor) in outputs else self.last_of(tensor)
            if tensor.part is not None:
                inner[tensor.block].setdefault(tensor.device, []).append(tensor)
            if last == tensor.block and tensor.part is not None:
                continue
            taken[tensor.block][tensor.device] = taken[tensor.block].get(tensor.device, 0) + tensor.size
            if last is not None:
                given[last][tensor.device] = given[last].get(tensor.device, 0) + tensor.size
        found = []
        for i, block in enumerate(self.blocks):
            change = {device: taken[i].get(device, 0) - given[i].get(device, 0) for device in block.devices}
            peak = {device: self.peak(i, inner[i].get(device, [])) if block.parts
                    else taken[i].get(device, 0) for device in block.devices}
            found.append(DeviceMemory(change, {device: max(0, peak[device] - max(0, change[device]))
                                       for device in block.devices}))
        return found

    def peak(self, block: int, made: Sequence[_Tensor]) -> int:
        """Peak bytes of a block's own tensors on a device, with parts in order; tensors read by others stay."""
        position = {part: n for n, part in enumerate(self.blocks[block].parts)}
        steps = [0] * (len(position) + 1)
        for tensor in made:
            assert tensor.part is not None
            steps[position[tensor.part]] += tensor.size
            inside = tensor.readers <= {block}
            if inside and tensor.last:
                steps[max(position[part] for part in tensor.last) + 1] -= tensor.size
        return max(accumulate(steps))
