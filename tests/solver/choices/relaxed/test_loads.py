"""The least work of each device over all assignments."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.alternatives import drawn_alternatives
from tests.support.examples import examples
from tests.support.wide_problems import drawn_run
from weft.solver.choices.relaxed.loads import least_work, load_bound
from weft.solver.problem import BlockKind, Device
from weft.solver.wide.block import WideBlock
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.rounds import Rounds
from weft.solver.wide.run import Run


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_no_assignment_works_less(seed: int, classes: bool) -> None:
    problem = drawn_alternatives(seed, classes=classes, jobs=not classes)
    run = drawn_run(problem, seed)
    least = least_work(problem, run)
    works = []
    for options in problem.assignments:
        plain = Rounds(problem.under(options), run).problem
        works.append([run.rounds * sum(Fraction(plain.blocks[i].duration) for i in on) for on in plain.blocks_on])
    for device, work in enumerate(least):
        assert work <= min(of[device] for of in works)
    assert load_bound(problem, run) <= min(map(max, works))
    assert load_bound(problem, run, "rate") * run.rounds <= min(map(max, works))


def test_choices_apart_add_up() -> None:
    def block(name: str, device: int, duration: int, **when: str) -> WideBlock:
        return WideBlock(name, BlockKind.OTHER, (device,), duration, when=when)

    problem = WideProblem("apart", (Device("a"), Device("b")), (
        block("F", 0, 3, first="here"), block("F", 1, 4, first="there"), block("G", 0, 2, second="short"),
        block("G", 0, 5, second="long"), block("H", 0, 1)),
        choices={"first": ("here", "there"), "second": ("short", "long")})
    assert tuple(map(int, least_work(problem, Run.of(problem, 2)))) == (6, 0)  # F there, G short, H; F here
