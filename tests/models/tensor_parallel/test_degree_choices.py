"""On how many GPUs each stage runs, as choices."""

from __future__ import annotations

import pytest

from tests.models.tensor_parallel.test_shapes import spec_of
from weft.models.candidates.family_costs import family_costs
from weft.models.tensor_parallel.degree_choices import degree_choice, degree_problem, group_of
from weft.models.tensor_parallel.parts import Part, part_problem, stage_cost, static_memory
from weft.models.tensor_parallel.space import Space, space_of
from weft.solver.choices.solve import solve_wide
from weft.solver.judge.validate import violations
from weft.solver.problem import ProblemError

GPT = "{family: gpt, layers: 2, hidden: 1024, heads: 16, vocabulary: 51200, sequence: 1024}"
RUN = "training: {micro_batches: 2, optimizer_bytes_per_parameter: 4}"


def small(memory: str = "32 GiB") -> Space:
    spec = spec_of(GPT, memory=memory, run=RUN)
    space = space_of(spec, family_costs(spec))
    assert space is not None
    return space


def test_every_assignment_is_the_placement_on_these_groups() -> None:
    space, cuts, homes = small(), (0, 2, 4), (0, 2)
    wide = degree_problem(space, cuts, homes, (1, 2, 4), "full")
    assert wide.choices == {degree_choice(s): ("1", "2", "4") for s in range(2)}
    for options in wide.assignments:
        plain = wide.under(options).plain()
        parts = [Part(str(s), tuple(range(cuts[s], cuts[s + 1])), group_of(homes[s], int(options[degree_choice(s)])),
                      stage_cost(space.costs[int(options[degree_choice(s)])], range(cuts[s], cuts[s + 1])))
                 for s in range(2)]
        static = static_memory(parts, space.sharded, space.layers, space.bytes_per_parameter)
        known, gpus = part_problem("known", space.graph, space.layers, parts, space.capacity, static, "full",
                                   space.network)
        for block in known.blocks:
            own = plain.blocks[plain.index[block.name]]
            assert own.devices == tuple(sorted(gpu for d in block.devices for gpu in gpus[d]))
            assert (own.duration, own.memory[0], own.workspace[0]) == (block.duration, block.memory[0],
                                                                      block.workspace[0])
            assert sorted((wait.block, wait.lag) for wait in own.after) == sorted(
                (wait.block, wait.lag) for wait in block.after)
        for gpu, device in enumerate(plain.devices):
            assert device.memory is not None and device.memory <= space.capacity - static.get(gpu, 0)


def test_a_best_assignment_is_found_and_no_other_is_better() -> None:
    wide = degree_problem(small(), (0, 2, 4), (0, 2), (1, 2, 4), "full")
    found = solve_wide(wide, 2, effort=6.0)
    assert not violations(found, limit=1) and found.makespan == pytest.approx(found.makespan_bound)
    alone = {str(sorted(options.items())): solve_wide(wide.under(options), 2, effort=2.0).makespan_bound
             for options in wide.assignments}
    assert min(alone.values()) >= found.makespan * (1 - 1e-9)
    assert found.makespan < min(solve_wide(degree_problem(small(), (0, 2, 4), (0, 2), (1,), "full"), 2,
                                           effort=1.0).makespan, 1e9)


def test_what_does_not_fit_or_divide_is_refused() -> None:
    with pytest.raises(ProblemError, match="allow fewer degrees or give more memory"):
        degree_problem(small("300 MiB"), (0, 2, 4), (0, 2), (1, 2), "full")
    with pytest.raises(ProblemError, match="degree 3 does not divide 4 GPUs"):
        degree_problem(small(), (0, 2, 4), (0, 2), (1, 3), "full")
