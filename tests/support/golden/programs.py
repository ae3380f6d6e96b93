"""Golden runs of what schedules become: published schedules, instruction lists of ranks, files for other tools."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import weft
from tests.support.builders import both_ways, chain, in_chunks, loop, pipeline, published, v
from tests.support.golden.said import Run, digest, starts
from tests.support.lane_problems import laned_schedule
from tests.support.wide_problems import schedule_of_jobs
from weft.app.export import EXPORTS
from weft.runtime.export.forms import ExportError
from weft.runtime.plan.plan import plan_of, plan_to_json
from weft.solver import Block, BlockKind, Dependency, Device, Problem, Schedule, baseline

#: Uneven times, so that little is equal by chance.
_TIMES: Mapping[str, Any] = {"forward": 2, "lag": 0.5}
_PROBLEMS: Mapping[str, Callable[[], Problem]] = {
    "chain": partial(pipeline, chain(4), backward=3, **_TIMES),
    "split chain": partial(pipeline, chain(4), split=(2, 1), **_TIMES),
    "V": partial(pipeline, v(4), split=(2, 1), **_TIMES),
    "loop": partial(pipeline, loop(4), backward=3, **_TIMES),
    "both ways": partial(both_ways, 4, backward=3, **_TIMES),
    "sequences in chunks": partial(in_chunks, chain(4), 2, backward=3, **_TIMES)}


def _with_collectives() -> Problem:
    """A stage on two GPUs, a stage on one, and a sum that all of them do together."""
    return Problem("together", (Device("0"), Device("1"), Device("2")), (
        Block("both", BlockKind.OTHER, (0, 1), 2), Block("gather", BlockKind.COLLECTIVE, (0, 1), 1,
                                                         after=(Dependency("both"),)),
        Block("next", BlockKind.OTHER, (2,), 3, after=(Dependency("gather", 0.5),)),
        Block("sum", BlockKind.COLLECTIVE, (0, 1, 2), 1, after=(Dependency("next"),)),
        Block("again", BlockKind.OTHER, (1,), 1, after=(Dependency("next", distance=1),))))


def _with_layers() -> Schedule:
    layers = ["embedding", *(f"layer{i}" for i in range(6)), "head"]
    return baseline("1f1b", pipeline(chain(2), backward=2), 4).with_solver(layers_of_stage=[layers[:4], layers[4:]])


_SCHEDULES: Mapping[str, Callable[[], Schedule]] = {
    "1f1b": lambda: baseline("1f1b", _PROBLEMS["chain"](), 6),
    "1f1b of layers": _with_layers,
    "gpipe of inference": lambda: baseline("gpipe", pipeline(chain(4), backward=None), 4),
    "zb-h1": lambda: baseline("zb-h1", _PROBLEMS["split chain"](), 6),
    "zb-v": lambda: baseline("zb-v", _PROBLEMS["V"](), 8),
    "interleaved": lambda: baseline("interleaved", _PROBLEMS["loop"](), 8),
    "chimera": lambda: baseline("chimera", _PROBLEMS["both ways"](), 4),
    "jobs": schedule_of_jobs,
    "lanes": laned_schedule,
    "lanes with copies": partial(laned_schedule, 3, 4, copy=4),
    "collectives": lambda: baseline("greedy", _with_collectives(), 3)}


def runs() -> Iterator[tuple[str, Run]]:
    """By name."""
    for name in _PROBLEMS:
        yield f"published schedules on {name}", partial(_published, name)
    for name in _SCHEDULES:
        yield f"program of {name}", partial(_program, name)
    for name in ("1f1b", "1f1b of layers", "gpipe of inference", "zb-v", "interleaved", "chimera", "jobs"):
        yield f"exports of {name}", partial(_exports, name)
    for name in ("1f1b", "zb-v", "lanes"):
        yield f"explanation of {name}", partial(_explained, name)


def _published(name: str) -> dict[str, Any]:
    return {entry: [schedule.makespan, max(schedule.peak_memory), starts(schedule)]
            for entry, schedule in published(_PROBLEMS[name](), 8).items()}


def _program(name: str) -> dict[str, Any]:
    plan = plan_of(_SCHEDULES[name]())
    return {"makespan": plan.makespan, "stages": plan_to_json(plan)["stages"],
            "instructions": [len(own) for own in plan.program.ranks],
            "text": [digest("\n".join(own)) for own in plan.program.to_text()], "first": plan.program.to_text()[0][:8]}


def _exports(name: str) -> dict[str, Any]:
    schedule = _SCHEDULES[name]()
    found: dict[str, Any] = {}
    for tool in EXPORTS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                files = weft.export_schedule(schedule, Path(folder) / f"out.{tool}", format=tool)
            except ExportError:
                found[tool] = "refused"
            else:
                found[tool] = [digest(file.read_text().replace(folder, "")) for file in files]  # one names the other
    return found


def _explained(name: str) -> dict[str, Any]:
    found = weft.explain(_SCHEDULES[name]()).to_json()
    return {key: digest(json.dumps(entry)) for key, entry in found.items() if key != "text"}
