"""Building blocks of a V as stable patterns.

Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, sections 3 and 4 and appendix A, and the
authors' program (sail-sg/zero-bubble-pipeline-parallelism, ``v_auto_schedule.py``). A forward, an input and a weight
gradient of a stage take a slot each; a device with two stages repeats six slots for every micro-batch.

*Pattern*: the slots of the six in which the first device runs its two forwards and two input gradients; each weight
gradient has the first free slot after its gradient. *Offsets*: from one device to the next the operations down the
devices move by 1 to 5 slots, at first by one number and from some device on by a smaller one; those that go up move by
one. A pattern in which two meet in one slot is invalid. There are some sixty for each of about fifteen pairs of offsets
and each bend; a few hundred are valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from weft.solver.control.clock import checked

#: Slots from one micro-batch to the next.
INTERVAL = 6
#: The operations of a device for a micro-batch: forwards down and up, gradients down and up, their weight gradients.
KINDS = F_DOWN, F_UP, B_DOWN, B_UP, W_DOWN, W_UP = range(6)

_FORWARDS, _WEIGHTS = (F_DOWN, F_UP), (W_DOWN, W_UP)


@dataclass(frozen=True, slots=True)
class StablePattern:
    """Per device, the slot of each of :data:`KINDS` for micro-batch 0; ``peak``: the most stages' activations on a
    device when it is repeated."""

    slots: tuple[tuple[int, ...], ...]
    peak: int

    @property
    def offsets(self) -> tuple[int, ...]:
        """The slots of forwards and input gradients in the order in which a micro-batch runs them."""
        return (*(row[F_DOWN] for row in self.slots), *(row[F_UP] for row in reversed(self.slots)),
                *(row[B_DOWN] for row in self.slots), *(row[B_UP] for row in reversed(self.slots)))


def stable_patterns(devices: int) -> Iterator[StablePattern]:
    """All stable patterns of a V on ``devices`` devices, each once."""
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for first in checked(permutations(range(1, INTERVAL), 3)):
        for steep in range(1, INTERVAL):
            for flat in range(1, steep + 1):
                for bend in range(1, devices) if flat < steep else (devices - 1,):
                    downs = [steep] * bend + [flat] * (devices - 1 - bend)
                    slots = _slots((0, *first), downs)
                    if slots is not None and slots not in seen:
                        seen.add(slots)
                        yield StablePattern(slots, max(map(held, slots)))


def _slots(first: tuple[int, ...], downs: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Per device the slots of all kinds, or None if two meet."""
    residues = [first]
    for down in downs:
        last = residues[-1]
        residues.append(tuple((slot + (down if kind in (F_DOWN, B_DOWN) else -1)) % INTERVAL
                              for kind, slot in enumerate(last)))
        if len(set(residues[-1])) < 4:
            return None
    columns: list[list[int]] = []
    time = -1
    for kind in (F_DOWN, F_UP, B_DOWN, B_UP):
        goes_down = kind in (F_DOWN, B_DOWN)
        time = _next(time, residues[0 if goes_down else -1][kind])
        column = [time]
        for down in downs:
            time += down if goes_down else 1
            column.append(time)
        columns.append(column if goes_down else column[::-1])
    return tuple(map(with_weights, zip(*columns, strict=True)))


def with_weights(row: Sequence[int]) -> tuple[int, ...]:
    """The slots of forwards and input gradients of a device, and those of its weight gradients, each the first after
    its gradient that is free."""
    taken = {slot % INTERVAL for slot in row}
    weights: list[int] = []
    for gradient in row[2:]:
        slot = next(slot for slot in range(gradient + 1, gradient + 1 + INTERVAL) if slot % INTERVAL not in taken)
        taken.add(slot % INTERVAL)
        weights.append(slot)
    return (*row, *weights)


def _next(after: int, residue: int) -> int:
    """The first slot after ``after`` that has ``residue``."""
    return after + 1 + (residue - after - 1) % INTERVAL


def held(row: Sequence[int]) -> int:
    """The most stages' activations on a device that repeats ``row``."""
    return max(sum((now - row[kind]) // INTERVAL + 1 for kind in _FORWARDS)
               - sum((now - row[kind] - 1) // INTERVAL + 1 for kind in _WEIGHTS)
               for now in (row[kind] for kind in _FORWARDS))
