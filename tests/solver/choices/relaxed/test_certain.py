"""Cases, certain names, and numbers as they are written."""

from __future__ import annotations

from fractions import Fraction

import pytest

from weft.solver.choices.relaxed.certain import CertainFacts, by_class, cases, number, of_class
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem, per_class
from weft.solver.values import exact

_CHOICES = {"p": ("a", "b"), "q": ("a", "b", "c")}


def _block(name: str, **when: str) -> Block:
    return Block(name, BlockKind.OTHER, (0,), 1, when=when)


def test_cases() -> None:
    found = cases(_CHOICES, ["q", "p"])
    assert found is not None and len(list(found)) == 6
    many = {str(i): ("a", "b") for i in range(13)}
    assert cases(many, many) is None


def test_certain_names() -> None:
    problem = Problem("names", (Device("gpu"),), (
        _block("always"), _block("both", p="a"), _block("both", p="b"), _block("one", q="a"), _block("two", p="a"),
        _block("two", p="b", q="a"), _block("two", p="b", q="b"), _block("only", q="c")), choices=_CHOICES)
    assert CertainFacts(problem).certain() == {"always", "both"}
    assert CertainFacts(problem.under({"q": "a"})).certain() == {"always", "both", "one", "two"}
    assert CertainFacts(problem.under({"p": "a", "q": "c"})).certain() == {"always", "both", "two", "only"}


@pytest.mark.parametrize("value", [3, 0.1, 1e-12, 333.3333333333333, 12345678901234567])
def test_a_number_that_was_written_stays(value: float) -> None:
    assert number(exact(value)) == value


def test_other_numbers_are_rounded_down() -> None:
    assert exact(number(Fraction(2, 3))) <= Fraction(2, 3)
    assert exact(number(Fraction(-2, 3))) <= Fraction(-2, 3)


def test_classes() -> None:
    wait = Dependency("a", **per_class(lag={"long": 2, "short": 1}))
    assert by_class(wait, "lag", ("short", "long")) == (Fraction(1), Fraction(2))
    assert of_class((1, 2), ("short", "long")) == {"short": 1, "long": 2} and of_class((2, 2), ("short", "long")) == 2
