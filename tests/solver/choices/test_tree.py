"""The tree over partial assignments: what breaks it off takes nothing from its proof."""

from __future__ import annotations

import pytest

from tests.support.alternatives import least_over
from tests.support.wide_problems import keep_or_recompute
from weft.solver import Budget, Progress
from weft.solver.choices.decision import Taken
from weft.solver.choices.node import ChoiceNode
from weft.solver.choices.partial import Partial
from weft.solver.choices.tree import Tree
from weft.solver.portfolio import Candidate
from weft.solver.problem.rounds import Run


def test_what_is_broken_off_while_it_is_divided_counts() -> None:
    class Interrupted(Tree):
        def _divide(self, node: ChoiceNode) -> None:
            raise KeyboardInterrupt

    problem = keep_or_recompute(19)
    run = Run.of(problem, 3)
    tree = Interrupted(Partial(problem, run, "makespan"), Budget(30), "makespan", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        tree.run()
    assert tree.leader is not None
    assert tree.bound <= least_over(problem, run) <= tree.best
    assert {} in [dict(options) for options, _ in tree.parts]


@pytest.mark.parametrize("seed", range(4))
def test_bounds_rise_and_the_best_falls(seed: int) -> None:
    problem = keep_or_recompute(seed)
    run = Run.of(problem, 3)
    told: list[Progress] = []
    tree = Tree(Partial(problem, run, "makespan"), Budget(60), "makespan", told.append)
    tree.run()
    assert tree.proven and tree.best == pytest.approx(least_over(problem, run))
    values = [progress.best.makespan for progress in told]
    assert values == sorted(values, reverse=True)
    assert all(progress.best.makespan_bound <= tree.best * (1 + 1e-9) for progress in told)


def test_a_time_limit_of_nothing_still_gives_a_schedule() -> None:
    problem = keep_or_recompute(6)
    tree = Tree(Partial(problem, Run.of(problem, 3), "makespan"), Budget(0.0), "makespan", lambda _: None)
    with tree.budget.limited():
        tree.run()
    assert tree.leader is not None and tree.bound <= tree.best


@pytest.mark.parametrize("seed", range(6))
def test_leaves_that_ended_without_a_proof_stay_in_the_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but first schedules: no leaf is proven, and what each of them may still come to is not forgotten."""
    def ends_at_once(tree: Tree, leaf: Candidate[Taken], seconds: float) -> bool:
        leaf.turns, leaf.open = leaf.turns + 1, False
        return False

    monkeypatch.setattr(Tree, "go_on", ends_at_once)
    problem = keep_or_recompute(seed)
    run = Run.of(problem, 3)
    tree = Tree(Partial(problem, run, "makespan"), Budget(60, deterministic=60.0), "makespan", lambda _: None)
    tree.run()
    least = least_over(problem, run)
    assert tree.done and not tree._queue
    assert tree.bound <= least * (1 + 1e-9) and tree.bound <= min(leaf.bound for leaf in tree.done)
    assert min(bound for _, bound in tree.parts) <= least * (1 + 1e-9)


@pytest.mark.parametrize("seed", [19, 29])
def test_what_the_climb_finds_is_its_leaf_s(seed: int) -> None:
    problem = keep_or_recompute(seed)
    tree = Tree(Partial(problem, Run.of(problem, 5), "makespan"), Budget(600, deterministic=0.3), "makespan",
                lambda _: None)
    tree._dive()
    before = tree.best
    tree._look_beside()
    assert tree.budget.deterministic_used > 0
    assert before > tree.best == tree._climb.kept[0].makespan
    for kept in tree._climb.kept:
        leaf = tree.leaves.get(kept.decision.key)
        assert leaf is None or leaf.value <= kept.makespan
