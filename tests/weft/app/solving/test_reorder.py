"""The best order of micro-batches of different length over all placements of a spec."""

from __future__ import annotations

import pytest

import weft
from weft.app.lib.case import case_of
from weft.app.solving.reorder import best_order
from weft.models.spec.spec import parse_spec
from weft.solver.judge.validate import validate

SPEC = """
name: GPT on 2 A100
model: {family: gpt, layers: 4, hidden: 512, heads: 8, vocabulary: 8192, sequence: 1024}
cluster: {gpus: 2, memory: 24 GiB, device: a100-40gb}
training: {lengths: [1024, 64, 512]}
placement: {shapes: [chain, v], backward: [full]}
"""


def test_it_is_no_longer_than_the_order_given_and_says_what_is_proven() -> None:
    spec = parse_spec(SPEC)
    given = weft.solve(spec, effort=6.0, time_limit=3000)
    options = weft.SearchOptions(effort=6.0, time_limit=3000, reorder=True)
    found = best_order(case_of(spec, None, options), options)
    validate(found)
    assert found.makespan <= given.makespan * (1 + 1e-9)
    assert found.solver["bound_over_placements"] <= found.makespan_bound <= found.makespan
    assert found.rounds is not None and sorted(map(str, found.rounds.run.classes[None])) == [
        "len1024", "len512", "len64"]
    assert given.rounds is not None and given.rounds.run.classes[None] == ("len1024", "len64", "len512")


def test_another_number_of_micro_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="lists the lengths of 3"):
        case_of(parse_spec(SPEC), 4)
