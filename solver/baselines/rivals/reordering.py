"""Stable patterns repeated, squeezed and reordered to schedules, in slots of equal length.

Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, section 4, and the authors' program
(sail-sg/zero-bubble-pipeline-parallelism, ``v_auto_schedule.py``): the warm-up is laid out anew (forwards down, then
both in turn, then gradients each followed by a forward), so is the cool-down (gradients of both ways, two slots apart,
so that each meets the next device in time), and then every empty slot gets the first later operation that can run there
without more memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.solver.baselines.lib.stable_pattern import (
    B_DOWN,
    B_UP,
    F_DOWN,
    F_UP,
    INTERVAL,
    KINDS,
    W_DOWN,
    W_UP,
    StablePattern,
)
from weft.solver.control.clock import checked, checkpoint

_WEIGHTS = (W_DOWN, W_UP)


def reordered(pattern: StablePattern, micro_batches: int, most: int) -> list[list[int]] | None:
    """Per device, the kinds it runs, in order; each kind runs the micro-batches in order.

    No device stores more than ``most`` stages' activations. None if the rules do not lead to a schedule.
    """
    checkpoint()
    devices = len(pattern.slots)
    planned = max(micro_batches, 2 * devices)  # what the rules for the warm-up take
    rows = [_repeated(row, planned) for row in pattern.slots]
    held = min(max(map(_held, rows)), 2 * devices)
    rows = [_warmed_up(row, d, devices, held, planned) for d, row in enumerate(rows)]
    if planned > micro_batches:
        rows = [_first(row, micro_batches) for row in rows]
    peak = max(map(_held, rows))
    if peak > most:
        return None
    table = _squeezed(rows)
    if table is None:
        return None
    table = _squeezed(_cooled_down(table, micro_batches, min(peak, 2 * devices)))
    if table is None:
        return None
    _fill_empty_slots(table, peak)
    rows = [_in_turn(row) for row in table]
    return rows if max(map(_held, rows)) <= most else None


def _repeated(row: Sequence[int], micro_batches: int) -> list[int]:
    """The kinds of one device in the order of their slots."""
    order = sorted((slot + m * INTERVAL, kind) for kind, slot in enumerate(row) for m in range(micro_batches))
    return [kind for _, kind in order]


def _held(row: Sequence[int]) -> int:
    """The most stages' activations on the device."""
    level = most = 0
    for kind in row:
        if kind <= F_UP:
            level += 1
            most = max(most, level)
        elif kind >= W_DOWN:
            level -= 1
    return most


def _first(row: Sequence[int], micro_batches: int) -> list[int]:
    """``row`` without the operations after the first ``micro_batches``."""
    left = [micro_batches] * len(KINDS)
    kept = []
    for kind in row:
        if left[kind] > 0:
            kept.append(kind)
        left[kind] -= 1
    return kept


def _warmed_up(row: list[int], d: int, devices: int, held: int, micro_batches: int) -> list[int]:
    """``row`` with the part before its first gradient of the way up laid out anew.

    Forwards down while the first micro-batch is on its way, then both in turn until ``held`` are resident, and after
    these a gradient, its weight gradient and a forward in turn.
    """
    begins = row.index(B_UP)
    up = min(d + 1, held // 2, micro_batches)
    left = [row[:begins].count(kind) for kind in KINDS]
    down = min(held - up, micro_batches, left[F_DOWN])
    up = min(up, left[F_UP])
    early = min(down, 2 * (devices - 1 - d))
    laid = [F_DOWN] * early
    for _ in range(d + 1):
        if down > early:
            laid.append(F_DOWN)
            early += 1
        if up > 0:
            laid.append(F_UP)
            up -= 1
            left[F_UP] -= 1
    left[F_DOWN] -= early
    while any(left[:B_UP]) or left[W_DOWN]:
        for kinds in ((B_DOWN,), (W_DOWN,), (F_UP, F_DOWN)):
            kind = next((kind for kind in kinds if left[kind] > 0), None)
            if kind is not None:
                laid.append(kind)
                left[kind] -= 1
    return [*laid, *row[begins:]]


def _squeezed(rows: Sequence[Sequence[int]]) -> list[list[int]] | None:
    """Per device, the operation in each slot (-1: none), each as early as its order and its inputs allow; None if the
    orders wait for each other in a cycle."""
    devices = len(rows)
    places, free = [0] * devices, [0] * devices
    ends: list[list[list[int]]] = [[[] for _ in KINDS] for _ in rows]  # per device and kind, by micro-batch
    table: list[list[int]] = [[] for _ in rows]
    awake = list(range(devices))
    while awake:
        checkpoint()
        d = awake.pop()
        row, own = rows[d], ends[d]
        while places[d] < len(row):
            kind = row[places[d]]
            ready = _ready(ends, d, kind, len(own[kind]))
            if ready is None:
                break
            table[d].extend([-1] * (ready - free[d]))
            free[d] = max(free[d], ready) + 1
            own[kind].append(free[d])
            table[d].append(kind)
            places[d] += 1
            if kind < W_DOWN:
                other = d + (1 if kind in (F_DOWN, B_DOWN) else -1)
                if 0 <= other < devices and other not in awake:
                    awake.append(other)
    return table if all(place == len(row) for place, row in zip(places, rows, strict=True)) else None


def _ready(ends: Sequence[Sequence[Sequence[int]]], d: int, kind: int, m: int) -> int | None:
    """The end of the input of micro-batch ``m`` for ``kind`` on device ``d``; None if that has not run."""
    if kind >= W_DOWN:
        source, before = d, kind - 2
    elif kind in (F_DOWN, B_DOWN):
        source, before = (d - 1, kind) if d else (0, kind - 1)
    else:
        source, before = (d + 1, kind) if d + 1 < len(ends) else (d, kind - 1)
    if before < 0:
        return 0
    known = ends[source][before]
    return known[m] if m < len(known) else None


def _cooled_down(table: list[list[int]], micro_batches: int, held: int) -> list[list[int]]:
    """The orders with the last gradients laid out anew, and the weight gradients after them in empty slots."""
    devices = len(table)
    most_up = min((held + 1) // 2, micro_batches)
    most_down = min(held - most_up, micro_batches)
    last = max(slot for slot, kind in enumerate(table[0]) if kind == F_UP)
    rows: list[list[int]] = []
    for d, slots in enumerate(checked(table)):
        ups, downs = most_up, min(d + 1, most_down)
        kept = _without_last(slots, B_UP, ups)
        kept = _without_last(kept, B_DOWN, downs)
        kept = _without_tail_weights(kept, ups, downs, held)
        placed = [(slot, 0, kind) for slot, kind in enumerate(kept) if kind >= 0]
        placed += [(last - d + 2 * devices - 2 * k, 1, B_UP) for k in range(ups)]
        placed += [(last + 1 + d - 2 * k, 1, B_DOWN) for k in range(downs)]
        rows.append(_with_weights(sorted(placed), micro_batches))
    return rows


def _without_last(slots: Sequence[int], kind: int, count: int) -> list[int]:
    """``slots`` with the last ``count`` of ``kind`` taken out."""
    kept = list(slots)
    for slot in reversed(range(len(kept))):
        if not count:
            break
        if kept[slot] == kind:
            kept[slot] = -1
            count -= 1
    return kept


def _without_tail_weights(slots: list[int], ups: int, downs: int, held: int) -> list[int]:
    """``slots`` without the last weight gradients: as many as gradients were taken out and ``held`` in all."""
    taken = {W_DOWN: 0, W_UP: 0}
    for slot in reversed(range(len(slots))):
        if taken[W_DOWN] >= downs and taken[W_UP] >= ups and sum(taken.values()) >= held:
            break
        if slots[slot] >= W_DOWN:
            taken[slots[slot]] += 1
            slots[slot] = -1
    return slots


def _with_weights(placed: Sequence[tuple[int, int, int]], micro_batches: int) -> list[int]:
    """The order of the ``placed`` operations (slot, rank, kind), with the missing weight gradients after the last of
    those present, in empty slots, none before its gradient."""
    behind = max((slot for slot, _, kind in placed if kind >= W_DOWN), default=-1)
    done, row, time = [0] * len(KINDS), list[int](), 0

    def weight() -> int | None:
        return next((kind for kind in _WEIGHTS if done[kind] < done[kind - 2]), None)

    for slot, _, kind in placed:
        for empty in range(time, slot):
            filler = weight() if empty > behind else None
            if filler is not None:
                row.append(filler)
                done[filler] += 1
        row.append(kind)
        done[kind] += 1
        time = max(time, slot + 1)
    for kind in _WEIGHTS:
        row += [kind] * (micro_batches - done[kind])
    return row


def _fill_empty_slots(table: list[list[int]], most: int) -> None:
    """Move into every empty slot, from left to right, the first later operation of its device that can run there."""
    devices, length = len(table), max(map(len, table))
    for row in table:
        row.extend([-1] * (length - len(row)))
    ends: list[list[list[int]]] = [[[] for _ in KINDS] for _ in table]
    last = [{kind: slot for slot, kind in enumerate(row)} for row in table]
    level = [0] * devices
    for now in checked(range(length), 16):
        for d, row in enumerate(table):
            kind = row[now]
            if kind < 0:
                slot = _movable(row, now, ends, d, last[d], most - level[d])
                if slot is None:
                    continue
                kind = row[now] = row[slot]
                row[slot] = -1
            ends[d][kind].append(now + 1)
            level[d] += (kind <= F_UP) - (kind >= W_DOWN)


def _movable(row: Sequence[int], now: int, ends: Sequence[Sequence[Sequence[int]]], d: int, last: dict[int, int],
             room: int) -> int | None:
    """The slot of the first operation after ``now`` that can run then, with ``room`` for what others take later."""
    left = {kind for kind in KINDS if last.get(kind, -1) > now}
    change = peak = 0
    for slot in range(now + 1, len(row)):
        if not left:
            return None
        kind = row[slot]
        if kind < 0:
            continue
        before = peak
        change += (kind <= F_UP) - (kind >= W_DOWN)
        peak = max(peak, change)
        if kind not in left:
            continue
        left.remove(kind)
        if kind <= F_UP and before >= room:
            continue
        ready = _ready(ends, d, kind, len(ends[d][kind]))
        if ready is not None and ready <= now:
            return slot
    return None


def _in_turn(row: Sequence[int]) -> list[int]:
    """The order of ``row``, its weight gradients in the order of their gradients."""
    waiting: list[int] = []
    first, order = 0, list[int]()
    for kind in row:
        if kind < 0:
            continue
        if kind in (B_DOWN, B_UP):
            waiting.append(kind + 2)
        elif kind >= W_DOWN:
            kind = waiting[first]
            first += 1
        order.append(kind)
    return order
