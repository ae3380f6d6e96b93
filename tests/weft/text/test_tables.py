"""Tables in narrow terminals, and numbers of many devices."""

from __future__ import annotations

import random

from rich.table import Table

from weft.text.tables import non_dominated, table_text
from weft.text.units import each_text

GIB = 2**30


def table(columns: int, rows: int) -> Table:
    made = Table(title="a title", caption="a caption that is much longer than the columns of the last of these tables")
    made.add_column("what")
    for column in range(columns):
        made.add_column(f"peak MiB of {column}", justify="right")
    for row in range(rows):
        made.add_row(f"a name of several words {row}", *(f"{1234.5 + 10 * row + column}" for column in range(columns)))
    return made


def test_a_narrow_table_keeps_its_numbers_whole_and_every_column() -> None:
    for columns in (2, 7, 20):
        text = table_text(table(columns, 3), 80)
        assert max(map(len, text.splitlines())) <= 80
        words = text.split()
        assert all(f"{1234.5 + 10 * row + column}" in words for row in range(3) for column in range(columns))
        assert "…" not in text and text.startswith("a title") and "a caption" in text


def test_a_wide_terminal_has_one_table() -> None:
    assert table_text(table(7, 3), 140).count("what") == 1


def test_many_devices_are_summed_up() -> None:
    amounts = [GIB * (1 + device % 5) for device in range(64)]
    names = [f"gpu{device}" for device in range(64)]
    assert each_text(amounts[:2], "B") == "1.0 2.0"
    assert each_text(amounts[:2], "B", names[:2]) == "gpu0 1.0 GiB, gpu1 2.0 GiB"
    assert each_text(amounts, "B") == "1.0 to 5.0"
    few = [amount / 1024 for amount in amounts]
    assert each_text(few[:2], "B", names[:2]) == "gpu0 1.0 MiB, gpu1 2.0 MiB"
    assert each_text(few, "B", names) == each_text(amounts, "B", names).replace("GiB", "MiB")
    assert each_text(amounts, "B", names) == "1.0 to 5.0, median 3.0 GiB on 64 devices"
    assert each_text([GIB] * 64, "B", names) == "1.0 GiB on 64 devices"


def test_exactly_the_points_that_no_other_beats_by_rising_memory() -> None:
    draw = random.Random(3)
    for _ in range(200):
        points = [(float(draw.randint(0, 4)), float(draw.randint(0, 4))) for _ in range(draw.randint(0, 8))]
        beaten = [any(a <= memory and b >= rate and (a, b) != (memory, rate) for a, b in points)
                  for memory, rate in points]
        found = non_dominated(points)
        assert sorted(found) == [i for i, lost in enumerate(beaten) if not lost]
        assert [points[i][0] for i in found] == sorted(points[i][0] for i in found)
