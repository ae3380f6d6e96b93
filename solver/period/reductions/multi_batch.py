"""Several micro-batches per period: the same problem with every block in as many copies.

Under tight memory the best steady state may advance two or three micro-batches per period, which halves or thirds the
loss by rounding to whole micro-batches. Copy c of a block runs micro-batches c, q + c, 2 q + c, ...; a dependency of
distance h from micro-batch m - h links copy (c - h) mod q to copy c, (h - c) / q rounded up to whole periods earlier.
A block's copies run in turn, as its micro-batches do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from weft.solver.period.periodic import Periodic
from weft.solver.problem import Block, Dependency, Problem
from weft.solver.ticks import Arc, TickProblem


def in_copies(instance: TickProblem, copies: int) -> TickProblem:
    """``instance`` with ``copies`` micro-batches per period; block i's copy c has the number c * blocks + i."""
    n = len(instance.durations)

    def row(amounts: Mapping[int, int]) -> dict[int, int]:
        return {c * n + i: amount for c in range(copies) for i, amount in amounts.items()}

    # Arc by arc: transfers of one block's output run in the order of their arcs, the same in every copy.
    waits = [Arc((c - arc.distance) % copies * n + arc.source, c * n + arc.target, arc.lag,
                 -((c - arc.distance) // copies), arc.link) for arc in instance.arcs for c in range(copies)]
    in_turn = [Arc(c * n + i, (c + 1) % copies * n + i, 0, (c + 1) // copies, None)
               for c in range(copies) for i in range(n)]
    return replace(instance, problem=_copied(instance.problem, copies), durations=instance.durations * copies,
                   arcs=(*waits, *in_turn), take=tuple(row(amounts) for amounts in instance.take),
                   change=tuple(row(amounts) for amounts in instance.change),
                   mixed_pools=tuple(replace(pool, take=row(pool.take), change=row(pool.change))
                                     for pool in instance.mixed_pools))


def repeat_copies(found: Periodic, instance: TickProblem, copies: int) -> Periodic:
    """A schedule with one micro-batch per period, converted to one of ``instance``, its problem in ``copies``."""
    starts = tuple(start + c * found.period for c in range(copies) for start in found.starts)
    return Periodic(instance, found.period * copies, tuple(Fraction(start) for start in starts), copies)


def _copied(problem: Problem, copies: int) -> Problem:
    blocks: list[Block] = []
    for c in range(copies):
        for block in problem.blocks:
            waits = [replace(wait, block=f"{wait.block}*{(c - wait.distance) % copies}",
                             distance=-((c - wait.distance) // copies)) for wait in block.after]
            before = Dependency(f"{block.name}*{(c - 1) % copies}", distance=int(c == 0))
            blocks.append(replace(block, name=f"{block.name}*{c}", after=(*waits, before)))
    return replace(problem, blocks=tuple(blocks))
