"""Whole backwards are left out exactly where the split ones can do all they can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from weft.app.lib.domination import undominated
from weft.models.candidates.build import ModelCandidate, candidates
from weft.models.spec.spec import demo_spec, parse_spec
from weft.solver import Problem, solve

SPEC = """
name: tiny
model:
  layers:
    - {name: block, forward: 2 ms, input_grad: 3 ms, weight_grad: 1 ms, activation_memory: 100 MiB,
       weight_grad_memory: 40 MiB, output: 1 MiB, parameters: 1000000, repeat: 4}
cluster: {gpus: 2, memory: 2 GiB, bandwidth: 30 GB/s, latency: 10 us}
training: {micro_batches: 4}
placement: {shapes: [chain]}
"""


@pytest.fixture
def twins() -> list[ModelCandidate]:
    """The whole backward and the split one of the same stages."""
    found = candidates(parse_spec(SPEC, "tiny.yaml", Path()))
    assert [candidate.backward for candidate in found] == ["full", "split"]
    return found


def changed(candidate: ModelCandidate, name: str, **fields: object) -> ModelCandidate:
    problem = candidate.problem
    blocks = tuple(replace(block, **fields) if block.name == name else block  # type: ignore[arg-type]
                   for block in problem.blocks)
    return replace(candidate, problem=Problem(problem.name, problem.devices, blocks))


def test_a_whole_backward_is_left_out_beside_its_split_twin(twins: list[ModelCandidate]) -> None:
    assert undominated(twins) == twins[1:]
    assert undominated(twins[:1]) == twins[:1]


def test_the_twin_is_indeed_never_worse(twins: list[ModelCandidate]) -> None:
    whole, split = (solve(twin.problem, 4, effort=20) for twin in twins)
    assert whole.status == split.status == "optimal"
    assert split.makespan <= whole.makespan


@pytest.mark.parametrize(("name", "fields"), [
    ("W0", {"workspace": (10**9,)}),  # holds more than the whole backward does
    ("W1", {"duration": 0.1}),  # takes longer
    ("F0", {"duration": 0.1}),  # another forward altogether
])
def test_a_twin_that_cannot_do_as_much_keeps_both(twins: list[ModelCandidate], name: str,
                                                  fields: dict[str, object]) -> None:
    lesser = changed(twins[1], name, **fields)
    assert undominated([twins[0], lesser]) == [twins[0], lesser]


def test_the_demo_keeps_a_placement_of_every_shape() -> None:
    found = candidates(demo_spec())
    kept = undominated(found)
    assert {candidate.shape for candidate in kept} == {"chain", "v", "loop"}
    assert len(kept) < len(found)
    assert all(candidate in kept for candidate in found if candidate.backward == "split")
