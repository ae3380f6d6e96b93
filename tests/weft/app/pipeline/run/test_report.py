"""A report for people has planned beside measured."""

from __future__ import annotations

from weft.app.pipeline.run.report import Report


def test_planned_stands_beside_measured() -> None:
    report = Report(0.0125, 0.01, 0.012, (("words", "layers.0"), ("head", "head")), (0, 1), (2**20, 3 * 2**19),
                    (2**20, 2**20), 0.01, ("a note",))
    assert str(report).splitlines() == [
        "stage 0 on rank 0: words to layers.0",
        "stage 1 on rank 1: head",
        "                 planned  measured  ratio",
        "step            12.50 ms  10.00 ms   0.80",
        "peak of rank 0  1.00 MiB  1.00 MiB   1.00",
        "peak of rank 1  1.50 MiB  1.00 MiB   0.67",
        "no schedule of these stages takes less than 10.00 ms",
        "a whole step takes 12.00 ms, with losses, reductions and the transfer of batches",
        "a note"]


def test_what_is_not_measured_is_left_open() -> None:
    report = Report(0.0125, None, None, (("words", "head"),), (0,), (0,), None, None, ())
    assert str(report).splitlines()[1:] == ["                 planned  measured  ratio",
                                            "step            12.50 ms         -      -",
                                            "peak of rank 0  0.00 MiB         -      -"]
