"""What ``-o`` writes to: links, devices, pipes, read-only files, inputs; refused before anything is searched for."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rich.table import Table

from tests.support import chain, pipeline, refusal, shape, shows, written
from weft.cli.lib.output import require_writable
from weft.cli.lib.signals import listening
from weft.cli.main import main
from weft.figures import draw
from weft.solver import baseline, load_schedule, save_problem, save_schedule
from weft.solver.control.stopping import STOP
from weft.solver.io.writing import write_atomically
from weft.text.tables import table_text
from weft.text.units import name_text


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    save_problem(shape("chain", 2, 2), tmp_path / "problem.json")
    return tmp_path / "problem.json"


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    save_schedule(baseline("1f1b", pipeline(chain(2), memory=2), 4), tmp_path / "schedule.json")
    return tmp_path / "schedule.json"


def solving(problem: Path, output: object) -> list[object]:
    return ["solve", problem, "-n", 8, "--effort", 0.1, "--quiet", "-o", output]


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """No search begins."""
    monkeypatch.setattr("weft.solver.step.search.Search.__init__", lambda *_: pytest.fail("searched"))


def test_what_a_link_points_to_is_written(problem: Path, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    link, target = tmp_path / "link.json", tmp_path / "deep" / "target.json"
    link.symlink_to(target)
    for _ in range(2):  # a link to nothing yet, and one to a file
        shows(*solving(problem, link))
        assert link.is_symlink() and not target.is_symlink()
        assert load_schedule(target).makespan == 36
    assert os.listdir(tmp_path / "deep") == ["target.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_devices_stay_devices(problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    shows(*solving(problem, "/dev/null"))
    said = refusal(*solving(problem, "/dev/full"))
    assert said.startswith("weft: /dev/full: No space left on device; the schedule was saved to ")
    assert load_schedule(said.split("saved to ")[1].split(" instead")[0]).makespan == 36
    assert all(stat.S_ISCHR(os.stat(device).st_mode) for device in ("/dev/null", "/dev/full"))


def test_a_pipe_is_written_to(problem: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    shows(*solving(problem, pipe))
    reader.join(300)
    assert json.loads(read[0])["makespan"] == 36 and stat.S_ISFIFO(os.stat(pipe).st_mode)


def test_a_pipe_that_nobody_reads_ends_with_a_stop(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    STOP.requested = True
    try:
        with pytest.raises(OSError, match="nobody reads"):
            write_atomically(tmp_path / "pipe", "x")
    finally:
        STOP.clear()


def test_permissions_stay(problem: Path, tmp_path: Path) -> None:
    output = written(tmp_path / "out.json", "old")
    output.chmod(0o640)
    shows(*solving(problem, output))
    assert stat.S_IMODE(output.stat().st_mode) == 0o640


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize(("output", "message"), [
    ("s.html", "s.html: the ending is .html, a schedule is written as .json"),
    ("s", "s: the ending is missing"),
    ("problem.json", "problem.json: is what is read"),
    ("./problem.json", "is what is read"),
    ("link.json", "link.json: is what is read"),
    ("", "the name of an output is empty"),
    ("a\0.json", "cannot be a file's name"),
    ("\ud800.json", "cannot be a file's name"),
    ("none/s.json", "none/s.json: its folder does not exist"),
    ("problem.json/s.json", "Not a directory"),
    ("loop.json", "loop.json: Too many levels of symbolic links"),
    ("n" * 300 + ".json", "File name too long"),
    (".", "is a folder"),
])
def test_an_output_that_cannot_be_is_refused_before_the_search(
        output: str, message: str, problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link.json").symlink_to("problem.json")
    Path("loop.json").symlink_to("loop.json")
    before = problem.read_bytes()
    assert message in refusal(*solving(problem, output))
    assert problem.read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everything")
def test_what_is_read_only_is_refused(problem: Path, tmp_path: Path) -> None:
    output = written(tmp_path / "out.json", "old")
    output.chmod(0o444)
    assert f"{output}: is read-only" in refusal(*solving(problem, output)) and output.read_text() == "old"


@pytest.mark.parametrize("arguments", [
    ["draw", "schedule.json", "-o", "schedule.json"],
    ["draw", "schedule.json", "-o", "x.svg", "-o", "linked.json"],
    ["plan", "schedule.json", "-o", "schedule.json"],
    ["plan", "schedule.json", "-o", "p.csv"],
    ["export", "schedule.json", "-o", "schedule.json", "--format", "tessel"],
    ["export", "schedule.json", "-o", "x.html", "--format", "pytorch"],
    ["export", "schedule.json", "-o", "x.csv", "--format", "tessel"],
    ["place", "problem.json", "-o", "x.svg"],
    ["place", "problem.json", "--stage-graph", "--problem", "problem.json"],
    ["sweep", "problem.json", "-n", "2", "-o", "problem.json"],
    ["latency", "problem.json", "-n", "2", "-o", "problem.json"],
    ["import", "schedule.json", "-o", "schedule.json"],
    ["fit", "schedule.json", "schedule.json", "-o", "schedule.json"],
    ["demo", "-o", "schedule.json"],
    ["demo", "-o", "a\0b"],
    ["demo", "-o", ""],
    ["replay", "schedule.json", "--emulate", "--timeline", "schedule.json"],
])
@pytest.mark.usefixtures("never", "problem")
def test_no_command_overwrites_what_it_reads_or_writes_what_an_ending_does_not_say(
        arguments: list[str], schedule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("linked.json").hardlink_to(schedule)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    refusal(*arguments)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_result_outlives_an_output_that_is_closed(problem: Path, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that is gone (SIGHUP) fails every write to it; the search goes on, and its result is written."""
    class Gone:
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

        def flush(self) -> None:
            pass

        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", Gone())
    output = tmp_path / "out.json"
    assert main(["solve", str(problem), "-n", "8", "--effort", "0.1", "-o", str(output)]) == 0
    assert load_schedule(output).makespan == 36


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a\0b", "\x1b[31mred", "\ufffe", "\ud800", "[/x]", ":smile:", "n" * 100_000])
def test_any_name_can_be_drawn_and_listed(name: str, tmp_path: Path) -> None:
    plain = baseline("1f1b", pipeline(chain(2), memory=2), 4)
    problem = plain.problem
    odd = replace(plain, problem=replace(
        problem, name="unknown", devices=tuple(replace(device, name=device.name) for device in problem.devices)))
    for part, field in ((odd.problem, "name"), (odd.problem.devices[0], "name"), (odd.problem.blocks[0], "name")):
        object.__setattr__(part, field, name)  # whatever a reader lets pass
    for ending in (".svg", ".png", ".html") if name == "\ufffe" else (".svg",):
        draw(odd.with_solver(name=name, placement=name), tmp_path / f"s{ending}", title=name)
        assert 500 < (tmp_path / f"s{ending}").stat().st_size < 2_000_000
    table = Table(title=name, caption=name)
    table.add_column("x")
    table.add_row(name)
    assert len(table_text(table)) < 3000 and name_text(name)[:3] in table_text(table)


@pytest.mark.parametrize("function", ["open", "close"])
def test_a_stop_while_an_output_is_tried_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
                                                        ) -> None:
    real = getattr(os, function)

    def stopped(*args: object) -> object:
        found = real(*args)
        signal.raise_signal(signal.SIGINT)
        return found

    with listening(), monkeypatch.context() as patch:
        patch.setattr(os, function, stopped)
        with pytest.raises(KeyboardInterrupt):
            require_writable(str(tmp_path / "out.json"))
    assert not os.listdir(tmp_path)
