"""Inputs that nobody foresaw, drawn at random: for every command its own good files, damaged, and odd flags.

Every input is drawn from its number alone, so what fails can be drawn again: ``WEFT_FUZZ_FIRST=NUMBER WEFT_FUZZ=1``.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.models.graph.test_formats import PIPER, PROFILED
from tests.support.builders import TINY_SPEC, chain, pipeline, together_spec
from tests.support.commands import ran
from tests.support.damage import damaged
from tests.support.exported_models import saved_model
from tests.support.paths import ROOT
from tests.support.tessel_shapes import shape
from tests.support.wide_problems import keep_or_recompute
from tests.weft.app.test_fit import run_of
from weft.runtime.plan.plan import plan_of, save_plan
from weft.runtime.plan.timeline import save_timeline
from weft.solver import Schedule, baseline, save_schedule, time_orders
from weft.solver.baselines.rivals.greedy import orders
from weft.solver.io.problem_files import problem_to_json, save_problem
from weft.solver.problem.rounds import Rounds, Run

#: Texts that an argument is replaced with. None that is accepted as a limit lets a command run on.
_ARGUMENTS = ("", "0", "-1", "nan", "inf", "1e308", "-inf", "abc", "1" * 5000, "0x10", "1e-320", "1,2,x", ",", "=", ":",
              "\ud800", "a\0b", "..", "/", "/dev/null", "/nowhere/at/all", "[/x]", "%s", "{}", "é" * 300, "1_0", "٣")

#: Values that are good in themselves, but not with everything else; none makes a command run for long.
_GOOD: dict[str, tuple[str, ...]] = {
    "-n": ("1", "2", "7", "1,3"), "--seed": ("1",), "--memory": ("1x", "0.1x", "2GiB", "1,2"), "--chunks": ("1", "2"),
    "--micro-batch-size": ("1", "2,3"), "--recompute": ("on", "both"), "--shapes": ("v", "chain,loop", "tensor,m"),
    "--throughput": ("1/s", "0.001/step", "1e9/s"), "--period": ("1", "1e-9", "80ms"), "--points": ("1", "3"),
    "--shape": ("chain", "v", "loop"), "--in-flight": ("1", "99"), "--baseline": ("schedule.json", "plan.json"),
    "--measured": ("timeline.json", "schedule.json"), "--title": ("", "a\0b", "\ud800", "t" * 100_000),
    "--devices": ("gpu=1", "accelerator=3:1", "cpu=0,accelerator=1", "x=2"), "--slack": ("0.5", "1e9"),
    "--problem": ("out.json", "problem.json", "tiny.yaml", "x.html"), "--format": ("tessel", "megatron", "pytorch"),
    "-o": ("out.svg", "out.json", "out.csv", "schedule.json", "problem.json", "tiny.yaml", "/dev/full", "no/x.json"),
    "--torch": ("2.6", "2.15"), "--stages": ("os:system", "json:loads", "tests.support.builders:chain", "x.py:f"),
    "--rank-alone": ("all", "0", "9"), "--transport": ("gloo", "emulated:1,1", "shared", "symmetric"),
    "--device": ("cpu", "cuda"),
    "--replicas": ("1", "2"), "--checkpoint": (".", "/dev/null"), "--backward": ("split",),
    "--overlap": ("auto", "none"), "--processes": ("one", "job"), "--job": ("a", "no"), "--turns": (".", "no/such"),
    "--stop-folder": (".", "no/such"),
    "--optimizer-copies": ("0", "2147483647"), "--time-scale": ("0.1",), "--timeline": ("out.json", "plan.json"),
}


@dataclass(frozen=True)
class _Command:
    """How a command is called on good files (names of :func:`good_files`), and ``limits`` that keep it short."""

    calls: tuple[tuple[str, ...], ...]
    limits: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


_SEARCH = ("--effort", "0.01", "--time-limit", "2")
_SEARCH_FLAGS = ("--effort", "--time-limit", "--seed", "--workers", "--quiet", "--json", "-o")

#: Every command. An odd value may stand behind each of the flags, and behind the good one.
COMMANDS: dict[str, _Command] = {
    "completion": _Command((("bash",),), (), ("--help",)),
    "solve": _Command((("problem.json", "-n", "3"), ("tiny.yaml",), ("gpt.yaml", "-n", "2"),
                       ("gpt.yaml", "-n", "2", "--overlap", "auto"), ("choices.json", "-n", "2"),
                       ("jobs.json", "-n", "one=2,two=1")), _SEARCH,
                      ("-n", "--overlap", *_SEARCH_FLAGS)),
    "compare": _Command((("problem.json", "-n", "3"), ("tiny.yaml",)), _SEARCH, ("-n", *_SEARCH_FLAGS[:-1])),
    "sweep": _Command((("problem.json", "-n", "2,3"), ("tiny.yaml", "--memory", "1x")),
                      (*_SEARCH, "--no-cache", "--workers", "1"),
                      ("-n", "--memory", "--micro-batch-size", "--recompute", "--shapes", "--chunks", "--no-refine",
                       *_SEARCH_FLAGS)),
    "family": _Command((("phases.yaml",), ("tiny.yaml",)), (*_SEARCH, "--no-cache", "--workers", "1"),
                       _SEARCH_FLAGS),
    "latency": _Command((("problem.json", "-n", "3"), ("tiny.yaml", "--throughput", "9/s"),
                         ("problem.json", "--period", "20")), (*_SEARCH, "--points", "2"),
                        ("-n", "--throughput", "--period", "--points", *_SEARCH_FLAGS)),
    "estimate": _Command((("tiny.yaml",), ("gpt.yaml",)), (), ("--shape", "--json")),
    "check": _Command((("schedule.json",), ("solved.json",), ("rounds.json",)), (), ("--json",)),
    "explain": _Command((("schedule.json",), ("solved.json", "--what-if"), ("problem.json", "-n", "2"), ("tiny.yaml",),
                         ("rounds.json",)),
                        _SEARCH, ("-n", "--what-if", "--in-flight", *_SEARCH_FLAGS[:-1])),
    "draw": _Command((("schedule.json", "-o", "out.svg"), ("solved.json", "-o", "out.html", "--history"),
                      ("schedule.json", "--measured", "timeline.json", "-o", "out.json"),
                      ("rounds.json", "-o", "out.svg"),
                      ("schedule.json", "-o", "out.svg", "--baseline", "solved.json", "--critical")), (),
                     ("-o", "--baseline", "--measured", "--critical", "--history", "--title")),
    "place": _Command((("graph.json",), ("piper.json",), ("tiny.yaml",), ("operators.json", "--devices", "v100=2"),
                       ("graph.json", "--stage-graph", "--problem", "out.json")), _SEARCH,
                      ("--devices", "--recompute", "--latency", "--stage-graph", "--slack", "--replicate", "--problem",
                       "--operators", "--memory", *_SEARCH_FLAGS)),
    "plan": _Command((("schedule.json",), ("solved.json", "-o", "out.json"), ("rounds.json", "-o", "out.json")), (),
                     ("-o", "--stages")),
    "export": _Command((("schedule.json", "-o", "out.csv"), ("solved.json", "-o", "out.toml"),
                        ("schedule.json", "-o", "out.json", "--format", "tessel")), (), ("-o", "--format", "--torch")),
    "import": _Command((("order.csv", "-o", "out.json"), ("tessel.json", "--problem", "problem.json", "-o", "out.json"),
                        ("order.csv", "--problem", "tiny.yaml", "-o", "out.json")), (), ("-n", "--problem", "-o")),
    "replay": _Command((("plan.json", "--emulate"), ("plan.json", "--rank-alone", "0", "--stages", "no.such:thing")),
                      (), ("--stages", "--timeout", "--rank-alone", "--device", "--json", "--timeline", "--time-scale",
                        "--paced", "--transport", "--reserve", "--checkpoint", "--checkpoint-every", "--resume",
                        "--replicas", "--processes", "--job", "--turns", "--stretched", "--stop-folder")),
    "fit": _Command((("plan.json", "timeline.json", "-o", "out.json"), ("schedule.json", "timeline.json")), (),
                    ("-o", "--json")),
    "capture": _Command((("model.pt2", "-o", "out.json"), ("model.pt2", "--layers")), (), ("-o", "--layers", "--json")),
    "profile": _Command((("model.pt2", "-o", "out.json"), ("--stages", "no.such:thing", "--problem", "out.json")),
                        ("--repeats", "1", "--device", "cpu"),
                        ("--stages", "-o", "--repeats", "--device", "--ranks", "--problem", "--backward", "--memory",
                         "--optimizer-copies")),
    # It never comes to measuring, which takes its time: one of the two is always wrong.
    "calibrate": _Command((("--ranks", "-1", "--device", "x"),), (), ("--ranks", "--device", "-o")),
    "demo": _Command((("-o", "schedule.json"), ("-o", "/dev/null"), ("-o", "/nowhere/at/all/\0")), _SEARCH,
                     _SEARCH_FLAGS[:-1]),
    # It never comes to starting ranks: one of the two is always wrong.
    "transports": _Command((("--gpus", "-1", "--sizes", "x"),), (), ("--gpus", "--sizes")),
    "schema": _Command(((),), (), ("--json",)),
    "share": _Command((("problem.json", "problem.json"), ("problem.json", "jobs.json")), _SEARCH,
                      ("--ratio", "--max-slowdown", "--rounds", "--parallel", *_SEARCH_FLAGS)),
    "train": _Command((("no.such:setup",), ("nofile.py:setup", "--steps", "1")), (),
                      ("--gpus", "--steps", "--micro-batches", "--schedule", "--memory", "--spec", "--time-limit",
                       "--timeout", "--draw", "--checkpoint", "--every")),
}


@dataclass(frozen=True)
class Input:
    """Arguments, with the names of files in a folder, and what these files hold where it is no good file's content.
    ``None``: there is no such file; a text that begins with ``/``: a link to there; ``...``: a folder."""

    arguments: tuple[str, ...]
    files: dict[str, bytes | str | None]


def good_files(folder: Path) -> None:
    """Small good files of every kind."""
    problem = shape("chain", 2, 2)
    save_problem(problem, folder / "problem.json")
    (folder / "tiny.yaml").write_text(TINY_SPEC)
    (folder / "gpt.yaml").write_text(together_spec("chain, v"))
    phases = "phases: {steps: 20, micro_batches: [[0, 2], [10, 3]]}\n"
    (folder / "phases.yaml").write_text(together_spec("chain") + phases)
    planned = pipeline(chain(2), memory=2)
    schedule = baseline("1f1b", planned, 4)
    save_schedule(schedule, folder / "schedule.json")
    save_plan(plan_of(schedule), folder / "plan.json")
    save_timeline(run_of(schedule, planned), folder / "timeline.json")
    (folder / "choices.json").write_text(json.dumps(problem_to_json(keep_or_recompute(2, classes=False))))
    (folder / "jobs.json").write_text((ROOT / "experiments" / "problems" / "two-jobs.json").read_text())
    save_schedule(_in_rounds(), folder / "rounds.json")
    (folder / "graph.json").write_text(json.dumps(PROFILED))
    (folder / "piper.json").write_text(json.dumps(PIPER))
    ran("solve", folder / "tiny.yaml", "-o", folder / "solved.json", "--effort", "0.05")
    ran("export", folder / "schedule.json", "-o", folder / "order.csv")
    ran("solve", folder / "problem.json", "-n", 3, "-o", folder / "t.json", "--effort", "0.05")
    ran("export", folder / "t.json", "-o", folder / "tessel.json", "--format", "tessel")
    ran("capture", saved_model("attention", folder), "-o", folder / "operators.json")


def _in_rounds() -> Schedule:
    """Of micro-batches of two classes."""
    wide = keep_or_recompute(2, classes=True, choices=False, tight=False)
    rounds = Rounds(wide, Run.of(wide, ["short", "long"] * 2))
    made = time_orders(rounds.problem, 2, orders(rounds.problem, 2))
    return Schedule(rounds.problem, 2, made, 0.0, solver={"name": "weft"}, choices={"how": "kept"}, rounds=rounds)


def draw_input(number: int, folder: Path) -> Input:
    """Input ``number`` on the good files in ``folder``; commands take turns."""
    draw = random.Random(number)
    name = list(COMMANDS)[number % len(COMMANDS)]
    command = COMMANDS[name]
    arguments = [*draw.choice(command.calls), *command.limits]
    read = [word for word in arguments if word in os.listdir(folder)]
    files: dict[str, bytes | str | None] = {}
    damage = draw.choice(["file", "file", "file", "flags", "both"]) if read else "flags"
    if damage != "flags":
        victim = draw.choice(read)
        files[victim] = damaged(draw, folder, victim)
    if damage != "file":
        for _ in range(draw.randint(1, 3)):
            flag = draw.choice(command.flags)
            arguments += [flag] if draw.random() < 0.2 else [flag, draw.choice(_GOOD.get(flag, _ARGUMENTS) if
                                                                               draw.random() < 0.5 else _ARGUMENTS)]
    return Input((name, *arguments), files)


def run_input(found: Input, good: Path) -> str | None:
    """What is wrong, if anything is, where ``found`` is run in a new folder with the good files and its own."""
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name), os.getcwd()
        for path in good.iterdir():
            if path.name not in found.files:
                os.link(path, folder / path.name)
        for victim, content in found.files.items():
            _place(folder / victim, content)
        os.chdir(folder)
        try:
            status, out, err = ran(*found.arguments)
        finally:
            os.chdir(before)
    wrong = status not in (0, 1, 2, 130) or "Traceback" in out + err
    return f"{found.arguments}: status {status}: {(out + err)[-600:]}" if wrong else None


def _place(path: Path, content: bytes | str | None) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "...":
        path.mkdir()
    elif content == "pipe":
        os.mkfifo(path)
    elif content is not None:
        path.symlink_to(content)
