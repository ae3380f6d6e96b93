"""The command line: what each command prints and writes, its exit status, and one sentence for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.support import ROOT, TINY_SPEC, chain, pipeline, ran, refusal, shape, shows, written
from weft.cli.commands import commands, summary
from weft.cli.main import main
from weft.solver import Problem, baseline, load_schedule, save_problem, save_schedule
from weft.solver.io.writing import write_atomically


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    save_problem(shape("chain", 2, 2), path)
    return path


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    path = tmp_path / "schedule.json"
    save_schedule(baseline("1f1b", pipeline(chain(2), memory=2), 4), path)
    return path


def test_solve_writes_a_schedule_that_check_passes(problem: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    printed = ran("solve", problem, "-n", 8, "-o", output, "--effort", 1)
    assert printed.status == 0
    assert "makespan  36 step, lower bound 36 step: proven optimal" in printed.out
    assert "best 36 step" in printed.err
    assert load_schedule(output).makespan == 36
    assert f"{output}: valid" in shows("check", output)


def test_check_names_what_is_wrong_and_says_no(schedule: Path) -> None:
    value: dict[str, Any] = json.loads(schedule.read_text())
    value["operations"][-1]["start"] -= 1
    value["operations"][-1]["end"] -= 1
    schedule.write_text(json.dumps(value))
    faults = json.loads(shows("check", schedule, "--json", status=1))["faults"]
    assert any("micro-batch 3" in fault for fault in faults)
    assert any(fault.startswith("makespan is stated as") for fault in faults)


def test_compare_shows_every_known_schedule(problem: Path) -> None:
    told = shows("compare", problem, "-n", 8, "--effort", 1, "--json", "--quiet")
    rows = {row["name"]: row for row in json.loads(told)["rows"]}
    assert set(rows) == {"gpipe", "1f1b", "v-block", "dynapipe", "greedy", "weft"}
    assert not rows["gpipe"]["fits"]
    assert rows["weft"]["makespan"] == rows["1f1b"]["makespan"] == rows["weft"]["bound"] == 36
    assert "a tie" in shows("compare", problem, "-n", 8, "--effort", 1, "--quiet")


def test_a_model_spec_is_solved_over_its_placements(tmp_path: Path) -> None:
    spec = written(tmp_path / "tiny.yaml", TINY_SPEC)
    comparison = weft.compare(spec, effort=0.3)
    assert {"1f1b", "interleaved", "zb-v", "weft"} <= set(comparison.schedules)
    for row in comparison.rows:
        if row.fits:
            assert comparison.weft.makespan <= row.makespan * (1 + 1e-9)
    solved = json.loads(shows("solve", spec, "--effort", 0.2, "--json", "--quiet"))["solver"]
    assert solved["bound_over_placements"] <= comparison.weft.makespan
    assert solved["placement"]


@pytest.mark.parametrize("command", ["check", "draw", "plan", "export"])
def test_a_spec_in_the_place_of_a_schedule_is_told_how_to_become_one(command: str, tmp_path: Path) -> None:
    path = written(tmp_path / "model.yaml", TINY_SPEC)
    further = [] if command == "check" else ["-o", tmp_path / ("out.svg" if command == "draw" else "out.json")]
    said = refusal(command, path, *further)
    assert "model.yaml: is a model spec by its ending, and this needs a schedule; make" in said


def test_schema_is_the_json_schema_of_a_spec() -> None:
    assert {"model", "cluster", "training"} <= set(json.loads(shows("schema"))["properties"])


@pytest.mark.parametrize(("name", "content", "status", "message"), [
    ("missing.yaml", None, 2, "missing.yaml: "),
    ("empty.yaml", "", 2, "empty.yaml: is empty"),
    ("list.yaml", "- 1\n- 2\n", 2, "list.yaml: "),
    ("empty.json", "", 2, "empty.json: is empty"),
    ("broken.json", "{\"format\": ", 2, "broken.json: line 1"),
    ("key.yaml", TINY_SPEC.replace("micro_batches", "micro_batchs"), 2, "did you mean 'micro_batches'"),
    ("negative.yaml", TINY_SPEC.replace("forward: 1 ms", "forward: -1 ms"), 2, "negative.yaml: line"),
    ("nan.yaml", TINY_SPEC.replace("forward: 1 ms", "forward: .nan"), 2, "nan.yaml: line"),
    ("none.yaml", TINY_SPEC.replace("micro_batches: 4", "micro_batches: 0"), 2, "micro_batches"),
    ("million.yaml", TINY_SPEC.replace("micro_batches: 4", "micro_batches: 1000000"), 2, "micro_batches"),
    ("small.yaml", TINY_SPEC.replace("2 GiB", "1.05 GiB"), 1, "GPU"),
])
def test_a_bad_spec_gets_one_sentence(name: str, content: str | None, status: int, message: str,
                                      tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    assert message in refusal("solve", path, "-n" if name.endswith("json") else "--effort", 1, status=status)


def test_a_problem_that_fits_no_memory_is_a_no(tmp_path: Path) -> None:
    tight: Problem = pipeline(chain(2), activation=5, memory=4)
    save_problem(tight, tmp_path / "tight.json")
    said = refusal("solve", tmp_path / "tight.json", "-n", 2, "-o", tmp_path / "out.json", status=1)
    assert "too little: the least that works is" in said
    assert not (tmp_path / "out.json").exists()


def test_a_block_problem_needs_the_number_of_micro_batches(problem: Path) -> None:
    assert "--micro-batches N" in refusal("solve", problem)


def test_every_command_is_listed_and_explains_itself() -> None:
    folder = ROOT / "weft" / "cli" / "commands"
    defined = [path for path in folder.glob("*.py") if "\n@command(" in path.read_text()]
    known = commands()
    assert len(known) == len(defined) > 15
    for name, command in known.items():
        assert command.summary == summary(name)
        assert shows(name, "--help").count(f"weft {name} - {command.summary}"[:90]) == 1


@pytest.mark.parametrize("arguments", [
    [], ["dance"], ["solve"], ["solve", "x", "-n", "0"], ["solve", "x", "-n", "many"],
    ["solve", "x", "--time-limit", "-3"], ["solve", "x", "--seed", "-1"]])
def test_bad_usage_is_said_in_one_line(arguments: list[str]) -> None:
    refusal(*arguments)


def test_a_full_disk_at_the_end_loses_nothing(problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, rescue = tmp_path / "full", tmp_path / "rescue"
    full.mkdir()
    rescue.mkdir()

    def fill(path: str | os.PathLike[str], content: str | bytes) -> None:
        if Path(path).parent == full:
            raise OSError(28, "No space left on device", os.fspath(path))
        write_atomically(path, content)

    monkeypatch.setattr("weft.solver.io.schedule_files.write_atomically", fill)
    monkeypatch.setenv("TMPDIR", str(rescue))
    monkeypatch.setattr("tempfile.tempdir", None)
    said = refusal("solve", problem, "-n", 8, "-o", full / "out.json", "--effort", 1, "--quiet")
    saved = list(rescue.iterdir())
    assert len(saved) == 1 and str(saved[0]) in said
    assert load_schedule(saved[0]).makespan == 36
    assert list(full.iterdir()) == []


def test_streams_that_the_caller_closed_are_written_to_nobody(schedule: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert (main(["check", str(schedule)]), main(["check", str(schedule.with_name("none.json"))])) == (0, 2)


def test_a_file_of_the_wrong_kind_is_named(schedule: Path, problem: Path) -> None:
    assert "format is 'weft.problem/1', it must be 'weft.schedule/1'" in refusal("check", problem)
    assert ".html" in refusal("draw", schedule, "-o", schedule.with_suffix(".gif"))


def test_importing_weft_and_the_solver_loads_nothing_heavy() -> None:
    code = ("import sys, weft; heavy = {'torch', 'altair', 'ortools', 'pydantic', 'numpy'} & set(sys.modules); "
            "assert not heavy, heavy; import weft.solver.step.search; assert 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_what_a_known_schedule_proves_loads_no_model_and_no_technique(problem: Path) -> None:
    """1F1B meets the bound, and its steady state the load."""
    unneeded = {"altair", "networkx", "ortools", "pandas", "pydantic", "rich", "torch", "yaml",
                "weft.solver.baselines.zb_v", "weft.solver.period.strategy", "weft.solver.step.order_model"}
    code = (f"import sys, weft, weft.cli.main; weft.solve({str(problem)!r}, micro_batches=8); "
            f"weft.cli.main.main(['solve', {str(problem)!r}, '-n', '8']); "
            f"found = {unneeded!r} & set(sys.modules); assert not found, found")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
