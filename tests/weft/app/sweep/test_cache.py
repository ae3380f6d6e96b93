"""The cache of solved problems: what it gives back, what it takes for another question, what it refuses to trust."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

import weft
from tests.support.builders import chain, pipeline
from tests.support.sweeps import EFFORT, uniform
from weft.app.lib.case import Case, case_of
from weft.app.sweep import cache as cache_module
from weft.app.sweep.cache import Cache, Solved, key_of, solve_point
from weft.solver.io.kept import json_digest
from weft.solver.io.writing import default_folder
from weft.solver.problem import Problem

LIMITS = weft.SearchOptions(effort=0.05)
Value = dict[str, Any]


def case(problem: Problem | None = None, micro_batches: int = 4) -> Case:
    return case_of(problem or pipeline(chain(2), memory=2), micro_batches)


@pytest.fixture(scope="module")
def solved() -> Solved:
    found = solve_point(case(), LIMITS)
    assert isinstance(found, Solved)
    assert found.known
    return found


@pytest.fixture
def cache(tmp_path: Path, solved: Solved) -> Cache:
    made = Cache(tmp_path / "not" / "there yet")
    made.save(key_of(case(), LIMITS), solved)
    return made


def test_what_was_saved_comes_back_whole(cache: Cache, solved: Solved) -> None:
    assert cache.load(key_of(case(), LIMITS), case()) == solved


@pytest.mark.parametrize("other", [
    (case(pipeline(chain(2), memory=3)), LIMITS),
    (case(pipeline(chain(2), memory=2, forward=1.5)), LIMITS),
    (case(micro_batches=5), LIMITS),
    (case(), replace(LIMITS, seed=1)),
    (case(), replace(LIMITS, effort=0.06)),
    (case(), replace(LIMITS, time_limit=61.0)),
], ids=["memory", "duration", "micro-batches", "seed", "effort", "time limit"])
def test_another_question_has_another_key(other: tuple[Case, weft.SearchOptions]) -> None:
    assert key_of(*other) != key_of(case(), LIMITS)


def test_another_solver_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(case(), LIMITS)
    assert key_of(case(), LIMITS) == before
    monkeypatch.setattr(cache_module, "_makers", lambda: {"weft": "another"})
    assert key_of(case(), LIMITS) != before


def sealed(change: Callable[[Value], None]) -> Callable[[Value], None]:
    """``change`` with the checksum made right again: only the judge can tell."""
    def changed(entry: Value) -> None:
        change(entry)
        entry["checksum"] = json_digest(entry["schedules"])
    return changed


def _start_early(entry: Value) -> None:
    last = entry["schedules"]["weft"]["operations"][-1]
    last["start"], last["end"] = last["start"] - 1, last["end"] - 1


def _more_memory(entry: Value) -> None:
    for schedule in entry["schedules"].values():
        for device in schedule["problem"]["devices"]:
            device["memory"] = 5


def _lower_bound(entry: Value) -> None:
    entry["schedules"]["weft"]["makespan_bound"] -= 1


def _rename(entry: Value) -> None:
    entry["schedules"]["no such schedule"] = entry["schedules"].pop(next(n for n in entry["schedules"] if n != "weft"))


DAMAGE: dict[str, Callable[[Value], None]] = {
    "a bound changed": _lower_bound,
    "a field missing": lambda entry: entry.pop("checksum"),
    "a field too many": lambda entry: entry.update(more=1),
    "another format": lambda entry: entry.update(format="weft.cache/2"),
    "another key": lambda entry: entry.update(key="0" * 64),
    "an invalid schedule": sealed(_start_early),
    "another problem": sealed(_more_memory),
    "fewer micro-batches": sealed(lambda entry: entry["schedules"]["weft"].update(micro_batches=3)),
    "a false makespan": sealed(lambda entry: entry["schedules"]["weft"].update(makespan=1)),
    "no schedule of weft's": sealed(lambda entry: entry["schedules"].pop("weft")),
    "an unknown schedule": sealed(_rename),
    "no schedules": lambda entry: entry.update(schedules=[]),
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_entry_is_not_trusted(cache: Cache, change: Callable[[Value], None]) -> None:
    path = cache.path(key_of(case(), LIMITS))
    entry = json.loads(path.read_text())
    change(entry)
    path.write_text(json.dumps(entry))
    assert cache.load(key_of(case(), LIMITS), case()) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"NaN", b'{"format": NaN}', b"[" * 10**5])
def test_a_file_that_is_no_entry_is_not_trusted(cache: Cache, content: bytes) -> None:
    cache.path(key_of(case(), LIMITS)).write_bytes(content)
    assert cache.load(key_of(case(), LIMITS), case()) is None


def test_a_changed_number_anywhere_is_noticed(cache: Cache) -> None:
    path = cache.path(key_of(case(), LIMITS))
    text = path.read_text()
    places = [i for i, letter in enumerate(text) if letter.isdigit()]
    for i in places[::max(1, len(places) // 60)]:
        path.write_text(text[:i] + str((int(text[i]) + 1) % 10) + text[i + 1:])
        assert cache.load(key_of(case(), LIMITS), case()) is None, text[i - 40:i + 5]


def test_the_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "weft"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "weft"


@pytest.mark.parametrize("none", [None, False])
def test_none_is_no_cache(none: Literal[False] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weft.sweep(uniform(), micro_batches=[2], workers=1, effort=EFFORT, cache=none).cached == 0
    assert list(tmp_path.iterdir()) == []
