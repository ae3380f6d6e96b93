"""Experiments: each runs in small and writes the shape that is kept, with its provenance; all are rerun by one command.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments import __main__ as listing
from experiments.lib import provenance, results
from experiments.lib.catalogue import EXPERIMENTS, HOME, Experiment
from experiments.lib.provenance import NOT_RECORDED, RESULTS, ROOT, Record, git
from experiments.lib.results import PAGE, TEMPLATE, page
from experiments.readings import READINGS
from experiments.readings.writing import FalseClaimError

ENTRIES = ("commit", "dirty", "command", "machine", "date", "minutes")
MACHINE = ("cpu", "cores", "memory_gib", "load", "system", "python", "ortools", "torch")
#: Those whose numbers are a schedule or a picture of today's code: no file of theirs is kept.
KEEP_NOTHING = {"weft.figures_gallery": ("--only", "long")}

#: Those that show today's code: its rooms, and a notebook.
DRAW = {"house.picture", "weft.notebook"}

#: Their marks can be missed in small: by times on a busy machine, and by what two batches train.
MAY_MISS = {"adama", "captured_costs", "overhead", "replay_emulated", "shared_jobs"}


def smokes() -> list[Any]:
    return [pytest.param(experiment, id=name, marks=(pytest.mark.slow,) * experiment.slow + (pytest.mark.rare,) *
                         experiment.rare) for name, experiment in EXPERIMENTS.items()]


def provenances() -> dict[str, Any]:
    """By file; a schedule has it beside what else its solver says."""
    found = {}
    for path in sorted(RESULTS.rglob("*.json")):
        content = json.loads(path.read_text())
        assert isinstance(content, dict), path
        found[str(path.relative_to(RESULTS))] = content.get("provenance", content.get("solver", {}).get("provenance"))
    return found


@pytest.mark.parametrize("experiment", smokes())
def test_every_experiment_runs_in_small_and_writes_what_is_kept(experiment: Experiment, tmp_path: Path) -> None:
    target = tmp_path / f"{experiment.name}.json"
    target.parent.mkdir(exist_ok=True)
    extra = []
    if experiment.module == "weft.readme":
        shutil.copy(ROOT / "README.md", tmp_path)
        extra = ["--readme", str(tmp_path / "README.md")]
    code = importlib.import_module(f"experiments.{experiment.module}").main(
        [*shlex.split(experiment.smoke), *extra, "--output", str(target)])
    written, kept = json.loads(target.read_text()), json.loads(experiment.file.read_text())
    assert code == 0 or experiment.name in MAY_MISS
    assert set(written["provenance"]) >= set(ENTRIES)
    if experiment.name == "roofline":  # in small nothing is fitted
        kept = {key: value for key, value in kept.items() if not key.startswith("fitted on")}
    if experiment.name == "gpu_plan":  # in small it is another preset
        written, kept = written["tiny adam"], {**kept["1.3b adam"]}
        del kept["together"]  # in small the ranks do not run together
    assert written.keys() == kept.keys()
    assert keys_of_rows(written) <= keys_of_rows(kept) | {"micro_batch_size", "micro_batches", "covered"}


def keys_of_rows(content: dict[str, Any]) -> set[str]:
    """Of all rows together, whatever holds them."""
    found: set[str] = set()
    for value in content.values():
        for row in value if isinstance(value, list) else ():
            found |= row.keys() if isinstance(row, dict) else set()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("module", KEEP_NOTHING)
def test_experiments_that_keep_nothing_run_in_small(module: str, tmp_path: Path) -> None:
    assert importlib.import_module(f"experiments.{module}").main([str(tmp_path), *KEEP_NOTHING[module]]) == 0
    written, = (json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    assert set(written["provenance"]) >= set(ENTRIES)


def test_every_script_with_a_main_is_in_the_catalogue() -> None:
    scripts = {f"{path.parent.name}.{path.stem}" for path in HOME.glob("*/*.py")
               if "\nif __name__ ==" in path.read_text()}
    assert scripts == {experiment.module for experiment in EXPERIMENTS.values()} | KEEP_NOTHING.keys() | DRAW


def test_every_file_says_where_its_numbers_come_from() -> None:
    found = provenances()
    assert {f"{name}.json" for name in EXPERIMENTS} <= found.keys()
    for path, told in found.items():
        assert told is not None, path
        for entry in (told, *told.get("partial", ())):
            assert set(entry) >= set(ENTRIES), path
            assert set(entry["machine"]) - {"gpu"} == set(MACHINE), path
            assert entry["command"].startswith("python -m experiments.") or entry["command"] == NOT_RECORDED, path
            assert "/work" not in entry["command"] and "/tmp" not in entry["command"], path
            assert len(entry["commit"]) == 40, path


def test_a_part_leaves_the_provenance_of_the_rest(tmp_path: Path) -> None:
    target = tmp_path / "found.json"
    first = Record(target)
    first.write({"rows": [1]}, part=True)  # nothing was there
    first.write({"rows": [1, 2]})
    whole = json.loads(target.read_text())["provenance"]
    assert "partial" not in whole
    second = Record(target)
    second._start["date"] = "later"
    assert second.kept()["rows"] == [1, 2]
    for rows in ([1, 3], [1, 4]):  # as it goes on it stays one run
        second.write({**second.kept(), "rows": rows}, part=True)
    found = json.loads(target.read_text())
    assert found["rows"] == [1, 4]
    assert [entry["date"] for entry in found["provenance"].pop("partial")] == ["later"]
    assert found["provenance"] == whole
    second.write({"rows": [5]})
    assert "partial" not in json.loads(target.read_text())["provenance"]


def test_a_command_has_no_path_of_the_machine() -> None:
    assert provenance._command(["/usr/bin/python3", "-m", "experiments.period.scale", "--output",
                                f"{ROOT}/a b.json"]) == (
        "python -m experiments.period.scale --output 'a b.json'")


def test_a_rerun_says_how_long_it_took_and_waits_for_a_quiet_machine(monkeypatch: pytest.MonkeyPatch,
                                                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert listing.main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in EXPERIMENTS) and "minutes last time" in shown
    run: list[Sequence[str]] = []
    slept: list[float] = []

    def ended(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        run.append(command[1:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", ended)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 3.0, 3.0))
    monkeypatch.setattr(time, "sleep", slept.append)
    assert listing.main(["--rerun", "scale", "streams"]) == 1  # one needs a quiet machine
    shown = capsys.readouterr().out
    assert run == [["-m", "experiments.step.streams"]]
    assert "minutes last time" in shown and "scale needs a quiet machine: the load is 3.0" in shown
    assert sum(slept) == listing.PATIENCE
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(listing, "has_gpu", lambda: False)
    run.clear()
    assert listing.main(["--all"]) == 1  # some need a GPU
    assert len(run) == sum(not experiment.gpu for experiment in EXPERIMENTS.values())


def test_the_page_of_results_is_what_the_files_say() -> None:
    assert PAGE.read_text() == page(), "run python -m experiments --docs"


def test_a_sentence_that_its_file_does_not_bear_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = EXPERIMENTS["tessel_search"]
    rows = [{**row, "proven": False} for row in experiment.content["rows"]]
    monkeypatch.setitem(experiment.content, "rows", rows)
    with pytest.raises(FalseClaimError, match="all periods proven"):
        page()


def test_the_table_of_the_readme_is_that_of_its_file() -> None:
    kept = {row["title"]: row for row in json.loads(EXPERIMENTS["readme/comparison"].file.read_text())["rows"]}
    table = (ROOT / "README.md").read_text().partition("<!-- table -->")[2].partition("<!-- end of table -->")[0]
    shown = [[cell.strip() for cell in line.strip("│").split("│")] for line in table.splitlines() if "│" in line]
    assert {"1F1B", "weft"} <= {row[0] for row in shown} <= kept.keys()
    for title, placement, step, *_ in shown:
        assert (placement, step) == (kept[title]["placement"], f"{1e3 * kept[title]['makespan']:.1f}"), title


def test_every_reading_is_of_a_file_and_on_the_page() -> None:
    named = set(re.findall(r"\{(\w+)\.source\}", TEMPLATE.read_text()))
    assert READINGS.keys() == named
    assert named <= {name.partition("/")[0] for name in EXPERIMENTS}


def test_commits_of_files_are_in_the_history() -> None:
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("no whole history here")
    for path, told in provenances().items():
        assert git("cat-file", "-t", told["commit"]) == "commit", path
