"""Descriptions and buffers of messages of unknown shape, and layouts of tensors in buffers.

A message of unknown shape is preceded by a *description*, whose size follows from the plan: for each tensor its dtype,
number of dimensions, address, and first eight lengths. Further lengths follow in separate words, whose number is in the
description. The receiver then allocates memory and receives the tensors (Xue et al., *Fast distributed deep learning
over RDMA*, EuroSys 2019, section 3.2, where the receiver reads them from the sender's memory).

Memory is never released: a buffer that is too small is replaced by one of at least twice its size, so that allocations
stop after a few messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft.runtime.plan.buffers import MessageLayout, MessageTensor
from weft.runtime.transports.interface import Parcel, TransportError

#: The number of lengths of a tensor in the description.
LENGTHS = 8
#: Words before those of the tensors: the number of lengths that follow the description, and their address.
HEAD = 2
#: Words of a tensor: its type, its number of dimensions (:data:`ABSENT`: it is not sent), its address, its lengths.
TENSOR = 3 + LENGTHS
ABSENT = -1

#: The types by number in a description. The order is part of the format: it is the same on both ends.
DTYPES: tuple[torch.dtype, ...] = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.uint16, torch.uint32, torch.uint64)


class Described(NamedTuple):
    """A tensor in transit: its name, type and shape, and its address at the sender."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    address: int

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def words_of(layout: MessageLayout) -> int:
    """The number of words of 8 bytes of such a message's description."""
    return HEAD + TENSOR * len(layout.parts)


def rest_of(layout: MessageLayout, parcel: Parcel) -> list[int]:
    """The lengths that do not fit the description, of all tensors in order."""
    return [length for part in layout.parts if part.name in parcel for length in parcel[part.name].shape[LENGTHS:]]


def describe(layout: MessageLayout, parcel: Parcel, words: MutableSequence[int],
             rest: tuple[int, int] = (0, 0)) -> None:
    """Write the description of ``parcel``, whose tensors are among those of ``layout``, to ``words``.

    ``rest``: how many lengths follow it (:func:`rest_of`), and their address. Raises
    :class:`~weft.runtime.transports.interface.TransportError` for a type that is not in :data:`DTYPES`.
    """
    words[0], words[1] = rest
    for place, part in enumerate(layout.parts):
        at, tensor = HEAD + TENSOR * place, parcel.get(part.name)
        if tensor is None:
            words[at + 1] = ABSENT
            continue
        if tensor.dtype not in DTYPES:
            raise TransportError(f"{part.name or 'a message'} is of {tensor.dtype}, which cannot be sent in a shape "
                                 "that the plan does not know: declare all its lengths")
        words[at], words[at + 1], words[at + 2] = DTYPES.index(tensor.dtype), tensor.dim(), tensor.data_ptr()
        for dim, length in enumerate(tensor.shape[:LENGTHS]):
            words[at + 3 + dim] = length


def described(layout: MessageLayout, words: Sequence[int], rest: Sequence[int] = ()) -> list[Described]:
    """The tensors that ``words``, the description of a message of ``layout``, and the ``rest`` after it describe."""
    return list(_described(layout, words, iter(rest)))


def _described(layout: MessageLayout, words: Sequence[int], rest: Iterator[int]) -> Iterator[Described]:
    for place, part in enumerate(layout.parts):
        at = HEAD + TENSOR * place
        count = words[at + 1]
        if count != ABSENT:
            lengths = [int(words[at + 3 + dim]) for dim in range(min(count, LENGTHS))]
            lengths += [int(next(rest)) for _ in range(count - LENGTHS)]
            yield Described(part.name, DTYPES[words[at]], tuple(lengths), int(words[at + 2]))


class Growing:
    """A growing buffer for one message at a time. ``parcel``: the tensors of the current message."""

    def __init__(self, device: torch.device) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)
        self.parcel: dict[str, Tensor] = {}

    def room(self, size: int) -> Tensor:
        """At least ``size`` bytes. The content of :attr:`parcel` is lost."""
        self.parcel.clear()
        if size > len(self.memory):
            self.memory = torch.empty(max(size, 2 * len(self.memory)), dtype=torch.uint8, device=self.memory.device)
        return self.memory

    def land(self, tensors: Sequence[Described], parcel: dict[str, Tensor]) -> None:
        """Replace the content of ``parcel`` by memory for ``tensors``, by name."""
        starts, end = [], 0
        for tensor in tensors:
            starts.append(whole(end))
            end = whole(end) + tensor.size
        if self.memory.is_cuda:  # kernels of any stream may still read the old content
            torch.cuda.synchronize(self.memory.device)
        memory = self.room(end)
        self.parcel = parcel
        parcel.clear()
        for tensor, start in zip(tensors, starts, strict=True):
            parcel[tensor.name] = memory[start:start + tensor.size].view(tensor.dtype).view(tensor.shape)


ALIGNED = 64  # bytes: a cache line, and the alignment of vector instructions


def whole(size: int) -> int:
    """``size`` rounded up to whole lines."""
    return -(-size // ALIGNED) * ALIGNED


def can_go_as_it_lies(tensor: Tensor) -> bool:
    """Whether the bytes of ``tensor`` can be sent in place: it is contiguous, and no lazily conjugated or negated view.
    """
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def layout_of(tensors: Mapping[str, tuple[Sequence[int | None], torch.dtype]]) -> MessageLayout:
    """The layout of consecutive tensors of these shapes and dtypes; an unknown length is ``None``."""
    if any(None in shape for shape, _ in tensors.values()):
        return MessageLayout(tuple(MessageTensor(name, tuple(shape), _name(dtype), 0)
                                   for name, (shape, dtype) in tensors.items()), 0)
    parts, offset = [], 0
    for name, (shape, dtype) in tensors.items():
        part = MessageTensor(name, tuple(shape), _name(dtype), whole(offset))
        parts.append(part)
        offset = part.offset + math.prod(_lengths(part)) * dtype.itemsize
    return MessageLayout(tuple(parts), offset)


def allocate(sizes: Sequence[int], device: torch.device) -> list[Tensor]:
    """Bytes for each size. Each is a separate tensor: views of one tensor would share the version counter by which
    autograd detects writes to saved tensors."""
    return [torch.zeros(size, dtype=torch.uint8, device=device) for size in sizes]


def view(memory: Tensor, layout: MessageLayout) -> dict[str, Tensor]:
    """The tensors of ``layout``, which is known, in ``memory`` (a 1-d tensor of bytes)."""
    return {part.name: _view(memory, part) for part in layout.parts}


def _view(memory: Tensor, part: MessageTensor) -> Tensor:
    dtype = getattr(torch, part.dtype)
    assert isinstance(dtype, torch.dtype)
    shape = _lengths(part)
    return memory[part.offset:part.offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _lengths(part: MessageTensor) -> tuple[int, ...]:
    assert None not in part.shape, part
    return tuple(length for length in part.shape if length is not None)
