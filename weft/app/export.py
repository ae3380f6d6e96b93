"""Export of schedules to other tools' formats and import from them: the format of a file, its writer and its reader."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from weft.app.lib.arguments import Option, Scheduled
from weft.app.lib.arguments import micro_batches as counted
from weft.app.lib.judged import judged
from weft.app.lib.sources import PathLike, Source

if TYPE_CHECKING:
    from weft.runtime.export.torch_import import ScheduleTable
    from weft.solver.schedule import Schedule


#: The formats in which a schedule can be written.
EXPORTS = ("pytorch", "pytorch-comms", "megatron", "torchtitan", "deepspeed", "nnscaler", "tessel", "perfetto")
_ENDINGS = {".csv": "pytorch", ".toml": "torchtitan", ".py": "nnscaler"}
#: The endings that identify a file, each with its formats; a format may have other endings.
_SAID = {".csv": ("pytorch", "pytorch-comms"), ".toml": ("torchtitan",), ".py": ("nnscaler", "deepspeed"),
         ".json": ("tessel", "perfetto"), ".html": (), ".svg": (), ".png": (), ".yaml": (), ".yml": ()}


def format_of(path: PathLike) -> str:
    """The format for the ending of ``path``. Raises ``ValueError`` if there are several, or none."""
    ending = Path(path).suffix.lower()
    if ending not in _ENDINGS:
        known = ", ".join(f"{ending} ({name})" for ending, name in _ENDINGS.items())
        raise ValueError(f"{os.fspath(path)}: the ending does not say which format; name one with --format "
                         f"({', '.join(EXPORTS)}) or end the file's name in {known}")
    return _ENDINGS[ending]


def export_schedule(
    schedule: Scheduled,
    path: Annotated[PathLike, Option("where to", "FILE", flags="-o --output")],
    *,
    format: Annotated[str | None, Option("which format (default: what the ending of FILE says)",
                                         choices=EXPORTS)] = None,
    torch: Annotated[str, Option("the PyTorch version that is to read it, 2.6 or newer", "VERSION")] = "2.13",
) -> list[Path]:
    """Write a schedule for another tool; returns the files written.

    ``format`` is ``pytorch`` (pipelining CSV; the default for ``.csv``), ``pytorch-comms`` (with communication, for
    PyTorch version ``torch``), ``megatron`` (arguments), ``torchtitan`` (``.toml``, and a CSV beside it), ``deepspeed``
    (``.py``: the layers of each stage), ``nnscaler`` (``.py``), ``tessel`` or ``perfetto`` (JSON). Megatron-LM and
    DeepSpeed run their own orders (:func:`run_lines` gives the step time there). Blocks may run micro-batches in any
    order. Raises ``InvalidSchedule``, and ``ValueError`` (``ExportError``) with the reason for a schedule that the
    format cannot express.
    """
    checked = judged(schedule, in_turn=False)
    beside = _written(require_export(path, format), checked, path, torch)
    return [Path(path), *([] if beside is None else [beside])]


def _written(name: str, schedule: Schedule, path: PathLike, torch: str) -> Path | None:
    """Write ``schedule`` in the format ``name``; returns a further file that was written."""
    from weft.runtime.export.perfetto import save_trace
    from weft.runtime.export.tessel import save_tessel
    from weft.runtime.export.tools import TOOLS
    from weft.runtime.export.tools.torchtitan import save_torchtitan
    from weft.runtime.export.torch_csv import save_torch_csv
    from weft.solver.io.writing import write_atomically

    if name == "torchtitan":
        return save_torchtitan(schedule, path, torch=torch)
    if name.startswith("pytorch"):
        save_torch_csv(schedule, path, communication=name == "pytorch-comms", torch=torch)
    elif name in TOOLS and (text := TOOLS[name].text) is not None:
        write_atomically(path, text(TOOLS[name].run(schedule)))
    else:
        (save_tessel if name == "tessel" else save_trace)(schedule, path)
    return None


def run_lines(schedule: Scheduled, path: PathLike, format: str | None) -> list[str]:
    """The step time of ``schedule`` in its target tool, if it differs from the time here; and the parts of its grid
    that the tool lacks."""
    from weft.app.tools.elsewhere import run_line
    from weft.runtime.export.tools import TOOLS

    if (name := require_export(path, format)) not in TOOLS:
        return []
    checked, tool = judged(schedule, in_turn=False), TOOLS[name]
    grid = checked.solver.get("grid") or {}
    lacks = [f"{degree} parallelism" for degree in tool.lacks if grid.get(degree, 1) > 1]
    if grid and grid["zero"] not in tool.zero and grid["data"] * grid["context"] > 1:
        lacks.append(f"ZeRO-{grid['zero']}")
    other = f"{tool.title} has no {' and no '.join(lacks)} beside a pipeline: its step is another one" if lacks else ""
    return [line for line in (run_line(checked, name), other) if line]


def require_export(path: PathLike, format: str | None) -> str:
    """The format for ``path``. Raises ``ValueError`` for an unknown one, and for an ending that contradicts it."""
    name = format_of(path) if format is None else format
    if name not in EXPORTS:
        raise ValueError(f"there is no format {name!r}, there are {', '.join(EXPORTS)}")
    ending = Path(path).suffix.lower()
    if name not in _SAID.get(ending, (name,)):
        fit = [known for known, formats in _SAID.items() if name in formats]
        raise ValueError(f"{os.fspath(path)}: the ending is {ending}, which {name} is not; end the file's name in "
                         f"{fit[0] if fit else '.txt'}")
    return name


def import_schedule(
    path: Annotated[PathLike, Option(
        "a PyTorch pipelining CSV, a Tessel schedule (.json), or a plan: torchtitan's .toml, DeepSpeed's .py, "
        "Megatron-LM's arguments (.txt, .sh)", "FILE")],
    *,
    problem: Annotated[Source | None, Option("a block problem, or for a CSV a model spec or the "
                                             "schedule that it was exported from, to time it on", "SPEC")] = None,
    micro_batches: Annotated[int | None, Option("refuse a file of another number", "N", counted,
                                                "-n --micro-batches")] = None,
) -> Schedule:
    """A schedule of another tool, to be checked, timed and drawn: a PyTorch pipelining ``.csv`` of either flavour, or a
    Tessel ``.json``. Or a plan for the model of the spec ``problem``, in its tool's order: torchtitan's settings
    (``.toml``), DeepSpeed's partition (``.py``), or Megatron-LM's arguments (``.txt``, ``.sh``).

    ``problem``, a block problem, has the times and memory of blocks; without one a forward and each half of a backward
    take one unit. For a CSV it may be a model spec, or the file of the schedule that was exported: a CSV does not state
    the cut of the layers, which that schedule has. :func:`check` reports violations of weft's rules;
    ``schedule.solver["notes"]`` has peculiarities of a CSV's communication. Raises ``FormatError``, with row and cell,
    for a file that no rank could run.
    """
    ending = Path(path).suffix.lower()
    if ending == ".json":
        _refuse_own(path)
        schedule = _from_tessel(path, problem, micro_batches)
    elif ending == ".csv":
        schedule = _from_pytorch(path, problem, micro_batches)
    elif ending in (".toml", ".py", ".txt", ".sh"):
        schedule = _from_tool(path, problem)
    else:
        raise ValueError(f"{os.fspath(path)}: the ending is {ending or 'missing'}, what can be read is .csv (a PyTorch "
                         "pipelining schedule), .json (a Tessel schedule), and plans of tools: .toml (torchtitan), .py "
                         "(DeepSpeed), .txt and .sh (arguments of Megatron-LM)")
    return _with_bounds(_require_count(schedule, micro_batches))


def _refuse_own(path: PathLike) -> None:
    from weft.solver.io.entries import read_json

    value = read_json(path)
    if isinstance(value, dict) and str(value.get("format", "")).startswith("weft."):
        raise ValueError(f"{os.fspath(path)}: is weft's own ({value['format']}), there is nothing to import")


def _from_pytorch(path: PathLike, problem: Source | None, micro_batches: int | None) -> Schedule:
    from weft.app.lib.sources import names_schedule
    from weft.runtime.export.torch_check import check_communication
    from weft.runtime.export.torch_import import read_table, schedule_of_table
    from weft.solver.io.schedule_files import load_schedule

    table = read_table(path)
    notes = check_communication(table)
    if problem is None:
        schedule = schedule_of_table(table)
    else:
        source = load_schedule(problem).problem if names_schedule(problem) else problem
        schedule = _on_best_placement(source, micro_batches or table.micro_batches, table)
        notes = [*schedule.solver.get("notes", ()), *notes]
    return schedule.with_solver(notes=notes) if notes else schedule


def _on_best_placement(source: Source, micro_batches: int, table: ScheduleTable) -> Schedule:
    """The schedule on the placement of the source on which it fits and is fastest, among those that match the file. A
    block problem is one placement; a spec has several, and those of one shape differ in the cut of the layers, which no
    file states: a note says so."""
    from weft.app.lib.case import case_of
    from weft.runtime.export.torch_import import schedule_of_table
    from weft.solver.io.entries import FormatError
    from weft.solver.judge.validate import violations

    case = case_of(source, micro_batches)
    found, refusals = [], []
    other = "for another cut --problem takes the schedule that it was exported from" if case.spaces else ""
    for placement in case.placements:
        try:
            found.append(placement.label(schedule_of_table(table, placement.problem)))
        except FormatError as error:
            refusals.append(error)
    if found:
        best = min(found, key=lambda schedule: (bool(violations(schedule, limit=1)), schedule.makespan))
        cut = " ".join(str(len(layers)) for layers in best.solver.get("layers_of_stage", ()))
        note = f"{table.where} does not state the cut of the layers: timed with {cut} layers a stage; {other}"
        return best.with_solver(notes=[*best.solver.get("notes", ()), note]) if other else best
    if len(refusals) == 1:
        raise refusals[0]
    raise FormatError(f"{table.where}: has {len(table.ranks)} stages in rows "
                      f"{', '.join(str(rank + 1) for rank in table.ranks)}, which is none of the {len(refusals)} "
                      f"placements of {case.name!r} ({'; '.join(placement.title for placement in case.placements)})"
                      + (f"; {other}" if other else ""))


def _from_tessel(path: PathLike, problem: Source | None, micro_batches: int | None) -> Schedule:
    from weft.app.lib.sources import read_source
    from weft.runtime.export.tessel import load_tessel
    from weft.solver.problem import Problem

    source = None if problem is None else read_source(problem)
    if source is not None and not isinstance(source, Problem):
        raise ValueError(f"{os.fspath(path)}: a Tessel schedule goes with a block problem, not with a model spec")
    return load_tessel(path, source)


def _from_tool(path: PathLike, problem: Source | None) -> Schedule:
    from weft.app.lib.case import case_of
    from weft.app.lib.sources import read_source
    from weft.app.tools.given import given_schedule, read_plan
    from weft.models.spec.spec import Spec

    spec = None if problem is None else read_source(problem)
    if not isinstance(spec, Spec):
        raise ValueError(f"{os.fspath(path)}: a plan says which layers stages hold; name the model's spec beside it "
                         "(--problem)")
    plan = read_plan(spec, path)
    return given_schedule(plan, case_of(plan.spec)).with_solver(source=os.fspath(path))


def _require_count(schedule: Schedule, micro_batches: int | None) -> Schedule:
    if micro_batches not in (None, schedule.micro_batches):
        raise ValueError(f"{schedule.solver['source']}: has {schedule.micro_batches} micro-batches, not "
                         f"{micro_batches}")
    return schedule


def _with_bounds(schedule: Schedule) -> Schedule:
    """The schedule with its steady period and a proven lower bound if it obeys every rule: bounds hold only for such
    schedules."""
    from weft.solver.baselines import steady_period
    from weft.solver.bounds import least_time
    from weft.solver.judge.validate import violations
    from weft.solver.ticks import TickProblem

    if violations(schedule):
        return schedule
    bound = least_time(TickProblem.of(schedule.problem), schedule.micro_batches)
    return replace(schedule, makespan_bound=min(bound, schedule.makespan),
                   period=steady_period(schedule.problem, schedule.micro_batches, schedule.operations))
