"""What nobody foresaw: one sentence, exit status 3 and a file with the details; and numbers that mean nothing."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

import weft
from tests.support import ROOT, pipeline, ran, refusal, uneven, v
from weft.cli.lib.faults import in_one_line
from weft.cli.main import main
from weft.solver import Infeasible, save_problem
from weft.solver.control import compiled as binary
from weft.solver.control.stopping import STOP
from weft.solver.orders import local_search


def failing(monkeypatch: pytest.MonkeyPatch, error: Callable[[], object]) -> None:
    """``weft schema`` comes to ``error``."""
    monkeypatch.setattr("weft.cli.lib.command.Command.run", lambda *_: error())


def raises(error: BaseException) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


def endlessly(depth: int = 0) -> int:
    return endlessly(depth + 1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@pytest.mark.parametrize(("error", "what"), [
    (raises(KeyError("b")), "(KeyError: 'b')"),
    (raises(AssertionError()), "(AssertionError)"),
    (raises(MemoryError()), "(needs more memory than there is)"),
    (endlessly, "(is nested more deeply than can be followed)"),
    (lambda: min([]), "(ValueError: min() arg is an empty sequence)"),
    (lambda: int("x"), "(ValueError: invalid literal for int() with base 10: 'x')"),
    (lambda: 1 / 0, "(ZeroDivisionError: division by zero)"),
    (raises(RuntimeError("a\nb" * 500)), "(RuntimeError: a ba ba b"),
])
def test_what_nobody_foresaw_is_a_sentence_and_a_file(error: Callable[[], object], what: str, folder: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, error)
    printed = refusal("schema", status=3)
    assert printed.startswith("weft: schema: a fault in weft, please report it (") and what in printed
    assert len(printed) < 600
    details = Path(printed.strip().split("the details are in ")[1]).read_text()
    assert details.startswith(f"weft {weft.__version__}, Python 3.") and "Traceback" in details
    assert len(list(folder.iterdir())) == 1


def test_a_fault_without_a_place_for_its_details_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, raises(KeyError("b")))
    monkeypatch.setattr("tempfile.mkstemp", raises_any)
    assert refusal("schema", status=3) == "weft: schema: a fault in weft, please report it (KeyError: 'b')\n"


def raises_any(**_: object) -> NoReturn:
    raise OSError(28, "No space left on device")


def test_a_sentence_of_wefts_own_stays_one(tmp_path: Path) -> None:
    assert "no.yaml: " in refusal("solve", tmp_path / "no.yaml")


def test_where_a_stop_came_nothing_found_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> NoReturn:
        STOP.requested = True
        raise Infeasible("x: none was found")

    failing(monkeypatch, stopped)
    monkeypatch.setattr("weft.cli.main.is_said", lambda _: True)
    assert main(["schema"]) == 130
    assert not STOP.requested


def test_a_reader_who_has_had_enough_is_no_fault() -> None:
    done = subprocess.run(f"{sys.executable} -m weft schema | head -1", shell=True, capture_output=True, text=True,
                          timeout=600, cwd=ROOT)
    assert done.stdout == "{\n" and done.stderr == ""


def test_a_terminal_that_knows_few_characters_gets_signs_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["solve", "modèle.yaml"]) == 2
    assert b"mod\\xe8le.yaml" in raw.getvalue()


def test_an_error_is_as_long_as_people_read() -> None:
    assert len(refusal("solve", "x" * 100_000 + ".json", "-n", "2")) < 2200
    assert len(refusal("solve", "x.json", "-n", "y" * 100_000)) < 2200


@pytest.mark.parametrize("option", [
    ["--workers", "100000"], ["--workers", "0"], ["--time-limit", "nan"], ["--time-limit", "-1"],
    ["--time-limit", "1e308"], ["--time-limit", "inf"], ["-n", "1000000000"], ["-n", "9" * 5000],
    ["--effort", "1e308"]])
@pytest.mark.parametrize("command", ["solve", "compare", "explain", "latency", "sweep"])
def test_numbers_beyond_any_meaning_are_refused(command: str, option: list[str]) -> None:
    assert "it must be a" in refusal(command, "x.json", *option)


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command whose search has local search in it, where there is no compiled kernel."""
    monkeypatch.setattr(binary, "why_not", lambda: "there is none")
    monkeypatch.setattr(local_search, "_notice", local_search._notice.__wrapped__)
    save_problem(uneven(pipeline(v(3), memory=4), random.Random(0)), tmp_path / "problem.json")
    return ["solve", str(tmp_path / "problem.json"), "-n", "6", "--effort", "0.005"]


def test_a_command_says_it_in_one_line(arguments: list[str]) -> None:
    done = ran(*arguments)
    lines = [line for line in done.err.splitlines() if "kernel" in line]
    assert done.status == 0
    assert set(lines) == {"weft: the compiled kernel is not used, as there is none; local search runs in Python, a "
                          "hundred times slower"}


def test_others_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="of a library"), in_one_line():
        warnings.warn("of a library", stacklevel=1)
    assert not capsys.readouterr().err
