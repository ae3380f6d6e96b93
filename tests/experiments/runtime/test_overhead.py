"""What the comparison of executors makes of its rounds."""

from __future__ import annotations

from experiments.runtime.overhead import in_rounds, ratio


def test_all_ways_run_in_each_round_after_one_to_warm_up() -> None:
    told: list[str] = []

    def way(name: str) -> int:
        told.append(name)
        return len(told)

    assert in_rounds({name: lambda name=name: way(name) for name in "ab"}, 2) == {  # type: ignore[misc]
        "a": [3, 5], "b": [4, 6]}
    assert told == list("ababab")


def test_ratios_are_of_one_round() -> None:
    assert ratio([1, 20, 300], [2, 40, 400]) == 0.5
