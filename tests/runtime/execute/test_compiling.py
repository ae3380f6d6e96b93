"""A row compiled into actions: when receives are posted, messages waited for, results dropped, and what a rank says."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.builders import chain, pipeline
from tests.support.threads import Tracer, run_in_threads
from weft.runtime.execute.compiling import Action
from weft.runtime.execute.executor import Executor
from weft.runtime.plan.buffers import OPEN_SENDS
from weft.runtime.plan.plan import Plan, plan_of
from weft.solver.baselines import baseline


def compiled(plan: Plan) -> list[Sequence[Action]]:
    """The actions of all ranks."""
    found: dict[int, Sequence[Action]] = {}

    def note(step: int, executor: Executor) -> None:
        found[executor.session.rank] = executor.actions

    run_in_threads(plan, lambda rank: Tracer(plan, rank), 1, note)
    return [found[rank] for rank in range(len(plan.program.ranks))]


def texts(row: Sequence[Action]) -> list[str]:
    return [action.text for action in row if not action.text.startswith("REDUCE")]


def named(row: Sequence[Action], what: str) -> list[str]:
    """The results in the order in which actions say ``what`` of them."""
    return [text.removeprefix(what).split()[0].rstrip(",") for text in texts(row) if text.startswith(what)]


def test_a_row_says_what_it_does_and_lets_go_of_results_after_their_last_reader() -> None:
    first, second = compiled(plan_of(baseline("1f1b", pipeline(chain(2)), 2)))
    assert texts(second) == [
        "starting RECV 0F0<0 (micro-batch 0)", "starting RECV 0F1<0 (micro-batch 1)",
        "waiting for RECV 0F0<0, for 1F0 (micro-batch 0)", "running 1F0 (micro-batch 0)", "drop 0F0",
        "running 1B0 (micro-batch 0)", "drop 1F0",
        "starting SEND 1B0>0 (micro-batch 0)", "drop 1B0",
        "waiting for RECV 0F1<0, for 1F1 (micro-batch 1)", "running 1F1 (micro-batch 1)", "drop 0F1",
        "running 1B1 (micro-batch 1)", "drop 1F1", "starting SEND 1B1>0 (micro-batch 1)", "drop 1B1",
        "waiting for SEND 1B0>0 (micro-batch 0)", "waiting for SEND 1B1>0 (micro-batch 1)"]
    assert len(named(first, "waiting for RECV ")) == 2


def test_a_message_is_waited_for_once_and_by_its_first_reader() -> None:
    for row in compiled(plan_of(baseline("gpipe", pipeline(chain(3)), 5))):
        posted, taken = named(row, "starting RECV "), named(row, "waiting for RECV ")
        assert sorted(posted) == sorted(taken) and len(set(taken)) == len(taken) and taken


def test_a_send_is_settled_before_the_eighth_after_it_starts_and_all_are_at_the_end() -> None:
    row = compiled(plan_of(baseline("gpipe", pipeline(chain(2), backward=None), OPEN_SENDS + 3)))[0]
    started, most = [], 0
    for action in row:
        if sent := named([action], "starting SEND "):
            started += sent
            most = max(most, len(started))
        elif settled := named([action], "waiting for SEND "):
            assert settled == [started.pop(0)]
    assert most == OPEN_SENDS and not started
