"""Experiments: each runs in small and writes what is kept, with its provenance; all are rerun by one command; the
figures on the pages are those of the files."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments import __main__ as listing
from experiments.lib import provenance
from experiments.lib.catalogue import EXPERIMENTS, HOME, Experiment
from experiments.lib.provenance import RESULTS, ROOT
from experiments.lib.results import PAGE, page

ENTRIES = {"commit", "dirty", "command", "machine", "date", "minutes"}
#: Their marks can be missed in small: by times on a busy machine.
MAY_MISS = {"captured_costs", "overhead", "beside_torch", "overlap_sums"}


def smokes() -> list[Any]:
    return [pytest.param(experiment, id=name, marks=(pytest.mark.slow,) * experiment.slow + (pytest.mark.rare,) *
                         experiment.rare) for name, experiment in EXPERIMENTS.items()]


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
    written, kept = json.loads(target.read_text()), experiment.content
    assert code == 0 or experiment.name in MAY_MISS
    assert written["provenance"].keys() >= ENTRIES
    if experiment.name == "roofline":  # in small nothing is fitted
        kept = {key: value for key, value in kept.items() if not key.startswith("fitted on")}
    if experiment.name == "gpu_plan":  # in small it is another preset, and the ranks do not run together
        written, kept = written["tiny adam"], {**kept["1.3b adam"]}
        del kept["together"]
    assert written.keys() == kept.keys()
    assert keys_of_rows(written) <= keys_of_rows(kept)


def keys_of_rows(content: dict[str, Any]) -> set[str]:
    """Of all rows together, whatever holds them."""
    return {key for value in content.values() for row in (value if isinstance(value, list) else ())
            if isinstance(row, dict) for key in row}


def test_every_script_and_every_file_is_in_the_catalogue() -> None:
    scripts = {f"{path.parent.name}.{path.stem}" for path in HOME.glob("*/*.py")
               if "\n@script(" in path.read_text()}
    assert scripts == {experiment.module for experiment in EXPERIMENTS.values()}
    files = {path.relative_to(RESULTS).with_suffix("").as_posix() for path in RESULTS.rglob("*.json")}
    assert files - {"readme/schedule"} == EXPERIMENTS.keys()
    assert all(experiment.content["provenance"].keys() >= ENTRIES for experiment in EXPERIMENTS.values())


def test_a_command_has_no_path_of_the_machine() -> None:
    assert provenance._command(["/usr/bin/python3", "-m", "experiments.period.scale", "--output",
                                f"{ROOT}/a b.json"]) == (
        "python -m experiments.period.scale --output 'a b.json'")
    assert provenance._command(["python3", "-m", "experiments.runtime.gpu", "--output", "/tmp/out.json", "--page"]) == (
        "python -m experiments.runtime.gpu --page")


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


def test_the_table_of_the_readme_is_that_of_its_file() -> None:
    kept = {row["title"]: row for row in json.loads(EXPERIMENTS["readme/comparison"].file.read_text())["rows"]}
    table = (ROOT / "README.md").read_text().partition("<!-- table -->")[2].partition("<!-- end of table -->")[0]
    shown = [[cell.strip() for cell in line.strip("│").split("│")] for line in table.splitlines() if "│" in line]
    assert {"1F1B", "weft"} <= {row[0] for row in shown} <= kept.keys()
    for title, placement, step, *_ in shown:
        assert (placement, step) == (kept[title]["placement"], f"{1e3 * kept[title]['makespan']:.1f}"), title
