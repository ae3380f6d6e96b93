"""Files at the edge of what is allowed go through every command; beyond it they are refused in a sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import chain, pipeline, refusal
from weft.cli.main import main
from weft.runtime.plan.plan import plan_of
from weft.solver import Problem, baseline, save_problem, save_schedule

PLAIN = pipeline(chain(2), memory=2)


def scaled(time: float, amount: float) -> Problem:
    """Durations and amounts so many times as large."""
    return replace(PLAIN, devices=tuple(replace(d, memory=2 * amount) for d in PLAIN.devices), blocks=tuple(
        replace(b, duration=b.duration * time, memory=tuple(m * amount for m in b.memory)) for b in PLAIN.blocks))


def named(text: str) -> Problem:
    """Every name with ``text`` at its end."""
    return replace(
        PLAIN, name=text, time_unit=text[:300], memory_unit=text[:100],
        devices=tuple(replace(d, name=d.name + text) for d in PLAIN.devices),
        blocks=tuple(replace(b, name=b.name + text, after=tuple(replace(a, block=a.block + text) for a in b.after))
                     for b in PLAIN.blocks))


CASES = {"large": scaled(1e59, 1e59), "small": scaled(1e-59, 1e-59), "wide": scaled(1e-59, 1e59),
         "long names": named("x" * 990), "odd names": named("<b>&\"'\\%s{}]]>\u202e\u200d\U0001f9f5")}


def timeline(problem: Problem, end: float) -> dict[str, Any]:
    """A measured run whose blocks all end at ``end``."""
    schedule = baseline("1f1b", problem, 3)
    return {"format": "weft.timeline/1", "plan": plan_of(schedule).digest, "name": problem.name, "seconds_per_unit": 1,
            "operations": [{"block": problem.blocks[o.block].name, "micro_batch": o.micro_batch, "rank": d,
                            "start": i, "end": end}
                           for d, row in enumerate(schedule.device_orders) for i, o in enumerate(row)]}


@pytest.mark.parametrize("problem", CASES.values(), ids=CASES)
def test_every_command_takes_what_readers_let_pass(problem: Problem, tmp_path: Path) -> None:
    save_problem(problem, tmp_path / "p.json")
    save_schedule(baseline("1f1b", problem, 3), tmp_path / "s.json")
    (tmp_path / "t.json").write_text(json.dumps(timeline(problem, 1e100)))
    source, made = str(tmp_path / "p.json"), str(tmp_path / "s.json")
    for command in (["check", made], ["explain", made], ["plan", made, "-o", str(tmp_path / "plan.json")],
                    ["draw", made, "-o", str(tmp_path / "o.svg")], ["draw", made, "-o", str(tmp_path / "o.png")],
                    ["draw", made, "-o", str(tmp_path / "trace.json")],
                    ["draw", made, "--measured", str(tmp_path / "t.json"), "-o", str(tmp_path / "m.svg")],
                    ["solve", source, "-n", "4", "--effort", "0.2", "--quiet", "-o", str(tmp_path / "best.json")],
                    ["check", str(tmp_path / "best.json")]):
        assert main(command) == 0, command


@pytest.mark.parametrize("end", [1e308, 1e101])
def test_a_measured_time_beyond_that_is_refused(end: float, tmp_path: Path) -> None:
    save_schedule(baseline("1f1b", PLAIN, 3), tmp_path / "s.json")
    (tmp_path / "t.json").write_text(json.dumps(timeline(PLAIN, end)))
    said = refusal("draw", tmp_path / "s.json", "--measured", tmp_path / "t.json", "-o", tmp_path / "o.svg")
    assert f"operations[0]: end is {end:g}, it must be a finite number of at most 1e+100" in said
