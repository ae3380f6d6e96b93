"""What a small rerun is held against: the rows of the file that are most like its own, without times and sums."""

from __future__ import annotations

from experiments.lib.check import differences

KEPT = {"provenance": {"commit": "a"}, "effort": 1.0, "more": [1], "summary": {"problems": 2}, "rows": [
    {"name": "one", "devices": 2, "weft": 10.0, "bound": 9.0, "seconds": 1.0},
    {"name": "two", "devices": 4, "weft": 20.0, "bound": 20.0, "seconds": 3.0}]}


def test_rows_are_found_again_and_times_do_not_count() -> None:
    again = {"provenance": {"commit": "b"}, "effort": 1.0, "summary": {"problems": 1},
             "more": [], "rows": [{"name": "two", "devices": 4, "weft": 20.0 + 1e-9, "bound": 20.0, "seconds": 7.0}]}
    assert not [*differences(again, KEPT)]


def test_a_figure_that_no_longer_comes_out_is_told() -> None:
    worse = {"rows": [{"name": "two", "devices": 4, "weft": 21.0, "bound": 20.0}]}
    assert [*differences(worse, KEPT)] == [".rows[1].weft is 21, in the file 20"]
    assert [*differences({"effort": 2.0}, KEPT)] == [".effort is 2, in the file 1"]
    assert [*differences({"rows": [{"name": "one", "gap": 1}]}, KEPT)] == [".rows[0].gap is not in the file"]
