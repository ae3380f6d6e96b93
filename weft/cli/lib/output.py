"""Running commands: a search with its progress, showing and saving results, early refusal of invalid outputs."""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from weft.cli.lib.command import Call
from weft.solver.control.stopping import STOP, shielded
from weft.solver.io.writing import is_replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.app.calibrate import Calibration
    from weft.app.lib.results import SavedResult, Tabular
    from weft.solver.schedule import Schedule


#: The endings of files in weft's own formats.
JSON = (".json",)

_Progress = TypeVar("_Progress")


def search(call: Call, quiet: bool, function: Callable[..., Any] | None = None, every: float | None = None) -> Any:
    """The result of a function of ``call``, with its progress shown at least ``every`` this many seconds (default: see
    :class:`~weft.cli.lib.progress.ProgressLine`)."""
    from weft.cli.lib.progress import ProgressLine

    with ProgressLine(quiet=quiet, every=every) as progress:
        return call(function, on_progress=told(progress))


def told(listener: Callable[[_Progress], object],
         answers: Callable[[_Progress], bool] = lambda _: True) -> Callable[[_Progress], None]:
    """``listener`` for the progress of a search: once one of them ``answers``, a stop keeps the best so far; and if
    output is no longer possible (a closed terminal), the search continues silently."""
    silent = False

    def tell(progress: _Progress) -> None:
        nonlocal silent
        if answers(progress):
            STOP.hold()
        try:
            if not silent:
                listener(progress)
        except OSError:
            silent = True

    return tell


def show(found: Tabular, as_json: bool) -> None:
    """A result's table, or its numbers as JSON."""
    if as_json:
        print(json.dumps(found.to_json()))
        return
    from weft.text.tables import console

    console(width=None if sys.stdout.isatty() else found.WIDTH).print(found.table())


def keep_and_show(found: SavedResult | Calibration, what: str, outputs: Sequence[str] | None, as_json: bool) -> None:
    """Write a result, called ``what`` in messages, to each of ``outputs``; then show it, and print the locations."""
    for output in outputs or ():
        kept(found.save, output, what)
    show(found, as_json)
    written(*(outputs or ()), silent=as_json)


def written(*paths: str | None, silent: bool = False) -> None:
    """Print the written file, unless ``silent``."""
    for path in paths:
        if path and not silent:
            print(f"written to {path}")


def save(schedule: Schedule, path: str) -> None:
    """Save a schedule by :func:`kept`."""
    from weft.solver.io.schedule_files import save_schedule

    kept(lambda name: save_schedule(schedule, name), path, "the schedule")


def kept(write: Callable[[str], object], path: str, what: str) -> None:
    """``write`` a result that may have taken hours to ``path``; if that fails, write it elsewhere with a notice."""
    try:
        write(path)
    except OSError as error:
        rescue = str(Path(tempfile.gettempdir()) / f"weft-{os.getpid()}-{Path(path).name}")
        try:
            write(rescue)
        except (OSError, ValueError):
            raise error from None
        raise OSError(error.errno, f"{error.strerror}; {what} was saved to {rescue} instead", path) from None


def require_output(paths: str | Sequence[str] | None, what: str, endings: Sequence[str],
                   inputs: Sequence[str | None] = ()) -> None:
    """Refuse, before a long search rather than after it, a file that has an invalid ending for ``what``, is one of the
    ``inputs`` or cannot be written. Devices and pipes may have any name."""
    for path in [paths] if isinstance(paths, str) else paths or ():
        require_writable(path)
        if not is_replaced(path):
            continue
        if Path(path).suffix.lower() not in endings:
            raise ValueError(f"{path}: the ending is {Path(path).suffix or 'missing'}, {what} is written as "
                             f"{', '.join(endings)}")
        for read in inputs:
            if read is not None and _same(read, path):
                raise ValueError(f"{path}: is what is read, it would be overwritten; name another file")


def require_writable(path: str) -> None:
    """Refuse an impossible output before a long search rather than after it."""
    _require_name(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise OSError(21, "is a folder, name a file in it", path)
    if mode is not None and not os.access(path, os.W_OK):
        raise OSError(13, "is read-only", path)
    if not is_replaced(path):
        return
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise OSError(2, "its folder does not exist", path)
    try:
        with shielded():  # a stop leaves no file behind
            handle, probe = tempfile.mkstemp(dir=folder, prefix=".weft-", suffix=".part")
            os.close(handle)
            os.unlink(probe)
    except OSError as error:
        raise OSError(error.errno, f"its folder cannot be written to ({error.strerror})", path) from None
    if STOP.may_break and STOP.hear():
        raise KeyboardInterrupt


def require_folder(path: str) -> None:
    """Make the folder ``path``, unless it exists, and refuse one that is not writable."""
    _require_name(path)
    if Path(path).exists() and not Path(path).is_dir():
        raise OSError(20, "is a file, name a folder", path)
    Path(path).mkdir(parents=True, exist_ok=True)
    require_writable(str(Path(path) / "schedule.json"))


def _require_name(path: str) -> None:
    if not path:
        raise ValueError("the name of an output is empty; name a file")
    try:
        if b"\0" in os.fsencode(path):
            raise ValueError(f"{path!r} cannot be a file's name")
    except UnicodeEncodeError:
        raise ValueError(f"{path!r} cannot be a file's name") from None


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def require_torch(command: str) -> None:
    """Report a missing torch before it is needed deep in the code."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise ImportError(f"{command} needs PyTorch: install it with  pip install 'weft[torch]'") from None


def summary(schedule: Schedule) -> str:
    """A schedule in a few lines: makespan and period with their bounds, bubble, memory, notes."""
    from weft.app.lib.verdicts import choice_lines, covered_lines, grid_lines, overlap_lines
    from weft.app.tools.elsewhere import tool_lines
    from weft.text.counts import choices_text, devices_text, micro_batches_text, unit_text
    from weft.text.units import each_text, memory_text, name_text, shown_time

    shown = partial(shown_time, unit=schedule.problem.time_unit)
    bubble = schedule.bubble
    lines = [
        f"{name_text(schedule.problem.name)}: {micro_batches_text(schedule)} on {devices_text(schedule.problem)}"
        + (f", {schedule.solver['placement']}" if schedule.solver.get("placement") and not schedule.choices else ""),
        f"makespan  {shown(schedule.makespan)}, lower bound {shown(schedule.makespan_bound)}: "
        + ("proven optimal" if schedule.gap == 0 else "no bound" if schedule.gap == float("inf")
           else f"gap at most {schedule.gap:.2%}")
        + (" for this placement" if schedule.solver.get("covered") and schedule.objective == "makespan" else ""),
        *([f"choices   {choices_text(schedule)}"] if schedule.choices else []),
        *grid_lines(schedule),
        *_objective_line(schedule, shown),
        *covered_lines(schedule),
        *overlap_lines(schedule),
    ]
    period = schedule.period or schedule.solver.get("repetend_period")
    if period is not None and (schedule.rounds is None or schedule.rounds.run.rounds > 1):
        bound = schedule.period_bound if schedule.period is not None else schedule.solver["repetend_period_bound"]
        proof = "" if bound is None else (f", proven the shortest that advances one {unit_text(schedule)} a period"
                                          if period <= bound * (1 + 1e-6) else f", lower bound {shown(bound)}")
        which = "period    " if schedule.period is not None else "repetend  "
        where = "" if schedule.period is not None else "; not in this schedule"
        lines.append(f"{which}{shown(period)} per {unit_text(schedule)}{proof}{where}")
    lines.append("bubble    " + ", ".join([*([] if bubble.steady is None else [f"steady {bubble.steady:.1%}"]),
                                          f"step {bubble.step:.1%}", f"span {bubble.span:.1%}"]))
    own = [(device.name, peak) for device, peak in zip(
        schedule.problem.devices, schedule.peak_with_static, strict=True) if device.lane_of is None]
    lines.append("memory    " + each_text([amount for _, amount in own], schedule.problem.memory_unit,
                                          [name for name, _ in own]) + _reserved(schedule))
    if "gradients_freed" in schedule.solver:
        freed, (_, memory) = schedule.solver["gradients_freed"], memory_text(1, schedule.problem.memory_unit)
        lines.append("AdamA     keeps no whole gradients; with Adam they would take "
                     f"{each_text(freed, schedule.problem.memory_unit)} {memory} more")
    lines += tool_lines(schedule)
    lines += choice_lines(schedule)
    if schedule.solver.get("stopped"):
        lines.append("stopped   a part of the search failed, this is the best without it: "
                     f"{schedule.solver['stopped']}")
    if schedule.solver.get("interrupted"):
        lines.append("note      interrupted: the best so far, the search was not finished")
    notes = schedule.solver.get("notes")
    lines += [f"note      {note}" for note in notes] if isinstance(notes, list) else []
    return "\n".join(lines)


def _reserved(schedule: Schedule) -> str:
    """The planned part of the GPUs' memory, and the reserve; nothing if unknown."""
    from weft.text.units import each_text, memory_text

    reserve, most = schedule.solver.get("reserve"), schedule.solver.get("gpu_memory")
    limits = sorted({own for own in most if own is not None}) if isinstance(most, list) else []
    if not reserve or not limits:
        return ""
    unit = schedule.problem.memory_unit
    has, (amount, name) = each_text([own + reserve for own in limits], unit), memory_text(reserve, unit)
    return f"; of {has} {name} each, {amount} {name} is kept free (cluster.reserve)"


def _objective_line(schedule: Schedule, shown: Callable[[float], str]) -> list[str]:
    """The objective, if it is not the makespan."""
    from weft.text.counts import unit_text

    if schedule.objective == "makespan":
        return []
    meaning = {"span": "the next step can begin so much later",
               "rate": f"per {unit_text(schedule)} of any steady state",
               "latency": "of one micro-batch at this floor"}[schedule.objective]
    gap = schedule.value_gap
    proof = "proven optimal" if gap == 0 else "no bound" if gap == float("inf") else f"gap at most {gap:.2%}"
    return [f"{schedule.objective:10}{shown(schedule.value)}, lower bound {shown(schedule.value_bound)}: {proof}; "
            f"{meaning}"]
