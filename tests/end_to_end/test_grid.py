"""Every command on every kind of input: it runs, or refuses in one sentence; never a traceback, never a fault of weft.

What is expected of each cell is in :mod:`tests.support.grid`.
"""

from __future__ import annotations

import pickle
import shlex
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.support import ran, slow
from tests.support.grid import QUICK, ROWS, Row
from tests.support.kinds_of_input import KINDS, MICRO_BATCHES, PHASES, write_inputs
from weft.app.lib.sources import read_source
from weft.cli.lib.command import BAD, GOOD, NO

#: Kinds of model specs that have much in common with others, and take longest.
OTHERS = ("config", "lengths", "decide", "network")


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every kind of input; :func:`names` adds ``KIND.schedule.json`` and ``KIND.plan.json``."""
    folder = tmp_path_factory.mktemp("kinds")
    write_inputs(folder)
    return folder


@pytest.fixture(params=[slow(kind) if kind in OTHERS else kind for kind in KINDS])
def names(request: pytest.FixtureRequest, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, str]]:
    """What stands for a row's placeholders, of one kind of input; the schedule is made when the first row asks."""
    monkeypatch.chdir(inputs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(inputs))
    kind = request.param
    found = {"kind": kind, "src": KINDS[kind], "n": f"-n {MICRO_BATCHES[kind]}" if kind in MICRO_BATCHES else "",
             "schedule": f"{kind}.schedule.json", "plan": f"{kind}.plan.json"}
    if not Path(found["schedule"]).exists():
        assert ran(*f"solve {found['src']} {found['n']} {QUICK} -o {found['schedule']}".split()).status == GOOD
        ran("plan", found["schedule"], "-o", found["plan"])
    yield found


def _rows() -> list[Any]:
    return [pytest.param(row, id=row.command.replace("{", "").replace("}", ""),
                         marks=[pytest.mark.slow] if row.slow else []) for row in ROWS]


@pytest.mark.parametrize("row", _rows())
def test_a_command_runs_or_refuses_in_a_sentence(row: Row, names: Mapping[str, str]) -> None:
    status, _, said = ran(*shlex.split(row.command.format(**names)))
    words = row.refused.get(names["kind"])
    if words is None:
        assert status == GOOD, said
    else:
        sentence = said.splitlines()[-1]  # before it may be what a slow machine is at
        assert status in (NO, BAD) and words in sentence and sentence.startswith("weft")
        assert "Traceback" not in said


#: Command lines that read a spec.
SPEC_ROWS = [row.command for row in ROWS if "{src}" in row.command and "layers" not in row.refused]


@pytest.mark.parametrize("command", [command for command in SPEC_ROWS if "--workers 2" not in command])
def test_a_spec_with_phases_is_for_the_family_alone(command: str, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    spec = tmp_path / "family.yaml"
    spec.write_text(spec.read_text() + PHASES)
    status, _, said = ran(*shlex.split(command.format(src=spec.name, n="")))
    assert status == BAD and "phases make it a family of plans" in said, said


def test_the_family_command_takes_a_spec_with_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_inputs(tmp_path)
    spec = tmp_path / "family.yaml"
    spec.write_text(spec.read_text() + PHASES)
    assert ran("family", spec.name, *QUICK.split(), "--workers", 1).status == GOOD


class Elsewhere(Executor):
    """What another process would do, in this one: everything is pickled on the way there and back."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        call, given, named = pickle.loads(pickle.dumps((function, args, kwargs)))
        future: Future[Any] = Future()
        future.set_result(pickle.loads(pickle.dumps(call(*given, **named))))
        return future


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=[pytest.mark.slow] if kind in ("layers", "config", "lengths", "graph", "network") else [])
    for kind in KINDS if kind not in ("jobs", "classes", "choices", "grid")])
def test_points_of_a_sweep_can_go_to_other_processes(kind: str, inputs: Path) -> None:
    counts = {"micro_batches": [int(MICRO_BATCHES[kind])]} if kind in MICRO_BATCHES else {}
    source = read_source(inputs / KINDS[kind])
    options: Any = {"memory": ["1x", "1.5x"], "cache": None, "refine": False, "effort": 0.02, "time_limit": 3000,
                    **counts}
    found = weft.sweep(source, executor=Elsewhere(), **options)
    here = weft.sweep(source, workers=1, **options)
    assert [row.makespan for row in found.rows] == [row.makespan for row in here.rows] and len(found.rows) == 2
