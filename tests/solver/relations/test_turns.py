"""The micro-batches of a round as those of one problem, and what that says of the rounds, against brute force."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.oracles.whole import least_makespan
from tests.support.builders import chain, loop, pipeline, v
from tests.support.examples import slow
from weft.solver.bounds import makespan_bound
from weft.solver.bounds.states import Analysis, search, system_of
from weft.solver.problem import Block, Dependency, Problem, per_class
from weft.solver.problem.rounds import Rounds, Run
from weft.solver.relations.graph import graph_of
from weft.solver.relations.implied_order import implied_order
from weft.solver.relations.turns import turns_of
from weft.solver.ticks import TickProblem

AMPLE = 10**12


def of_classes(plain: Problem, draw: random.Random) -> Problem:
    """``plain`` with micro-batches of two classes, which differ in duration alone."""
    blocks = tuple(Block(block.name, block.kind, block.devices,
                         **per_class(duration={name: draw.randint(1, 4) for name in "ab"}, memory=block.memory),
                         after=tuple(Dependency(wait.block, draw.randint(0, 1)) for wait in block.after))
                   for block in plain.blocks)
    return Problem("classes", plain.devices, blocks)


def rounds_of(seed: int) -> Rounds:
    draw = random.Random(seed)
    devices = draw.choice([chain(2), v(2), loop(2)])
    plain = pipeline(devices, memory=draw.choice([2, 3]) if len(devices) > 2 else draw.choice([1, 2]))
    run = draw.choice(["ab", "aab", "abba", "abab"] if len(devices) == 2 else ["ab", "abb"])
    wide = of_classes(plain, draw)
    return Rounds(wide, Run.of(wide, list(run)))


@pytest.mark.parametrize("seed", [*range(12), *map(slow, range(12, 60))])
def test_bounds_and_states_of_rounds_are_those_of_brute_force(seed: int) -> None:
    rounds = rounds_of(seed)
    problem, count = rounds.problem, rounds.run.rounds
    instance = TickProblem.of(problem)
    turns = turns_of(instance)
    assert turns.width * count == len(rounds.run.classes[None])
    assert len(turns.blocks) * turns.width == len(problem.blocks)
    best = least_makespan(problem, count)
    assert best is not None
    order = implied_order(instance, graph_of(instance), count)
    assert makespan_bound(instance, count, order) * instance.tick <= best
    known = Analysis.of(instance, count, order)
    everything = range(len(problem.devices))
    found = search(system_of(known, everything), AMPLE, most=10**5, widest=10**5)
    assert found.bound * instance.tick == best and found.sequence is not None
    for device in everything:
        assert search(system_of(known, [device]), AMPLE, most=10**5, widest=10**5).bound * instance.tick <= best


def test_memory_orders_the_micro_batches_of_a_round() -> None:
    """With room for one at a time the next begins after the last gave back, whatever their lengths."""
    wide = of_classes(pipeline(chain(2), memory=1), random.Random(0))
    instance = TickProblem.of(Rounds(wide, Run.of(wide, list("aab"))).problem)
    order = implied_order(instance, graph_of(instance), 1)
    on = [turn for turn in turns_of(instance).blocks if instance.problem.blocks[turn[0]].devices == (0,)]
    [takers], [givers] = ([turn for turn in on if sign * instance.change[0][turn[0]] > 0] for sign in (1, -1))
    assert order[givers[0], takers[1]] == order[givers[1], takers[2]] == 0


def test_a_problem_without_rounds_has_its_blocks_on_their_own() -> None:
    instance = TickProblem.of(pipeline(chain(2), memory=1))
    turns = turns_of(instance)
    assert turns.alike is instance and turns.width == 1
    one = replace(instance.problem.blocks[0], after=())
    assert turns_of(TickProblem.of(replace(instance.problem, blocks=(one,)))).blocks == ((0,),)
