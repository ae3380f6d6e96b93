"""When ``weft train`` saves, and how it goes on and stops."""

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

KEPT = 2  # checkpoints that stay


class Saveable(Protocol):
    """What is trained and saved (:class:`~weft.app.pipeline.run.pipe.Pipeline`)."""

    @property
    def steps(self) -> int:
        """How many are behind it."""

    def heed_signals(self) -> None:
        """From now on signals are asked for."""

    def asked_to_stop(self) -> signal.Signals | None:
        """The signal that came."""

    def save(self, folder: str | os.PathLike[str], optimizer: Optimizer | None, *, keep: int | None) -> Path:
        """The checkpoint's folder."""

    def resume(self, folder: str | os.PathLike[str], optimizer: Optimizer | None) -> int:
        """The steps behind the checkpoint from which it goes on."""


class Saving:
    """Checkpoints of ``pipe`` and ``optimizer`` in ``folder`` (``None``: there are none): after every ``every``
    batches, after the last, and when a signal has come; ``tell`` hears of it."""

    def __init__(self, pipe: Saveable, optimizer: Optimizer | None, folder: str | os.PathLike[str] | None,
                 every: int | None, tell: Callable[[str], object]) -> None:
        self.pipe, self.optimizer, self.folder, self.every, self.tell = pipe, optimizer, folder, every, tell
        self.saved = 0
        self.signal: signal.Signals | None = None

    @property
    def code(self) -> int:
        """The exit code: 0, or the one by which shells know the signal."""
        return 0 if self.signal is None else 128 + self.signal

    def begin(self) -> int:
        """Go on from the newest checkpoint; how many batches are behind it."""
        if self.folder is None:
            return 0
        self.pipe.heed_signals()
        self.saved = self.pipe.resume(self.folder, self.optimizer)
        if self.saved:
            self.tell(f"goes on after step {self.saved}, from {self.folder}")
        return self.saved

    def after_step(self) -> bool:
        """Save if it is time; whether to stop."""
        if self.folder is None:
            return False
        self.signal = self.pipe.asked_to_stop()
        if self.signal is None and self.every and self.pipe.steps % self.every == 0:
            self._save(self.folder)
        return self.signal is not None

    def end(self) -> None:
        """Save what has not been."""
        if self.folder is not None and self.pipe.steps > self.saved:
            path = self._save(self.folder)
            why = "" if self.signal is None else f"stopped by {self.signal.name} after step {self.saved}: "
            self.tell(f"{why}saved {path}")

    def _save(self, folder: str | os.PathLike[str]) -> Path:
        path = self.pipe.save(folder, self.optimizer, keep=KEPT)
        self.saved = self.pipe.steps
        return path


def hearing(session: Session, options: TrainOptions) -> Callable[[str], object]:
    """What hears lines: on rank 0 alone, and not where all is printed as JSON. Where nobody reads standard output any
    more and there is somewhere to save to, training ends as by a signal, with a checkpoint."""
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
