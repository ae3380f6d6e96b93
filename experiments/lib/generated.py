"""A suite of generated problems: combinations of families in a shuffled order, drawn from a seed.

A family is a shape (V, M, NN, K, a V with two chunks a device, a loop), its stages (uniform, embedding first, heavy
head, mixed layers), transfers (none, lags, exclusive links), backward (full, split) and cap (tight to unlimited);
devices (2 to 8), micro-batches (4 to 16) and numbers are drawn.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem

SHAPES = ("V", "M", "NN", "K", "V2", "loop2")
STAGES = ("uniform", "embedding", "head", "mixed")
TRANSFERS = ("none", "lags", "links")
BACKWARDS = ("full", "split")
#: The cap as a share of the way from one micro-batch at a time to one for each device in flight; None: unlimited.
CAPS = (0.0, 0.35, 0.7, 1.0, None)
#: The device of each stage in model order, None for a stage on all devices.
Places: TypeAlias = Sequence[int | None]


@dataclass(frozen=True)
class Instance:
    """What one problem of the suite is drawn from."""

    number: int
    shape: str
    stages: str
    transfers: str
    backward: str
    cap: float | None
    seed: int

    @property
    def family(self) -> dict[str, str]:
        """What the results are grouped by."""
        return {"shape": self.shape, "stages": self.stages, "transfers": self.transfers, "backward": self.backward,
                "cap": "unlimited" if self.cap is None else f"{self.cap:g}"}


@dataclass
class Builder:
    """The blocks of one micro-batch, in ticks and units of memory. ``cost``: forward and backward duration and
    activations of a stage, given whether it is the first and the last, and the chunks of a device. An input gradient
    gives back one in ``gives_back`` of the activations. ``joined``: the forward of a stage on all devices behind two
    towers. ``transfer``: about how long one takes between devices, on ``exclusive`` links."""

    draw: random.Random
    devices: int
    split: bool
    cost: Callable[[bool, bool, int], tuple[int, int, int]]
    gives_back: int = 3
    joined: int = 30
    transfer: int = 0
    exclusive: bool = False
    blocks: list[Block] = field(default_factory=list)
    links: dict[tuple[int, int], Link] = field(default_factory=dict)
    costs: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def fill(self, shape: str) -> None:
        """All blocks of a pipeline of that shape."""
        p = self.devices
        if shape == "K":  # two towers that join on all devices
            towers: dict[str, Places] = {"a": range(p // 2), "b": range(p // 2, p)}
            ends = tuple(self.forwards(places, tower=tower) for tower, places in towers.items())
            self.forwards((None,), ends, "joined")
            self.backwards((None,), "Ejoined0", "joined")
            for tower, places in towers.items():
                self.backwards(places, "Djoined0", tower)
            return
        path: Places = {
            "V": (*range(p),),
            "M": (None, *range(p)),  # an embedding on all devices
            "NN": (None, *range(p // 2), None, *range(p // 2, p)),  # one for the encoder and one for the decoder
            "V2": (*range(p), *reversed(range(p))),
            "loop2": (*range(p), *range(p)),
        }[shape]
        self.backwards(path, self.forwards(path, chunks=2 if shape in ("V2", "loop2") else 1))

    def forwards(self, path: Places, after: tuple[str, ...] = (), tower: str = "", chunks: int = 1) -> str:
        """Forwards along ``path``; the name of the last."""
        where: int | None = None
        for s, device in enumerate(path):
            name = f"{tower}{s}"
            if device is None:
                after = (self._everywhere(f"E{name}", BlockKind.FORWARD, self.joined if tower else 30, after),)
            else:
                forward, _, memory = self.costs[name] = self.cost(s == 0, s == len(path) - 1, chunks)
                after = (self._add(f"F{name}", BlockKind.FORWARD, device, forward, memory, after, where),)
            where = device
        return after[0]

    def backwards(self, path: Places, last: str, tower: str = "") -> None:
        """Gradients back along ``path``, the first after ``last``."""
        where: int | None = None
        for s, device in reversed([*enumerate(path)]):
            name = f"{tower}{s}"
            if device is None:
                last = self._everywhere(f"D{name}", BlockKind.BACKWARD, 2 * (self.joined if tower else 30), (last,))
            else:
                last = self._gradient(name, device, last, where)
            where = device

    def _gradient(self, name: str, device: int, last: str, where: int | None) -> str:
        """The stage's full backward, or its input gradient with the weight gradient behind it."""
        _, duration, memory = self.costs[name]
        if not self.split:
            return self._add(f"B{name}", BlockKind.BACKWARD, device, duration, -memory, (last,), where)
        half, given = duration // 2, memory // self.gives_back
        self._add(f"I{name}", BlockKind.INPUT_GRAD, device, duration - half, -given, (last,), where)
        self._add(f"W{name}", BlockKind.WEIGHT_GRAD, device, half, given - memory, (f"I{name}",), device)
        return f"I{name}"

    def _everywhere(self, name: str, kind: BlockKind, duration: int, after: tuple[str, ...]) -> str:
        self.blocks.append(Block(name, kind, tuple(range(self.devices)), duration, (0,), (),
                                 tuple(Dependency(block) for block in after)))
        return name

    def _add(self, name: str, kind: BlockKind, device: int, duration: int, memory: int, after: tuple[str, ...],
             where: int | None) -> str:
        """A block on one device; a transfer lies before it if what it waits for ran on one other device, ``where``."""
        lag, link = 0, None
        if where not in (None, device) and self.transfer:
            lag = round(self.transfer * self.draw.uniform(0.7, 1.3))
            if self.exclusive:
                assert where is not None
                link = self.links.setdefault((where, device), Link(f"{where} to {device}", where, device)).name
        self.blocks.append(Block(name, kind, (device,), duration, (memory,), (),
                                 tuple(Dependency(block, lag, link) for block in after)))
        return name


def problem(drawn: Instance) -> tuple[Problem, int]:
    """The problem and its number of micro-batches."""
    draw = random.Random(drawn.seed)
    devices, micro_batches = draw.randint(2, 8), draw.randint(4, 16)
    if drawn.shape == "K":
        devices += devices % 2
    if drawn.shape == "loop2" and draw.random() < 0.5:  # as interleaved 1F1B wants them, a multiple of the devices
        micro_batches = devices * max(1 if devices >= 4 else 2, micro_batches // devices)
    transfer = {"none": 0, "lags": draw.randint(5, 40), "links": draw.randint(20, 80)}[drawn.transfers]

    def cost(first: bool, last: bool, chunks: int) -> tuple[int, int, int]:
        forward, ratio, memory = 100.0, 2.0, 6
        if drawn.stages == "embedding" and first:
            forward, memory = forward * draw.uniform(1.2, 1.8), 8
        elif drawn.stages == "head" and last:
            forward *= draw.uniform(1.3, 2.0)
        elif drawn.stages == "mixed":
            forward, ratio, memory = draw.uniform(60, 140), draw.uniform(1.7, 2.4), draw.randint(4, 8)
        return round(forward / chunks), round(ratio * forward / chunks), memory

    build = Builder(draw, devices, drawn.backward == "split", cost, transfer=transfer,
                    exclusive=drawn.transfers == "links")
    build.fill(drawn.shape)
    one = max(sum(max(block.memory_on(d), 0) for block in build.blocks) for d in range(devices))
    memory = None if drawn.cap is None else round(one * (1 + (devices - 1) * drawn.cap))
    name = (f"#{drawn.number}: {drawn.shape} on {devices}, {drawn.stages} stages, transfers: {drawn.transfers}, "
            f"{drawn.backward} backward, {'no cap' if memory is None else f'cap {memory}'}, N = {micro_batches}")
    gpus = tuple(Device(f"gpu{d}", memory) for d in range(devices))
    return Problem(name, gpus, tuple(build.blocks), tuple(build.links.values()), "tick", "unit"), micro_batches


def suite(count: int, seed: int) -> list[Instance]:
    """``count`` instances through the combinations of the families, shuffled."""
    draw = random.Random(seed)
    every = [*itertools.product(SHAPES, STAGES, TRANSFERS, BACKWARDS, CAPS)]
    draw.shuffle(every)
    return [Instance(number, *drawn, seed=draw.randrange(2**32))
            for number, drawn in enumerate(itertools.islice(itertools.cycle(every), count))]
