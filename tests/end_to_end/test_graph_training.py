"""Graphs of stages on real ranks: training equals one process's in every shape, and results come in order.

Run as a program (``python -m tests.end_to_end.test_graph_training CASE REPLICAS``), this file is one rank of what its
tests launch. The table of all combinations is ``experiments/runtime/equality.py``; here is a part of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from experiments.runtime.equality import CLIP, MICRO_BATCHES, STEPS, Row, compared, plan_for
from tests.support import PATIENCE, launch_forked, shape
from tests.support.graph_training import single_process, training
from tests.support.stage_modules import LENGTH, VOCABULARY, WIDTH, Embed, Mix
from tests.support.training_graphs import MODES, SHAPES, case, varied
from weft.runtime import Boundary, Plan, Requests, Training, plan_of
from weft.runtime.ranks.launch import Ended
from weft.runtime.ranks.session import Session, join
from weft.runtime.replay.run import run_training
from weft.solver import Schedule, baseline, time_orders

pytestmark = pytest.mark.slow


def launch(name: str, ranks: int, replicas: int = 1) -> list[Ended]:
    return launch_forked(ranks * replicas, [sys.executable, "-m", __name__, name, str(replicas)])


def results(ended: list[Ended]) -> Any:
    assert [end.code for end in ended] == [0] * len(ended), ended
    return json.loads(ended[0].output)


# -- training ----------------------------------------------------------------------------------------------------------


def rows(ranks: int, replicas: int) -> Iterator[Row]:
    if replicas > 1:
        for shape_name in ("tied", "M head", "branches"):
            yield Row(shape_name, ranks, replicas, "fp64", "split", "greedy")
        yield Row("M", ranks, replicas, "bf16", "full", "greedy")
        return
    for shape_name in SHAPES:
        if ranks == 3 and shape_name in ("NN", "K"):
            continue  # they are for even numbers of devices
        for mode in {2: MODES, 3: ("split",), 4: ("full", "split and recompute")}[ranks]:
            yield Row(shape_name, ranks, 1, "fp64", mode, "greedy")
    yield Row("tied", ranks, 1, "bf16", "split", "greedy")


@pytest.mark.parametrize(("ranks", "replicas"), [(2, 1), (3, 1), (4, 1), (2, 2)])
def test_training_by_a_plan_is_training_in_one_process(ranks: int, replicas: int) -> None:
    found = results(launch("train", ranks, replicas))
    wanted = list(rows(ranks, replicas))
    assert [Row(*(row[name] for name in Row._fields)) for row in found] == wanted
    for row in found:
        limit = 1e-12 if row["dtype"] == "fp64" else 0.02
        errors = {key: value for key, value in row.items() if key.endswith("_error")}
        assert max(errors.values()) < limit, row
        assert len(row["losses"]) == STEPS and row["losses"][0] != row["losses"][1]


def train(session: Session) -> list[dict[str, Any]]:
    found = []
    for row in rows(session.world, session.replicas):
        result = compared(case(row.shape, row.ranks), plan_for(row), session, row)
        found += [result] if result is not None else []
    return found


# -- what the comparison would notice ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both_on_two() -> list[Ended]:
    """Starting processes takes longest, so two tests share theirs."""
    return launch("left out, infer", 2)


def test_the_comparison_notices_what_is_left_out(both_on_two: list[Ended]) -> None:
    """Without ties, clipping, or the other replica's half of the batch, weights end elsewhere."""
    without_ties, without_clipping, other_batch = results(both_on_two)["left out"]
    assert without_ties > 1e-3 and without_clipping > 1e-3 and other_batch > 1e-3


def left_out(session: Session) -> list[float]:
    made = varied(case("tied", 2), "split")
    plan = plan_of(baseline("greedy", made.problem, MICRO_BATCHES))
    found = []
    for leave_out in ("ties", "clip_norm", "micro-batches"):
        part = training(made, plan, session, torch.float64, STEPS, CLIP)
        if leave_out == "ties":
            part.ties = ()
        elif leave_out == "clip_norm":
            part.clip_norm = None
        batch = 2 * MICRO_BATCHES if leave_out == "micro-batches" else MICRO_BATCHES
        reference = single_process(made, torch.float64, batch, STEPS, CLIP)
        run_training(plan, session, part)
        worst = max(float((mine - wanted).abs().max().detach()) for stage, module in part.stages.items()
                    for mine, wanted in zip(module.parameters(), reference.weights[stage].parameters(), strict=True))
        gathered = session.gather(worst)
        found += [] if gathered is None else [max(gathered)]
    return found


# -- inference ---------------------------------------------------------------------------------------------------------


def unordered(plan_for_problem: Schedule, order: list[int]) -> Plan:
    """The same, with micro-batches in another order."""
    problem, count = plan_for_problem.problem, plan_for_problem.micro_batches
    orders = [[(o.block, order[o.micro_batch]) for o in row] for row in plan_for_problem.device_orders]
    return plan_of(Schedule(problem, count, time_orders(problem, count, orders), 0.0))


def test_inference_answers_requests_in_their_order_and_validation_gives_the_loss(both_on_two: list[Ended]) -> None:
    found = results(both_on_two)["infer"]
    assert found["requests"] == 7 and found["difference"] < 1e-14  # a batch is not added up like a single request
    assert found["loss"] == pytest.approx(found["loss alone"], abs=1e-13)


def infer(session: Session) -> dict[str, Any]:
    plan = unordered(baseline("greedy", shape("m", 2, None), 3), [2, 0, 1])  # an embedding on both ranks, then a chain
    torch.manual_seed(5)
    whole: list[nn.Module] = [Embed().double(), Mix().double(), Mix().double()]
    asked = list(torch.randint(VOCABULARY, (7, LENGTH), generator=torch.Generator().manual_seed(1)))
    requests = Requests(asked, size=2, micro_batches=3)

    class One(nn.Module):
        """A stage of a chain gives one tensor."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            y, = self.inner(x)
            return y  # type: ignore[no-any-return]

    with torch.no_grad():
        wanted = [nn.Sequential(*map(One, whole))(request[None])[0] for request in asked]
    session.add_groups(plan.groups)
    whole[0].share(session.group((0, 1)))  # type: ignore[operator]
    assert plan.stage_groups == ((0, 1), (0,), (1,))
    mine = {s: One(whole[s]) for s, ranks in enumerate(plan.stage_groups) if session.rank in ranks}
    boundary = Boundary((2, LENGTH, WIDTH), torch.float64)
    run_training(plan, session, Training(mine, [boundary] * 2, requests.inputs, steps=requests.steps,
                                         collect=requests.collect))
    found: dict[str, Any] = {}
    if session.rank == 1:  # the last stage's
        found = {"requests": len(requests.results), "difference": max(
            float((a - b).abs().max()) for a, b in zip(requests.results, wanted, strict=True))}

    made = varied(case("NN", 2), "forward")
    plan = plan_of(baseline("greedy", made.problem, MICRO_BATCHES))
    part = training(made, plan, session, torch.float64, steps=1)
    part.optimizer = None
    result = run_training(plan, session, part)
    both = session.gather(found)
    if result is None or both is None:
        return {}
    return {**both[1], "loss": result.losses[0],
            "loss alone": single_process(case("NN", 2), torch.float64, MICRO_BATCHES, 1, None).losses[0]}


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "sentence"), [
    ("other clip", "steps, clip_norm and ties must be the same on all ranks, but it is (2, 0.5, []) on rank 0 and "
                   "(2, 1.0, []) on rank 1"),
    ("unmarked", "the parameter 'words.weight' of stage 0 begins with other values on process 1 than on one before"),
    ("shape", "0F0 gives (2, 5, 8) of torch.float64, but boundaries['x0'] says (2, 5, 9) of torch.float64"),
])
def test_ranks_that_disagree_are_stopped_with_a_sentence(name: str, sentence: str) -> None:
    ended = launch(name, 2)
    assert [end.code for end in ended] == [2, 2], ended
    assert any(sentence in end.errors for end in ended), ended
    assert not any("Traceback" in end.errors for end in ended), ended


def disagree(name: str, session: Session) -> None:
    made = case("M" if name == "unmarked" else "V", 2)
    plan = plan_of(baseline("greedy", made.problem, 2))
    part = training(made, plan, session, torch.float64, STEPS, CLIP)
    if name == "other clip" and session.rank == 1:
        part.clip_norm = 1.0
    if name == "unmarked":
        for parameter in part.stages[0].parameters():
            del parameter.weft_sharded  # type: ignore[attr-defined]
    if name == "shape":
        assert isinstance(part.boundaries, dict)
        part.boundaries["x0"] = Boundary((2, LENGTH, WIDTH + 1), torch.float64)
    run_training(plan, session, part)


if __name__ == "__main__":
    with join(PATIENCE, replicas=int(sys.argv[2])) as its_session:
        if sys.argv[1] == "train":
            print(json.dumps(train(its_session)))
        elif sys.argv[1] == "left out, infer":
            print(json.dumps({"left out": left_out(its_session), "infer": infer(its_session)}))
        else:
            disagree(sys.argv[1], its_session)
