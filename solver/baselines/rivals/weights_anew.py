"""Weight gradients placed anew in a given order of forwards and gradients.

An order made for slots of equal length leaves gaps if durations differ. A weight gradient has no dependents, so it may
fill any of them (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 3; "Pipeline Parallelism with
Controllable Memory", NeurIPS 2024, section 4, the last step of reordering). If memory is short, one runs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from weft.solver.baselines.lib.building_block import Built, StepChain
from weft.solver.baselines.rivals.placing import NoRoom, Placing
from weft.solver.control.clock import checkpoint

#: Stands for the longest waiting weight gradient, among the steps of a row.
WEIGHT = -1


class Rule(Enum):
    """Which weight gradients run before a step that has not arrived yet."""

    AS_GIVEN = "those that the row has there"
    IN_TIME = "those that end before it arrives"
    ANY_GAP = "one more, which delays it"
    FAIR = "one more, where the device would else be the one that is idle longest"


def in_order(chain: StepChain, rows: Sequence[Sequence[int]], micro_batches: int, rule: Rule,
             room: Sequence[int | None] | None = None) -> Built | None:
    """Each device runs the steps of its row (of the chain; micro-batches in turn) in that order.

    Weight gradients run by ``rule``, those that have waited longest first, and if ``room`` (by default the chain's own)
    lacks memory for a step. None if the rows wait for each other in a cycle or do not fit.
    """
    checkpoint()
    placing = Placing(chain, micro_batches, room)
    try:
        if not _run(placing, rows, rule):
            return None
        finished = placing.finish()
    except NoRoom:
        return None
    middle, half = placing.ends[len(placing.ends) // 2], micro_batches // 2
    pace = (middle[-1] - middle[half]) / (micro_batches - 1 - half) if micro_batches - 1 > half else 0.0
    return Built(finished, max(placing.now), pace)


def _run(placing: Placing, rows: Sequence[Sequence[int]], rule: Rule) -> bool:
    """Place all steps of ``rows``; whether that was possible."""
    device = placing.chain.device
    places = [0] * len(rows)
    awake = list(range(len(rows)))
    while awake:
        d = awake.pop()
        row = rows[d]
        while places[d] < len(row):
            step = row[places[d]]
            if step == WEIGHT:
                if rule is Rule.AS_GIVEN:
                    placing.put_weight(d)
                places[d] += 1
                continue
            if not placing.is_open(step):
                break
            if rule is not Rule.AS_GIVEN:
                _fill(placing, d, step, rule)
            placing.put(step)
            places[d] += 1
            if step + 1 < len(device) and device[step + 1] != d:
                awake.append(device[step + 1])
    return all(place == len(row) for place, row in zip(places, rows, strict=True))


def _fill(placing: Placing, d: int, step: int, rule: Rule) -> None:
    while not placing.fits(step):
        placing.put_weight(d)
    arrival = placing.arrival(step)
    placing.fill(d, arrival)
    if rule is not Rule.IN_TIME:
        placing.fill_beyond(d, arrival, max(placing.idle) - placing.idle[d] if rule is Rule.FAIR else 0.0)


def without_micro_batches(chain: StepChain, rows: Sequence[Sequence[tuple[int, int]]]) -> list[list[int]]:
    """Rows of blocks as rows of steps; :data:`WEIGHT` for weight gradients that are not steps."""
    step = {block: i for i, block in enumerate(chain.steps)}
    return [[step.get(block, WEIGHT) for block, _ in row] for row in rows]
