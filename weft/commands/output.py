"""What commands share in running: a search with its progress, results shown and saved, outputs refused early."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from solver.schedule import Schedule
    from weft.comparison import Comparison
    from weft.estimating import Report
    from weft.fitting import Fitted
    from weft.latencies import Serving
    from weft.memory_plans import MemoryPlans
    from weft.tradeoff import Sweep

__all__ = ["require_output", "require_torch", "require_writable", "save", "search", "show"]


def search(function: Callable[..., Any], source: Any, options: argparse.Namespace, **further: Any) -> Any:
    """What ``function`` of :mod:`weft` makes of ``source`` with the options of a search, its progress shown."""
    from weft.progress import ProgressLine

    with ProgressLine(quiet=options.quiet) as progress:
        return function(source, time_limit=options.time_limit, effort=options.effort, seed=options.seed,
                        workers=options.workers, on_progress=progress, **further)


def show(found: Comparison | Sweep | Serving | Fitted | Report | MemoryPlans, as_json: bool, width: int = 140) -> None:
    """A result's table, ``width`` columns wide where it is no terminal that reads it, or its numbers as JSON."""
    if as_json:
        print(json.dumps(found.to_json()))
        return
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else width).print(found.table())


def save(schedule: Schedule, path: str) -> None:
    """Save a result that may have taken hours: if ``path`` fails, somewhere else, and say so."""
    from solver.files import save_schedule

    try:
        save_schedule(schedule, path)
    except OSError as error:
        rescue = Path(tempfile.gettempdir()) / f"weft-{os.getpid()}-{Path(path).name}"
        try:
            save_schedule(schedule, rescue)
        except OSError:
            raise error from None
        raise OSError(error.errno, f"{error.strerror}; the schedule was saved to {rescue} instead", path) from None


def require_output(path: str, what: str, endings: Sequence[str]) -> None:
    """Refuse a file whose ending means nothing for ``what``, or that cannot be written."""
    if Path(path).suffix.lower() not in endings:
        raise ValueError(f"{path}: the ending is {Path(path).suffix or 'missing'}, {what} is written as "
                         f"{', '.join(endings)}")
    require_writable(path)


def require_writable(path: str | None) -> None:
    """Refuse an impossible output before a long search rather than after it."""
    if path is None:
        return
    folder = Path(path).parent
    if Path(path).is_dir():
        raise OSError(21, "is a folder, name a file in it", path)
    if not folder.is_dir():
        raise OSError(2, "its folder does not exist", path)
    if not os.access(folder, os.W_OK):
        raise OSError(13, "its folder cannot be written to", path)


def require_torch(command: str) -> None:
    """Say what is missing before torch is needed somewhere deep."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise ImportError(f"{command} needs PyTorch: install it with  pip install 'weft[torch]'") from None
