"""Stages found in graphs of blocks, and what a plan and its modules must agree on."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support import DATA, any_order, shape
from tests.support.training_graphs import MODES, SHAPES, case, varied
from weft.runtime.plan.check import check_program
from weft.runtime.plan.plan import plan_from_json, plan_of, plan_to_json
from weft.runtime.plan.program import Program, ProgramError
from weft.runtime.plan.stage_graph import NotAStageGraph, StageGraph
from weft.solver import Block, BlockKind, Dependency, Device, Problem, baseline, load_problem

F, B, I, W, R, O = (BlockKind.FORWARD, BlockKind.BACKWARD, BlockKind.INPUT_GRAD, BlockKind.WEIGHT_GRAD,  # noqa: E741
                    BlockKind.RECOMPUTE, BlockKind.OTHER)


def problem(*blocks: tuple[str, BlockKind, Sequence[int], str], memory: Mapping[str, float] | None = None) -> Problem:
    """Blocks as ``(name, kind, devices, "names it waits for")``."""
    count = 1 + max(device for _, _, devices, _ in blocks for device in devices)
    return Problem("test", tuple(Device(str(d)) for d in range(count)), tuple(
        Block(name, kind, tuple(devices), 1, ((memory or {}).get(name, 0),), (), tuple(map(Dependency, waits.split())))
        for name, kind, devices, waits in blocks))


def passes(graph: StageGraph) -> list[tuple[tuple[int, ...], dict[str, str]]]:
    """Per stage its ranks, and its blocks' names by letter."""
    return [(stage.ranks, {letter: graph.problem.blocks[b].name for letter, b in stage.blocks.items()})
            for stage in graph.stages]


# -- recognising -------------------------------------------------------------------------------------------------------


def test_a_gradient_that_waits_for_a_forward_belongs_to_it() -> None:
    """Two branches alike on one device: order alone would pair the first with the first."""
    twins = [("stem", F, [0], ""), ("one", F, [1], "stem"), ("two", F, [1], "stem"), ("join", F, [0], "one two"),
             ("join'", B, [0], "join"), ("x", B, [1], "join' two"), ("y", B, [1], "join' one"),
             ("stem'", B, [0], "x y")]
    found = dict((stage["F"], stage["B"]) for _, stage in passes(StageGraph.of(problem(*twins))))
    assert found == {"stem": "stem'", "one": "y", "two": "x", "join": "join'"}


def test_a_choice_that_leads_nowhere_is_taken_back() -> None:
    """b0 waits for f2 itself, so it is tried first as its gradient; then nothing is left for f1."""
    found = passes(StageGraph.of(problem(
        ("f0", F, [0], ""), ("f1", F, [1], "f0"), ("f2", F, [0], "f1"), ("f3", F, [1, 2], "f2"),
        ("b3", B, [1, 2], "f3"), ("b2", B, [0], "b3"), ("b1", B, [1], "b2"), ("b0", B, [0], "b1 f2"))))
    assert [list(stage.values()) for _, stage in found] == [["f0", "b0"], ["f1", "b1"], ["f2", "b2"], ["f3", "b3"]]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_every_pass_of_every_shape_is_found(name: str, mode: str) -> None:
    letters = {"full": "BF", "split": "FIW", "recompute": "BFR", "offload": "BFLO", "offload beside": "BFLO",
               "split and recompute": "FIRW"}
    for ranks in (2, 4):
        made = varied(case(name, ranks), mode)
        assert [passes.ranks for passes in made.graph.stages] == [p.ranks for p in case(name, ranks).graph.stages]
        assert {"".join(sorted(stage.blocks)) for stage in made.graph.stages} == {letters[mode]}


@pytest.mark.parametrize(("blocks", "message"), [
    ([("b", B, [0], "")], "it has no forward block"),
    ([("f", F, [0], ""), ("b", B, [1], "f")], "its 1 backward and input_grad blocks do not mirror its 1 forward"),
    ([("f", F, [0], ""), ("b", B, [0], "")], "do not mirror"),
    ([("f", F, [0, 1], ""), ("i", I, [0, 1], "f")], "no weight_grad block waits for input_grad block 'i'"),
    ([("f", F, [0, 1], ""), ("b", B, [0, 1], "f"), ("w", W, [0, 1], "b")], "weight_grad block 'w' waits for the input"),
    ([("f", F, [0], ""), ("b", B, [0], "f"), ("b2", B, [1], "f")], "backward block 'b2' belongs to no forward block"),
    ([("f", F, [0], ""), ("b", B, [0], "f"), ("b2", B, [0], "f")], "backward block 'b2' belongs to no forward block"),
    ([("f", F, [0], ""), ("r", R, [0], "f"), ("b", B, [0], "f")], "recompute block 'r' is waited for by the gradient"),
    ([("f", F, [0], ""), ("o", O, [0], "f"), ("b", B, [0], "f o")], "'o' is of kind other, and neither offload nor"),
])
def test_what_is_no_graph_of_stages_says_why(blocks: list[Any], message: str) -> None:
    with pytest.raises(NotAStageGraph, match=message):
        StageGraph.of(problem(*blocks))


def test_a_lone_backward_is_refused_in_words() -> None:
    """It had no name in a program: ``weft plan`` ended with a KeyError."""
    made = load_problem(DATA / "lone_backward.json")
    with pytest.raises(ProgramError, match=r"backward block 'z1' of problem '.*' waits for no forward block"):
        plan_of(any_order(made, 2, random.Random(0)))


def test_offload_must_give_memory_and_load_take_it() -> None:
    blocks: list[Any] = [("f", F, [0], ""), ("out", O, [0], "f"), ("in", O, [0], "out"), ("b", B, [0], "f in")]
    found = passes(StageGraph.of(problem(*blocks, memory={"f": 3, "out": -2, "in": 2, "b": -3})))
    assert found == [((0,), {"F": "f", "B": "b", "O": "out", "L": "in"})]
    with pytest.raises(NotAStageGraph, match="neither offload nor load"):
        StageGraph.of(problem(*blocks, memory={"f": 3, "in": 2, "b": -3}))


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_of_a_graph_reads_back(name: str) -> None:
    plan = plan_of(baseline("greedy", varied(case(name, 4), "split").problem, 3))
    assert plan_from_json(plan_to_json(plan)) == plan
    assert plan.stage_groups == tuple(stage.ranks for stage in case(name, 4).graph.stages)


def test_ranks_that_would_enter_collectives_in_different_orders_are_refused() -> None:
    plan = plan_of(baseline("greedy", shape("m", 2, None), 2))
    rows = [list(row) for row in plan.program.to_text()]
    first, second = (rows[1].index(text) for text in ("0F0", "0F1"))
    rows[1][first], rows[1][second] = rows[1][second], rows[1][first]
    with pytest.raises(ProgramError, match="the ranks wait for each other"):
        check_program(Program.from_text(rows), plan.problem, 2)
