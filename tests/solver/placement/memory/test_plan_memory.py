"""The best memory plans on measured models, refusals, interrupts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.examples import slow
from tests.support.memory_plans import GPT, T5, operator, profiled
from weft.models import DEVICES, model_graph
from weft.models.candidates.memory_candidates import graph_chain
from weft.models.spec.families import GptModel
from weft.models.times.roofline import Roofline
from weft.solver.control.clock import watching
from weft.solver.placement.memory.layer_rule import whole_layers
from weft.solver.placement.memory.plan import ChainOperator, MemoryProblem
from weft.solver.placement.memory.plan_memory import LimitSearch, MemoryPlanNotFound, NoMemoryPlan, plan_memory


@pytest.mark.parametrize(("name", "size", "floor"), [
    (GPT, 8, 10.04), slow(GPT, 16, 9.82), slow(T5, 4, 19.0), slow(T5, 16, 18.2), slow(T5, 32, 18.0)])
def test_joint_decisions_reach_the_known_throughput_on_v100s(name: str, size: int, floor: float) -> None:
    """Samples a second on 4 V100s of 32 GB with a 12 GB/s copy engine, as published planners count memory."""
    plan = plan_memory(profiled(name, size))
    assert plan.fits and size / plan.time * 1e9 >= floor
    assert plan.time <= (1 + 2e-4) * plan.bound


def test_strict_rules_hold_more_and_so_are_slower() -> None:
    loose, strict = plan_memory(profiled(GPT, 8)), plan_memory(profiled(GPT, 8, rules="strict"))
    assert strict.fits and loose.bound <= loose.time <= strict.bound <= strict.time
    under_strict = replace(loose, problem=strict.problem)
    assert not under_strict.fits  # what a published planner promises, an executor cannot hold


def test_the_case_where_a_known_window_cost_a_factor() -> None:
    """GPT-1.3B, 4 stages of 16 GB, micro-batches of 8: a plan of 901 ms is known, outside the window that was tried."""
    assert plan_memory(profiled(GPT, 8, memory=16)).time < 901e6


def test_a_graph_as_a_chain_keeps_its_bytes() -> None:
    model = GptModel(family="gpt", layers=3, hidden=64, heads=4, vocabulary=512, sequence=32)
    graph = model_graph(model, 2)
    chain = graph_chain(graph, Roofline(DEVICES["v100"]).times(graph))
    assert sum(op.kept for op in chain) == graph.saved_bytes()
    assert chain[-1].output == 0 and all(op.output >= op.passing >= 0 for op in chain)
    problem = MemoryProblem(tuple(chain), 3, 2 * 2**20, 12e9)
    plan = plan_memory(problem)
    assert plan.fits and plan.bound <= plan.time


def test_a_start_that_its_link_rules_out_hides_no_earlier_one() -> None:
    """Cuts before the third and the last operator send 5 bytes each; one before the fourth, 6, is beyond the limit."""
    sizes = ((20, 7), (0, 5), (14, 6), (20, 7), (0, 5), (14, 6))
    ops = tuple(ChainOperator(f"op{k}", 0, 0, kept, output) for k, (kept, output) in enumerate(sizes))
    problem = MemoryProblem(ops, 3, 34, 2e9, link_bandwidth=5e8, rules="published", modes=frozenset())
    plan = plan_memory(replace(problem, micro_batches=1), gap=0)
    assert (plan.cuts, plan.time, plan.bound) == ((0, 2, 5, 6), 10, 10)


def test_what_no_class_as_a_whole_can_do_its_operators_may_do_one_by_one() -> None:
    """Three operators of one class in the room of two: with the first and the last recomputed apart, a buffer of one is
    enough, but by class it is that of all three."""
    ops = tuple(replace(operator(f"op{k}", kept=20), kind="layer") for k in range(3))
    problem = MemoryProblem(ops, 1, 40, 1e9, modes=frozenset({"recompute"}), micro_batches=1)
    plan = plan_memory(problem, gap=0)
    assert plan.fits and plan.modes == ("recompute", "keep", "recompute") and plan.time == plan.bound == 110
    with pytest.raises(NoMemoryPlan, match="no plan of 3 operators") as refused:  # proven: less than one and a buffer
        plan_memory(replace(problem, memory=19), gap=0)
    assert not isinstance(refused.value, MemoryPlanNotFound)
    with pytest.raises(MemoryPlanNotFound, match="no proof that there is none"):
        plan_memory(problem, time_limit=0)


def test_ctrl_c_returns_the_plan_found_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = profiled(GPT, 8)
    cuts: list[tuple[int, ...] | None] = []
    original = LimitSearch.cuts

    def interrupted(self: LimitSearch, limit: int) -> tuple[tuple[int, ...] | None, bool]:
        if cuts and cuts[-1] is not None:
            raise KeyboardInterrupt
        found, proven = original(self, limit)
        cuts.append(found)
        return found, proven

    monkeypatch.setattr(LimitSearch, "cuts", interrupted)
    plan = plan_memory(problem, gap=0)
    assert plan.fits and plan.bound < plan.time
    monkeypatch.setattr(LimitSearch, "cuts", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        plan_memory(problem)


def test_a_search_that_is_stopped_returns_what_it_has() -> None:
    """A limit of nothing at all finds nothing; whatever a short one finds fits."""
    problem = profiled(GPT, 16, rules="strict")
    with pytest.raises(NoMemoryPlan, match="in the time given"):
        plan_memory(problem, time_limit=0)
    try:
        plan = plan_memory(problem, time_limit=1.0)
    except NoMemoryPlan:
        return
    assert plan.fits and plan.bound <= plan.time


def test_no_answer_is_worse_than_whole_layers_by_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing in time has the rule's plan, as far as its cuts are allowed and there is time."""
    problem = profiled(GPT, 16, rules="strict")
    rule = whole_layers(problem)
    monkeypatch.setattr(LimitSearch, "narrow", lambda self, *_: (1, None))
    found = plan_memory(problem, time_limit=1000.0)
    assert (found.cuts, found.modes) == (rule.cuts, rule.modes) and found.fits and 1 == found.bound < found.time
    elsewhere = tuple(frozenset(range(1, len(problem.operators))) - {cut} for cut in rule.cuts[1:-1])
    with pytest.raises(NoMemoryPlan):
        plan_memory(replace(problem, windows=elsewhere), time_limit=1000.0)
    with pytest.raises(NoMemoryPlan), watching(lambda: True):
        plan_memory(problem, time_limit=1000.0)
