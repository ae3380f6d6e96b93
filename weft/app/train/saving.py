"""Saving, resuming and stopping in ``weft train``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from torch.optim import Optimizer

from weft.app.train.options import TrainOptions
from weft.runtime.ranks.session import Session

KEPT = 2  # checkpoints kept


class Saveable(Protocol):
    """A training that can be saved (:class:`~weft.app.pipeline.run.pipe.Pipeline`)."""

    @property
    def steps(self) -> int:
        """The number of completed steps."""

    def heed_signals(self) -> None:
        """Start to handle signals."""

    def asked_to_stop(self) -> signal.Signals | None:
        """The signal received."""

    def save(self, folder: str | os.PathLike[str], optimizer: Optimizer | None, *, keep: int | None) -> Path:
        """The checkpoint's folder."""

    def resume(self, folder: str | os.PathLike[str], optimizer: Optimizer | None) -> int:
        """The number of steps of the checkpoint resumed from."""


class Saving:
    """Checkpoints of ``pipe`` and ``optimizer`` in ``folder`` (``None``: there are none): after every ``every``
    batches, after the last, and on a signal; ``tell`` is notified."""

    def __init__(self, pipe: Saveable, optimizer: Optimizer | None, folder: str | os.PathLike[str] | None,
                 every: int | None, tell: Callable[[str], object]) -> None:
        self.pipe, self.optimizer, self.folder, self.every, self.tell = pipe, optimizer, folder, every, tell
        self.saved = 0
        self.signal: signal.Signals | None = None

    @property
    def code(self) -> int:
        """The exit code: 0, or the shell's code for the signal."""
        return 0 if self.signal is None else 128 + self.signal

    def begin(self) -> int:
        """Resume from the newest checkpoint; returns its number of batches."""
        if self.folder is None:
            return 0
        self.pipe.heed_signals()
        self.saved = self.pipe.resume(self.folder, self.optimizer)
        if self.saved:
            self.tell(f"goes on after step {self.saved}, from {self.folder}")
        return self.saved

    def after_step(self) -> bool:
        """Save if due; returns whether to stop."""
        if self.folder is None:
            return False
        self.signal = self.pipe.asked_to_stop()
        if self.signal is None and self.every and self.pipe.steps % self.every == 0:
            self._save(self.folder)
        return self.signal is not None

    def end(self) -> None:
        """Save if there are unsaved steps."""
        if self.folder is not None and self.pipe.steps > self.saved:
            path = self._save(self.folder)
            why = "" if self.signal is None else f"stopped by {self.signal.name} after step {self.saved}: "
            self.tell(f"{why}saved {path}")

    def _save(self, folder: str | os.PathLike[str]) -> Path:
        path = self.pipe.save(folder, self.optimizer, keep=KEPT)
        self.saved = self.pipe.steps
        return path


def hearing(session: Session, options: TrainOptions) -> Callable[[str], object]:
    """The listener for lines: on rank 0 only, and not with JSON output. If standard output is closed and there is a
    folder to save to, training ends as by a signal, with a checkpoint."""
    if session.rank or options.as_json:
        return lambda line: None
    if options.checkpoint is None:
        return options.on_line

    def hear(line: str) -> None:
        try:
            options.on_line(line)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            session.watch.asked = signal.SIGPIPE

    return hear
