"""Random small runs whose micro-batches differ in time and memory, and the best order of them by trying all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations, product

from tests.oracles.whole import least_makespan
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem, per_class
from weft.solver.problem.rounds import Rounds, Run


def drawn_pipeline(seed: int, *, stages: int = 2, tight: bool = True, split: bool = False) -> Problem:
    """A pipeline with classes whose times, lags and amounts differ, each in its own way."""
    draw = random.Random(seed)
    names = ("a", "b", "c")[:draw.choice([2, 2, 3])]
    devices = tuple(Device(f"gpu{s}", draw.randint(4, 7) if tight and draw.random() < 0.8 else None)
                    for s in range(stages))

    def each(least: int, most: int) -> dict[str, int]:
        return {name: draw.randint(least, most) for name in names}

    blocks: list[Block] = []
    held = [each(1, 3) for _ in range(stages)]
    for s in range(stages):
        after = () if s == 0 else (Dependency(f"F{s - 1}", **per_class(lag=each(0, 1))),)
        blocks.append(Block(f"F{s}", BlockKind.FORWARD, (s,), after=after, **per_class(
            duration=each(1, 3), memory={n: (held[s][n],) for n in names},
            workspace={n: (draw.randint(0, 1),) for n in names})))
    for s in reversed(range(stages)):
        waits = (Dependency(f"F{s}"), *((Dependency(f"B{s + 1}"),) if s + 1 < stages else ()))
        if not split:
            blocks.append(Block(f"B{s}", BlockKind.BACKWARD, (s,), after=waits, **per_class(
                duration=each(1, 4), memory={n: (-held[s][n],) for n in names})))
            continue
        first = {n: draw.randint(0, held[s][n]) for n in names}
        blocks.append(Block(f"B{s}", BlockKind.INPUT_GRAD, (s,), after=waits, **per_class(
            duration=each(1, 2), memory={n: (-first[n],) for n in names})))
        blocks.append(Block(f"W{s}", BlockKind.WEIGHT_GRAD, (s,), after=(Dependency(f"B{s}"),), **per_class(
            duration=each(1, 2), memory={n: (first[n] - held[s][n],) for n in names})))
    return Problem(f"drawn{seed}", devices, tuple(blocks))


def pipeline_of_lengths(stages: int, lengths: list[int], memory: int | None = None) -> tuple[Problem, Run]:
    """Forwards of as many ticks as a micro-batch is long, backwards of twice as many, amounts likewise."""
    names = {f"len{length}": length for length in sorted(set(lengths))}
    blocks = []
    for s in range(stages):
        after = (Dependency(f"F{s - 1}"),) if s else ()
        blocks.append(Block(f"F{s}", BlockKind.FORWARD, (s,), after=after, **per_class(
            duration=names, memory={n: (x,) for n, x in names.items()})))
    for s in reversed(range(stages)):
        blocks.append(Block(f"B{s}", BlockKind.BACKWARD, (s,), **per_class(
            duration={n: 2 * x for n, x in names.items()}, memory={n: (-x,) for n, x in names.items()}),
            after=(Dependency(f"B{s + 1}" if s < stages - 1 else f"F{s}"),)))
    wide = Problem("lengths", tuple(Device(f"gpu{s}", memory) for s in range(stages)), tuple(blocks))
    return wide, Run.of(wide, [f"len{length}" for length in lengths])


def all_orders(names: list[str]) -> Iterator[list[str]]:
    """Every order of ``names``, none twice."""
    yield from map(list, sorted(set(permutations(names))))


def any_orders(wide: Problem, count: int) -> Iterator[list[str]]:
    """Every sequence of ``count`` classes."""
    yield from map(list, product(wide.classes, repeat=count))


def best_of_orders(wide: Problem, orders: Iterator[list[str]]) -> Fraction | None:
    """The least makespan of all ``orders``; ``None`` where none fits."""
    found = []
    for names in orders:
        rounds = Rounds(wide, Run.of(wide, names))
        least = least_makespan(rounds.problem, rounds.run.rounds)
        if least is not None:
            found.append(least)
    return min(found, default=None)
