"""Numbers and names as people read them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.builders import chain, pipeline
from weft.text.units import NAME, Unit, bytes_text, figure, memory_text, memory_unit, name_text, time_text, time_unit


@pytest.mark.parametrize(("amount", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1.5 * 2**20, "1.5 MiB"),
                                              (2**30, "1.0 GiB"), (2**41, "2048.0 GiB")])
def test_bytes_are_told_in_the_unit_that_makes_them_readable(amount: float, text: str) -> None:
    assert bytes_text(amount) == text


def test_seconds_and_bytes_change_their_unit_and_no_others() -> None:
    assert time_text(0.25, "s") == ("250.0", "ms") and time_text(0.25, "step") == ("0.25", "step")
    assert memory_text(2**30, "B") == ("1.0", "GiB") and memory_text(3, "slots") == ("3", "slots")


def test_long_and_strange_names_are_cut_and_shown() -> None:
    name = name_text("a" * 100 + "z")
    assert len(name) == NAME and name.startswith("aa") and name.endswith("az") and "…" in name
    assert name_text("tab\tand\x1b[31m\ud800") == "tab\tand\ufffd[31m\ufffd"


def test_one_unit_serves_all_numbers_of_an_axis() -> None:
    seconds = replace(pipeline(chain(2)), time_unit="s", memory_unit="B")
    problem = replace(seconds, time_unit="step", memory_unit="slot")
    assert [time_unit(seconds, longest).name for longest in (10, 9.9, 1e-3, 9e-4)] == ["s", "ms", "ms", "µs"]
    assert [memory_unit(seconds, highest).name for highest in (2**30, 2**26, 2**12, 10)] == ["GiB", "MiB", "KiB", "B"]
    assert time_unit(problem, 1e9) == Unit("step", 1) == time_unit(problem, 1e-9)
    assert memory_unit(problem, 1e12) == Unit("slot", 1)
    assert Unit("ms", 1e-3).show(0.012345) == "12.35 ms" and Unit("", 1).show(2.0) == "2"


@pytest.mark.parametrize(("highest", "name"), [(0, "B"), (9, "B"), (700, "KiB"), (2**20, "MiB"), (2**27, "GiB")])
def test_bytes_are_shown_in_a_unit_that_suits_them(highest: float, name: str) -> None:
    assert memory_unit(pipeline(chain(2)), highest).name == name


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.44061, "0.4406"), (1552.0, "1552"), (12.30, "12.3"),
                                             (123456.7, "123457"), (-2.5, "-2.5"), (100, "100"), (1234567.0, "1234567"),
                                             (1.2346e-4, "0.0001235")])
def test_numbers_are_short_and_without_exponents(value: float, text: str) -> None:
    assert figure(value) == text
