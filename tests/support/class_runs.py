"""Random small runs whose micro-batches differ in time and memory, and the best order of them by trying all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations, product

from tests.oracles.whole import least_makespan
from weft.solver.problem import BlockKind, Device
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Rounds, Run


def drawn_pipeline(seed: int, *, stages: int = 2, tight: bool = True, split: bool = False) -> WideProblem:
    """A pipeline with classes whose times, lags and amounts differ, each in its own way."""
    draw = random.Random(seed)
    names = ("a", "b", "c")[:draw.choice([2, 2, 3])]
    devices = tuple(Device(f"gpu{s}", draw.randint(4, 7) if tight and draw.random() < 0.8 else None)
                    for s in range(stages))

    def each(least: int, most: int) -> dict[str, int]:
        return {name: draw.randint(least, most) for name in names}

    blocks: list[WideBlock] = []
    held = [each(1, 3) for _ in range(stages)]
    for s in range(stages):
        after = () if s == 0 else (WideDependency(f"F{s - 1}", each(0, 1)),)
        blocks.append(WideBlock(f"F{s}", BlockKind.FORWARD, (s,), each(1, 3), {n: (held[s][n],) for n in names},
                                {n: (draw.randint(0, 1),) for n in names}, after))
    for s in reversed(range(stages)):
        waits = (WideDependency(f"F{s}"), *((WideDependency(f"B{s + 1}"),) if s + 1 < stages else ()))
        if not split:
            blocks.append(WideBlock(f"B{s}", BlockKind.BACKWARD, (s,), each(1, 4), {n: (-held[s][n],) for n in names},
                                    after=waits))
            continue
        first = {n: draw.randint(0, held[s][n]) for n in names}
        blocks.append(WideBlock(f"B{s}", BlockKind.INPUT_GRAD, (s,), each(1, 2), {n: (-first[n],) for n in names},
                                after=waits))
        blocks.append(WideBlock(f"W{s}", BlockKind.WEIGHT_GRAD, (s,), each(1, 2),
                                {n: (first[n] - held[s][n],) for n in names}, after=(WideDependency(f"B{s}"),)))
    return WideProblem(f"drawn{seed}", devices, tuple(blocks))


def pipeline_of_lengths(stages: int, lengths: list[int], memory: int | None = None) -> tuple[WideProblem, Run]:
    """Forwards of as many ticks as a micro-batch is long, backwards of twice as many, amounts likewise."""
    names = {f"len{length}": length for length in sorted(set(lengths))}
    blocks = []
    for s in range(stages):
        after = (WideDependency(f"F{s - 1}"),) if s else ()
        blocks.append(WideBlock(f"F{s}", BlockKind.FORWARD, (s,), names, {n: (x,) for n, x in names.items()},
                                after=after))
    for s in reversed(range(stages)):
        blocks.append(WideBlock(f"B{s}", BlockKind.BACKWARD, (s,), {n: 2 * x for n, x in names.items()},
                                {n: (-x,) for n, x in names.items()},
                                after=(WideDependency(f"B{s + 1}" if s < stages - 1 else f"F{s}"),)))
    wide = WideProblem("lengths", tuple(Device(f"gpu{s}", memory) for s in range(stages)), tuple(blocks))
    return wide, Run.of(wide, [f"len{length}" for length in lengths])


def all_orders(names: list[str]) -> Iterator[list[str]]:
    """Every order of ``names``, none twice."""
    yield from map(list, sorted(set(permutations(names))))


def any_orders(wide: WideProblem, count: int) -> Iterator[list[str]]:
    """Every sequence of ``count`` classes."""
    yield from map(list, product(wide.classes, repeat=count))


def best_of_orders(wide: WideProblem, orders: Iterator[list[str]]) -> Fraction | None:
    """The least makespan of all ``orders``; ``None`` where none fits."""
    found = []
    for names in orders:
        rounds = Rounds(wide, Run.of(wide, names))
        least = least_makespan(rounds.problem, rounds.run.rounds)
        if least is not None:
            found.append(least)
    return min(found, default=None)
