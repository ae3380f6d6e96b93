"""Orders made at once, in about n log n steps for n operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from weft.solver.baselines.lib.base import NotApplicable
from weft.solver.baselines.lib.sequential import in_sequence
from weft.solver.baselines.one_f_one_b import orders_within_memory
from weft.solver.problem import Problem
from weft.solver.timing import Orders


def at_once(problem: Problem, micro_batches: int) -> Iterator[tuple[str, Orders]]:
    """Per-device orders by name, the better ones first: 1F1B if the problem is a chain of stages, with as many
    micro-batches in flight as fit, then one micro-batch after the other. The judge says whether they fit.
    """
    with suppress(NotApplicable):
        yield "1f1b", orders_within_memory(problem, micro_batches)
    sequential = in_sequence(problem, micro_batches)
    if sequential is not None:
        yield "sequential", sequential
