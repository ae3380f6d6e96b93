"""The placement shapes of the Tessel evaluation as block problems (Lin et al., "Tessel", HPCA 2024).

Shapes and integers are those of the public Tessel repository (MIT): a stage's forward takes 1 step and 1 unit of
memory, its backward 3 steps (recomputation included); blocks spread over all devices take 1 step.

* ``chain``: a chain of stages, one a device (the paper calls it V).
* ``m``: a large embedding spread over all devices before and after the chain.
* ``nn``: encoder and decoder, each with an embedding spread over all devices.
* ``k``: two towers, each a chain on half of the devices, joined by a block spread over all.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.solver.problem import Block, BlockKind, Dependency, Device, Number, Problem

SHAPES = ("chain", "m", "nn", "k")

#: (shape, devices, memory per device or None for inference) of every problem measured in the evaluation.
TESSEL_PROBLEMS: tuple[tuple[str, int, int | None], ...] = (
    ("chain", 2, 2), ("chain", 2, 20), ("chain", 4, 4), ("chain", 4, 20),
    ("m", 2, 3), ("m", 2, 6), ("m", 4, 6), ("m", 4, 20),
    ("nn", 2, 3), ("nn", 2, 6), ("nn", 4, 6), ("nn", 4, 20), ("k", 2, 4), ("k", 2, 6), ("k", 4, 6), ("k", 4, 20),
    *((shape, devices, None) for shape in SHAPES for devices in (2, 4)),
)


class _BlockRow:
    """Blocks added one after another, each waiting for the one before unless others are given."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def add(self, kind: BlockKind, devices: Sequence[int], duration: Number, memory: Number,
            after: Sequence[str] | None = None) -> str:
        name = f"b{len(self.blocks):02d}"
        waits = after if after is not None else [block.name for block in self.blocks[-1:]]
        self.blocks.append(Block(name, kind, tuple(devices), duration, (memory,), (),
                                 tuple(Dependency(other) for other in waits)))
        return name


def shape(kind: str, devices: int, memory: Number | None) -> Problem:
    """The block problem of one shape. ``memory`` per device, in activations; ``None``: inference, nothing is kept.

    Raises ``ValueError`` for an unknown shape, or one that does not exist on so many devices.
    """
    if kind not in SHAPES:
        raise ValueError(f"there is no shape {kind!r}, there are {', '.join(SHAPES)}")
    if devices < 1 or (kind in ("nn", "k") and devices % 2):
        raise ValueError(f"the {kind} shape needs an even number of devices, not {devices}" if devices > 0 else
                         f"devices is {devices}, it must be at least 1")
    build = {"chain": _chain, "m": _m, "nn": _nn, "k": _k}[kind]
    title = kind if kind == "chain" else f"{kind}shape"
    name = f"{title}-{devices}-" + ("infer" if memory is None else f"train-mem{memory}")
    return Problem(name, tuple(Device(f"gpu{d}", memory) for d in range(devices)),
                   tuple(build(devices, memory is not None).blocks), time_unit="step", memory_unit="unit")


def _chain(devices: int, train: bool) -> _BlockRow:
    made = _BlockRow()
    _stages(made, range(devices), range(devices) if train else ())
    return made


def _m(devices: int, train: bool) -> _BlockRow:
    made = _BlockRow()
    everywhere = range(devices)
    made.add(BlockKind.FORWARD, everywhere, 1, 0)
    _stages(made, everywhere, everywhere if train else ())
    if train:
        made.add(BlockKind.BACKWARD, everywhere, 1, 0)
    return made


def _nn(devices: int, train: bool) -> _BlockRow:
    made = _BlockRow()
    everywhere, encoder, decoder = range(devices), range(devices // 2), range(devices // 2, devices)
    keep = int(train)
    made.add(BlockKind.FORWARD, everywhere, 1, 0)
    for d in encoder:
        made.add(BlockKind.FORWARD, [d], 1, keep)
    made.add(BlockKind.FORWARD, everywhere, 1, 0)
    _stages(made, decoder, decoder if train else ())
    if train:
        made.add(BlockKind.BACKWARD, everywhere, 1, 0)
        for d in reversed(encoder):
            made.add(BlockKind.BACKWARD, [d], 3, -1)
        made.add(BlockKind.BACKWARD, everywhere, 1, 0)
    return made


def _k(devices: int, train: bool) -> _BlockRow:
    made = _BlockRow()
    everywhere, half = range(devices), devices // 2
    keep = int(train)
    ends: list[str] = []
    for step in range(half):  # the two towers side by side
        ends = [made.add(BlockKind.FORWARD, [tower * half + step], 1, keep, ends[tower:tower + 1]) for tower in (0, 1)]
    joined = made.add(BlockKind.FORWARD, everywhere, 1, keep, ends)
    if train:
        ends = [made.add(BlockKind.BACKWARD, everywhere, 1, -1, [joined])] * 2
        for step in reversed(range(half)):
            ends = [made.add(BlockKind.BACKWARD, [tower * half + step], 3, -1, [ends[tower]]) for tower in (0, 1)]
    return made


def _stages(made: _BlockRow, forwards: Sequence[int], backwards: Sequence[int]) -> None:
    for d in forwards:
        made.add(BlockKind.FORWARD, [d], 1, int(bool(backwards)))
    for d in reversed(backwards):
        made.add(BlockKind.BACKWARD, [d], 3, -1)
