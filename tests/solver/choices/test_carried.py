"""An order of one assignment for the problem of another."""

from __future__ import annotations

from weft.solver.choices.carried import carried, scheduled
from weft.solver.judge.validate import validate
from weft.solver.problem import BlockKind, Device
from weft.solver.schedule import Schedule
from weft.solver.step.search import solve
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.rounds import Rounds
from weft.solver.wide.run import Run


def _problem(memory: int) -> WideProblem:
    def block(name: str, kind: BlockKind, amount: int, *after: str, **when: str) -> WideBlock:
        return WideBlock(name, kind, (0,), 1, (amount,), after=tuple(map(WideDependency, after)), when=when)

    return WideProblem("two ways", (Device("gpu", memory),), (
        block("F", BlockKind.FORWARD, 2, way="keep"), block("F", BlockKind.FORWARD, 1, way="again"),
        block("R", BlockKind.RECOMPUTE, 1, "F", way="again"), block("B", BlockKind.BACKWARD, -2, "F", way="keep"),
        block("B", BlockKind.BACKWARD, -2, "R", way="again")), choices={"way": ("keep", "again")})


def test_what_is_new_comes_before_what_waits_for_it() -> None:
    problem = _problem(8)
    keep, again = (Rounds(problem.under({"way": option}), Run.of(problem, 2)) for option in ("keep", "again"))
    best = solve(keep.problem, 2, effort=0.5)
    made = scheduled(again, carried(best, keep, again))
    assert made is not None
    validate(made)

    def order(names: tuple[str, ...], schedule: Schedule) -> list[tuple[str, int]]:
        return [(schedule.problem.blocks[op.block].name, op.micro_batch) for op in schedule.operations
                if schedule.problem.blocks[op.block].name in names]

    assert order(("F", "B"), made) == order(("F", "B"), best)
    assert [name for name, m in order(("F", "R", "B"), made) if m == 0] == ["F", "R", "B"]
    back = scheduled(keep, carried(made, again, keep))
    assert back is not None and order(("F", "B"), back) == order(("F", "B"), best)


def test_an_order_that_does_not_fit_is_none() -> None:
    problem = _problem(2)
    keep = Rounds(problem.under({"way": "keep"}), Run.of(problem, 2))
    again = Rounds(problem.under({"way": "again"}), keep.run)
    best = solve(_problem(9).under({"way": "again"}).plain(), 2, effort=0.5)
    orders = [("F", 0), ("F", 1), ("R", 0), ("B", 0), ("R", 1), ("B", 1)]
    number = {block.name: i for i, block in enumerate(best.problem.blocks)}
    wide = best.with_operations([type(best.operations[0])(number[name], m, float(at), at + 1.0)
                                 for at, (name, m) in enumerate(orders)])
    assert scheduled(keep, carried(wide, again, keep)) is None  # two activations of 2
    assert list(carried(wide, again, again)[0]) == [(number[name], m) for name, m in orders]


def test_classes_in_other_places_take_the_places_of_their_micro_batches() -> None:
    problem = WideProblem("two classes", (Device("gpu"),), (
        WideBlock("F", BlockKind.FORWARD, (0,), {"short": 1, "long": 3}),
        WideBlock("B", BlockKind.BACKWARD, (0,), {"short": 2, "long": 5}, after=(WideDependency("F"),))))
    one, other = (Rounds(problem, Run.of(problem, list(row)))
                  for row in (["short", "long"] * 2, ["long", "short", "short", "long"]))
    best = solve(one.problem, one.run.rounds, effort=0.5)
    made = scheduled(other, carried(best, one, other))
    assert made is not None and made.makespan == best.makespan
    rows = [[(rounds.wide.blocks[block].name, m) for block, m in (rounds.apart(*op) for op in schedule.orders[0])]
            for rounds, schedule in ((one, best), (other, made))]
    assert rows[0] == rows[1]
