"""The front door to all formats, out and in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import weft
from tests.support import TINY_SPEC, chain, pipeline, refusal, shape, shows
from weft.runtime.export.torch_import import read_table, schedule_of_table
from weft.solver import baseline, load_schedule, save_problem, save_schedule, solve, violations


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    layers = ["embedding", *(f"layer{i}" for i in range(6)), "head"]
    schedule = baseline("1f1b", pipeline(chain(2), memory=2), 4).with_solver(layers_of_stage=[layers[:4], layers[4:]])
    save_schedule(schedule, tmp_path / "schedule.json")
    return tmp_path / "schedule.json"


def test_every_format_is_written(saved: Path, tmp_path: Path) -> None:
    for name, words in (("pytorch", "0F0,0F1,0B0"), ("pytorch-comms", "0F0,0SEND_F0"), ("megatron", "Et*3|t*3L"),
                        ("torchtitan", "[parallelism]"), ("nnscaler", "SchedulePlan"), ("tessel", '"ndevs": 2'),
                        ("perfetto", "traceEvents")):
        shows("export", saved, "-o", tmp_path / f"out.{name}", "--format", name)
        assert words in (tmp_path / f"out.{name}").read_text()
    assert (tmp_path / "out.csv").read_text() == (tmp_path / "out.pytorch").read_text()  # torchtitan's
    for ending, name in ((".csv", "pytorch"), (".toml", "torchtitan"), (".py", "nnscaler")):
        shows("export", saved, "-o", tmp_path / f"out{ending}")
        if ending != ".toml":  # it names the CSV
            assert (tmp_path / f"out{ending}").read_text() == (tmp_path / f"out.{name}").read_text()


def test_exporting_needs_no_torch() -> None:
    modules = "weft.app.export, weft.app.fit, weft.runtime.export.torch_csv, weft.runtime.export.torch_check"
    subprocess.run([sys.executable, "-c", f"import sys, {modules}; assert 'torch' not in sys.modules"], check=True)


@pytest.mark.parametrize(("arguments", "message"), [
    (["-o", "x.json"], "x.json: the ending does not say which format; name one with --format"),
    (["-o", "no/such/x.csv"], "its folder does not exist"),
    (["-o", "x.csv", "--torch", "1.13"], "the PyTorch version is '1.13', it must be 2.6 or newer"),
    (["-o", "x.csv", "--format", "torchtitan"], "x.csv: the ending is .csv, which torchtitan is not; end the file's "
                                                "name in .toml"),
])
def test_an_export_that_means_nothing_is_one_sentence(arguments: list[str], message: str, saved: Path, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refusal("export", saved, *arguments)


def test_a_csv_is_imported_on_units_a_problem_and_a_spec(saved: Path, tmp_path: Path) -> None:
    weft.export_schedule(saved, tmp_path / "o.csv")
    told = shows("import", tmp_path / "o.csv", "-o", tmp_path / "units.json")
    assert "o: 4 micro-batches on 2 devices\nmakespan  15 step" in told
    assert weft.check(tmp_path / "units.json") == []

    problem = load_schedule(saved).problem
    save_problem(problem, tmp_path / "problem.json")
    on_problem = weft.import_schedule(tmp_path / "o.csv", problem=tmp_path / "problem.json", micro_batches=4)
    assert on_problem.device_orders == load_schedule(saved).device_orders
    assert 0 < on_problem.makespan_bound <= on_problem.makespan

    (tmp_path / "spec.yaml").write_text(TINY_SPEC)
    on_spec = weft.import_schedule(tmp_path / "o.csv", problem=tmp_path / "spec.yaml")
    assert on_spec.problem.time_unit == "s" and on_spec.solver["placement"] == "1 stage a GPU, I+W"
    assert violations(on_spec) == []
    assert "does not state the cut of the layers: timed with " in on_spec.solver["notes"][-1]

    on_own = weft.import_schedule(tmp_path / "o.csv", problem=saved)
    assert (on_own.problem, on_own.device_orders) == (problem, load_schedule(saved).device_orders)
    assert "notes" not in on_own.solver


def test_an_import_that_cannot_be_is_one_sentence(saved: Path, tmp_path: Path) -> None:
    weft.export_schedule(saved, tmp_path / "o.csv")
    (tmp_path / "spec.yaml").write_text(TINY_SPEC)
    (tmp_path / "three.csv").write_text("0F0,0B0\n1F0,1B0\n2F0,2B0\n")
    (tmp_path / "broken.csv").write_text("0F0,0B0\n1F0,1X0\n")
    for arguments, message in (
            (["o.csv", "-n", "5"], "o.csv: has 4 micro-batches, not 5"),
            (["three.csv", "--problem", tmp_path / "spec.yaml"], "has 3 stages in rows 1, 2, 3, which is none of the"),
            (["broken.csv"], "broken.csv: row 2, cell 2: '1X0' is no action of a PyTorch schedule"),
            (["schedule.json"], "schedule.json: is weft's own (weft.schedule/1), there is nothing to import"),
            (["spec.yaml"], "spec.yaml: the ending is .yaml, what can be read is .csv"),
            (["none.csv"], "none.csv: cannot be read: No such file")):
        assert message in refusal("import", tmp_path / str(arguments[0]), *arguments[1:], "-o", tmp_path / "x.json")
    assert not (tmp_path / "x.json").exists()


def test_what_breaks_our_rules_is_told_and_written(tmp_path: Path) -> None:
    (tmp_path / "o.csv").write_text("0F0,0F1,0B1,0B0\n")  # last in, first out
    told = shows("import", tmp_path / "o.csv", "-o", tmp_path / "s.json", status=1)
    assert "fault     block 'B0' of micro-batch 1 on device 'gpu0' starts at 2 step" in told
    assert load_schedule(tmp_path / "s.json").makespan == 6


LAST_IN_FIRST_OUT = "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n"


def test_micro_batches_out_of_turn_are_drawn_explained_planned_and_exported(tmp_path: Path) -> None:
    (tmp_path / "o.csv").write_text(LAST_IN_FIRST_OUT)
    shows("import", tmp_path / "o.csv", "-o", tmp_path / "s.json", status=1)
    shows("draw", tmp_path / "s.json", "-o", tmp_path / "s.svg", "--critical")
    shows("draw", tmp_path / "s.json", "-o", tmp_path / "s.png", "--baseline", tmp_path / "s.json")
    shows("draw", tmp_path / "s.json", "-o", tmp_path / "trace.json")
    assert "Critical path: 6 operations" in shows("explain", tmp_path / "s.json", "--quiet")
    shows("plan", tmp_path / "s.json", "-o", tmp_path / "plan.json")
    for name in ("pytorch", "pytorch-comms", "nnscaler", "tessel"):
        shows("export", tmp_path / "s.json", "-o", tmp_path / name, "--format", name)
    assert (tmp_path / "pytorch").read_text() == LAST_IN_FIRST_OUT
    back = schedule_of_table(read_table(tmp_path / "pytorch"))
    assert back.device_orders == load_schedule(tmp_path / "s.json").device_orders
    said = refusal("explain", tmp_path / "s.json", "--what-if", "--quiet", status=1)
    assert "what-if figures are of schedules that run micro-batches in turn, ask without" in said


def test_what_no_device_can_run_is_refused_in_one_sentence(saved: Path, tmp_path: Path) -> None:
    weft.export_schedule(baseline("gpipe", pipeline(chain(2)), 4), tmp_path / "o.csv")
    save_problem(pipeline(chain(2), memory=2), tmp_path / "p.json")
    shows("import", tmp_path / "o.csv", "--problem", tmp_path / "p.json", "-o", tmp_path / "s.json", status=1)
    for arguments in (["export", tmp_path / "s.json", "-o", tmp_path / "x.csv"], ["explain", tmp_path / "s.json"],
                      ["plan", tmp_path / "s.json"]):
        printed = refusal(*arguments, status=1)
        assert f"{tmp_path / 's.json'}: device 'gpu0': when block 'f0' of micro-batch 2 starts" in printed
        assert printed.endswith("(and more: `weft check` lists all)\n")
    shows("draw", tmp_path / "s.json", "-o", tmp_path / "s.svg", "--critical")  # where memory is too little
    shows("draw", saved, "-o", tmp_path / "s.svg", "--baseline", tmp_path / "s.json")
    saved.write_text(saved.read_text().replace('"start": 0.0, "end": 1.0', '"start": 0.5, "end": 1.5', 1))
    assert f"{saved}: nothing starts at 0" in refusal("draw", saved, "-o", tmp_path / "x.svg", status=1)
    assert not (tmp_path / "x.svg").exists()


def test_a_tessel_schedule_is_imported(tmp_path: Path) -> None:
    schedule = solve(shape("k", 2, 6), 6, effort=0.2)
    save_schedule(schedule, tmp_path / "s.json")
    save_problem(schedule.problem, tmp_path / "p.json")
    shows("export", tmp_path / "s.json", "--format", "tessel", "-o", tmp_path / "t.json")
    shows("import", tmp_path / "t.json", "-o", tmp_path / "u.json")
    shows("import", tmp_path / "t.json", "--problem", tmp_path / "p.json", "-o", tmp_path / "w.json")
    assert load_schedule(tmp_path / "u.json").makespan == load_schedule(tmp_path / "w.json").makespan
    (tmp_path / "spec.yaml").write_text(TINY_SPEC)
    said = refusal("import", tmp_path / "t.json", "--problem", tmp_path / "spec.yaml", "-o", tmp_path / "x.json")
    assert "a Tessel schedule goes with a block problem" in said
