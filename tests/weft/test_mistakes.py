"""What a Python program may get wrong: a ``ValueError`` with one sentence that names it, none from deep inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft
from tests.support.builders import chain, pipeline

PROBLEM = pipeline(chain(2))
ANY: Any = weft  # callers without a type checker


@pytest.mark.parametrize(("call", "told"), [
    (lambda: ANY.solve(5, micro_batches=2), "the source is a int, it must be a model spec, a block problem"),
    (lambda: ANY.compare(None, micro_batches=2), "the source is a NoneType"),
    (lambda: ANY.solve(PROBLEM, micro_batches=0), "micro_batches is 0, it must be at least 1"),
    (lambda: ANY.solve(PROBLEM, micro_batches="3"), "micro_batches is '3', it must be a whole number"),
    (lambda: ANY.solve(PROBLEM, micro_batches=2.5), "micro_batches is 2.5, it must be a whole number"),
    (lambda: ANY.solve(PROBLEM, micro_batches=2, options={"effort": 1}), "it must be a weft.SearchOptions"),
    (lambda: ANY.latency(PROBLEM, points="x"), "points is 'x', it must be a whole number"),
    (lambda: ANY.explain(PROBLEM, micro_batches=2, in_flight="x"), "in_flight is 'x', it must be a whole number"),
    (lambda: ANY.sweep(PROBLEM, micro_batches=[2], cache=3), "cache is 3, it must be the name of a folder"),
    (lambda: ANY.sweep(PROBLEM, micro_batches=[2], workers="2"), "workers is '2', it must be a whole number"),
    (lambda: ANY.sweep(PROBLEM, micro_batches=[2], options=weft.SearchOptions(reorder=True)), "reorder is for so"),
    (lambda: ANY.place(PROBLEM, any_class=True), "any_class is for solve, compare, explain and latency"),
    (lambda: ANY.place_step(PROBLEM, ratio={"a": 1}), "ratio is for solve, compare, explain and latency"),
    (lambda: ANY.place(PROBLEM), "the graph is a Problem, it must be a model spec, an operator graph"),
    (lambda: ANY.place_memory(5), "the spec is a int"),
    (lambda: ANY.draw(None, "x.svg"), "the schedule is a NoneType"),
    (lambda: ANY.check(3.0), "the schedule is a float"),
    (lambda: ANY.schema(3), "there is no schema of 3"),
])
def test_a_value_that_means_nothing_is_named(call: Callable[[], object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        call()
