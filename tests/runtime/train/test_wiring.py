"""What stage modules take and give, held against the plan."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.runtime.plan.test_stage_graph import problem
from tests.support.training_graphs import graph_problem
from weft.runtime import Boundary, Ports, SessionError, StageGraph, Training
from weft.runtime.plan.program import StageWork
from weft.runtime.train.wiring import Wiring
from weft.solver.problem import BlockKind, Problem

F, B = BlockKind.FORWARD, BlockKind.BACKWARD


TWO = graph_problem("two", {"a": ([0], []), "b": ([1], ["a"]), "c": ([0], ["a", "b"])})
PORTS = {0: Ports(("tokens",), ("x", "skip")), 1: Ports(("x",), ("y",)), 2: Ports(("y", "skip", "target"), ("loss",))}
SEEN = {"x": Boundary((2,)), "y": Boundary((2,))}


def wiring(made: Problem = TWO, **changes: Any) -> Wiring:
    training = Training({}, SEEN, lambda step, m: {}, ports=PORTS)
    return Wiring(StageGraph.of(made), dataclasses.replace(training, **changes))


def test_each_message_holds_what_its_rank_reads() -> None:
    made = wiring()
    assert made.reads(StageWork(2, "F", 3)) == (StageWork(1, "F", 3), StageWork(0, "F", 3))
    assert made.reads(StageWork(0, "B", 3)) == (StageWork(1, "B", 3), StageWork(2, "B", 3))
    assert made.parcel(StageWork(0, "F", 3), 1) == ("x",)
    assert made.parcel(StageWork(1, "F", 3), 0) == ("y",)
    assert made.parcel(StageWork(1, "B", 3), 0) == ("x",)
    assert made.parcel(StageWork(2, "B", 3), 1) == ("y",)


def test_whole_numbers_have_no_gradient() -> None:
    made = wiring(boundaries={**SEEN, "x": Boundary((2,), torch.int64)}, losses=("loss", "y"), ports={
        **PORTS, 1: Ports(("x",), ("y",)), 2: Ports(("skip", "target"), ("loss",))})
    assert made.parcel(StageWork(1, "B", 3), 0) == ()
    assert made.reads(StageWork(0, "B", 3)) == (StageWork(2, "B", 3),)


def test_complex_numbers_have_one() -> None:
    made = wiring(boundaries={**SEEN, "x": Boundary((2,), torch.complex64)})
    assert made.parcel(StageWork(1, "B", 3), 0) == ("x",)


@pytest.mark.parametrize(("changes", "message"), [
    ({"ports": {0: PORTS[0]}}, r"ports names the stages \[0\], but the plan has the stages \[0, 1, 2\]"),
    ({"ports": {**PORTS, 1: Ports(("x", "x"), ("y",))}}, "stage 1: its ports name a value twice: x, x"),
    ({"ports": {**PORTS, 1: Ports(("x",), ("skip",))}}, "stages 0 and 1 both give the value 'skip'"),
    ({"ports": {**PORTS, 1: Ports(("loss",), ("y",))}}, "stage 1 takes 'loss', which is a loss"),
    ({"ports": {**PORTS, 0: Ports(("y",), ("x", "skip"))}},
     "stage 0 takes 'y' from stage 1, but in the plan block 'a' does not wait for 'b' on rank 0"),
    ({"boundaries": {"x": SEEN["x"]}}, "'y' goes from stage 1 to stage 2, on another rank, but boundaries does not"),
    ({"boundaries": [SEEN["x"]]}, "with ports, boundaries must say by name"),
    ({"losses": ("cost",)}, "no stage gives a loss .a value named in losses: cost."),
    ({"ports": {**PORTS, 2: Ports(("skip", "target"), ("loss",))}}, "backward for stage 1, but no stage gives it a"),
    ({"ports": None, "boundaries": [SEEN["x"]]}, "boundaries has 1 entries, but 3 stages have 2 between them"),
])
def test_modules_that_do_not_fit_the_plan_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SessionError, match=message):
        wiring(**changes)


def test_a_gradient_that_the_plan_does_not_bring_is_refused() -> None:
    made = problem(("a", F, [0], ""), ("b", F, [1], "a"), ("c", F, [2], "a b"), ("c'", B, [2], "c"),
                   ("b'", B, [1], "c'"), ("a'", B, [0], "b'"))
    with pytest.raises(SessionError, match="stage 0 takes the gradient of 'skip' from stage 2, but in the plan block "
                                           "\"a'\" does not wait for \"c'\" on rank 0"):
        wiring(made, boundaries={**SEEN, "skip": Boundary((2,))})


def test_a_stage_without_a_loss_or_a_reader_has_no_backward() -> None:
    with pytest.raises(SessionError, match="stage 0 gives a loss, but the plan has no backward for it"):
        wiring(problem(("a", F, [0], ""), ("b", F, [1], "a"), ("b'", B, [1], "b")),
               ports={0: Ports(("t",), ("x", "loss")), 1: Ports(("x",), ("other",))}, losses=("loss", "other"))
