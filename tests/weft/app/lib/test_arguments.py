"""How many micro-batches run, as it is written on the command line."""

from __future__ import annotations

import pytest

from weft.app.lib.arguments import counted, ratio_of


@pytest.mark.parametrize(("text", "found"), [
    ("8", 8), ("short, long,long", ["short", "long", "long"]), ("2*short,long", ["short", "short", "long"]),
    ("a=8,b=4", {"a": 8, "b": 4}), ("a=2*s/l, b=3", {"a": ["s", "s", "l"], "b": 3}),
])
def test_numbers_classes_and_jobs(text: str, found: object) -> None:
    assert counted(text) == found


@pytest.mark.parametrize(("text", "message"), [
    ("a=8,", "it must be a number, classes between commas"), ("a=1,a=2", "each job once"), ("a=", "must be job=number"),
    ("0", "at least 1"), ("a=0", "at least 1"), ("0*s", "lists no micro-batch"), ("9999999*s", "more than 2000000"),
])
def test_what_means_nothing(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        counted(text)


def test_ratios_are_numbers_of_jobs() -> None:
    assert ratio_of("a=2,b=1") == {"a": 2, "b": 1}
    with pytest.raises(ValueError, match="as a=2,b=1"):
        ratio_of("2,1")
