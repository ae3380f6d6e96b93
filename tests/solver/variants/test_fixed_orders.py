"""One order on many problems at once: as timed and judged one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.support.cut_specs import MODES, Mode, all_cuts, problems_of, space_of
from weft.models.cuts.space import orders_of_blocks, variants_of
from weft.solver import Schedule, violations
from weft.solver.pipeline import Pipeline
from weft.solver.timing import DeadlockError, time_orders
from weft.solver.variants.bounds import Variants
from weft.solver.variants.fixed_orders import fitting, makespans


def random_orders(variants: Variants, micro_batches: int, seed: int) -> list[list[tuple[int, int]]]:
    """An order that dependencies allow, each block's micro-batches in turn; memory is not looked at."""
    dice, rows = random.Random(seed), [list[tuple[int, int]]() for _ in range(variants.devices)]
    done = [0] * len(variants.device)
    into = [[wait.source for wait in variants.waits if wait.target == block] for block in range(len(variants.device))]
    while True:
        ready = [block for block, m in enumerate(done)
                 if m < micro_batches and all(done[source] > m for source in into[block])]
        if not ready:
            return rows
        soon = max((block for block in ready if block < 2 * variants.stages), default=ready[0])
        block = soon if dice.random() < 0.5 else dice.choice(ready)  # gradients soon, else nothing ever fits
        rows[variants.device[block]].append((block, done[block]))
        done[block] += 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "chunks"), [("chain", 1), ("v", 2), ("loop", 2), ("wave", 3)])
def test_makespans_and_memory_are_those_of_each_problem(mode: Mode, shape: str, chunks: int) -> None:
    verdicts = set()
    for number in range(0, 8, 2):
        space = space_of(number, mode, shape, chunks, count=7, unequal=number > 3)
        problems = problems_of(space)
        cuts = random.Random(number).sample(list(problems), min(5, len(problems)))
        variants = variants_of(space.ground, np.array(cuts, dtype=np.int16), trains=mode != "none")
        rows = random_orders(variants, space.micro_batches, number)
        times, fits = makespans(variants, rows, space.micro_batches), fitting(variants, rows)
        for k, cut in enumerate(cuts):
            orders = orders_of_blocks(Pipeline.of(problems[cut]), rows)
            operations = time_orders(problems[cut], space.micro_batches, orders)
            found = Schedule(problems[cut], space.micro_batches, operations, makespan_bound=0.0, solver={"name": "a"})
            assert times[k] == round(found.makespan * 1e9)
            assert fits[k] == (not violations(found, limit=1))
            verdicts.add(bool(fits[k]))
    assert len(verdicts) == 2 or mode == "none"


def test_many_variants_are_timed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(3, "split", "v", 2)
    variants = variants_of(space.ground, np.array(list(all_cuts(space)), dtype=np.int16), trains=True)
    rows = random_orders(variants, space.micro_batches, 3)
    at_once = makespans(variants, rows, space.micro_batches)
    monkeypatch.setattr("weft.solver.variants.fixed_orders._AT_ONCE", 3 * sum(map(len, rows)))
    assert (makespans(variants, rows, space.micro_batches) == at_once).all() and len(set(at_once)) > 1
    assert not len(makespans(variants.chosen([]), rows, space.micro_batches))


def test_orders_that_are_none_are_refused() -> None:
    space = space_of(0, "full")
    variants = variants_of(space.ground, np.array(list(all_cuts(space)), dtype=np.int16), trains=True)
    rows = random_orders(variants, space.micro_batches, 0)
    with pytest.raises(DeadlockError, match="hold 17 operations of 18"):
        makespans(variants, [rows[0][1:], rows[1]], space.micro_batches)
    with pytest.raises(DeadlockError, match="circle"):
        makespans(variants, [rows[0][::-1], rows[1]], space.micro_batches)
