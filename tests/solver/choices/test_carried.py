"""An order of one assignment for the problem of another."""

from __future__ import annotations

from weft.solver.choices.carried import carried
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
    made = carried(best, again)
    assert made is not None
    validate(made)

    def order(names: tuple[str, ...], schedule: Schedule) -> list[tuple[str, int]]:
        return [(schedule.problem.blocks[op.block].name, op.micro_batch) for op in schedule.operations
                if schedule.problem.blocks[op.block].name in names]

    assert order(("F", "B"), made) == order(("F", "B"), best)
    assert [name for name, m in order(("F", "R", "B"), made) if m == 0] == ["F", "R", "B"]
    back = carried(made, keep)
    assert back is not None and order(("F", "B"), back) == order(("F", "B"), best)


def test_an_order_that_does_not_fit_is_none() -> None:
    problem = _problem(2)
    keep = Rounds(problem.under({"way": "keep"}), Run.of(problem, 2))
    best = solve(_problem(9).under({"way": "again"}).plain(), 2, effort=0.5)
    orders = [("F", 0), ("F", 1), ("R", 0), ("B", 0), ("R", 1), ("B", 1)]
    number = {block.name: i for i, block in enumerate(best.problem.blocks)}
    wide = best.with_operations([type(best.operations[0])(number[name], m, float(at), at + 1.0)
                                 for at, (name, m) in enumerate(orders)])
    assert carried(wide, keep) is None  # two activations of 2
    assert carried(wide, Rounds(problem.under({"way": "again"}), Run.of(problem, 3))) is None
