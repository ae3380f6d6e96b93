"""Planned and measured time and memory of a pipeline, as text and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Report:
    """Planned and measured values of one step.

    In seconds: ``planned`` and ``measured``, from the first block to the last (``measured``: the median of the first
    steps, ``None`` before any); ``step``, the median of whole steps on this rank without the optimizer's; ``bound``, a
    lower bound on all schedules of these stages. ``stages``: first and last module of each stage
    (:func:`weft.app.pipeline.run.names.stage_names`); ``ranks``: the rank of each stage.

    In bytes by rank: ``peaks``, planned, and ``measured_peaks``, of the run of the plan before training (``None``: it
    was not run); both include two optimizer values per weight, as for Adam. ``peaks`` count the sent tensors that wait
    for their receivers by the plan's times or in the timed steps; a later receiver leaves more, at most eight messages.
    """

    planned: float
    measured: float | None
    step: float | None
    stages: tuple[tuple[str, str], ...]
    ranks: tuple[int, ...]
    peaks: tuple[int, ...]
    measured_peaks: tuple[int, ...] | None
    bound: float | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        stages = [f"stage {s} on rank {rank}: {first}" + (f" to {last}" if last != first else "")
                  for s, ((first, last), rank) in enumerate(zip(self.stages, self.ranks, strict=True))]
        rows = [("", "planned", "measured", "ratio"),
                ("step", f"{self.planned * 1e3:.2f} ms", *_beside(self.planned, self.measured, 1e3, " ms"))]
        measured = self.measured_peaks or (None,) * len(self.peaks)
        rows += [(f"peak of rank {rank}", f"{peak / 2**20:.2f} MiB", *_beside(peak, measured_peak, 2**-20, " MiB"))
                 for rank, (peak, measured_peak) in enumerate(zip(self.peaks, measured, strict=True))]
        notes = [f"no schedule of these stages takes less than {self.bound * 1e3:.2f} ms"] if self.bound else []
        if self.step is not None:
            notes.append(f"a whole step takes {self.step * 1e3:.2f} ms, with losses, reductions and the transfer of "
                         "batches")
        return "\n".join([*stages, *_aligned(rows), *notes, *self.notes])


def _beside(planned: float, measured: float | None, scale: float, unit: str) -> tuple[str, str]:
    """The measured value, and its ratio to the planned one."""
    if measured is None:
        return "-", "-"
    return f"{measured * scale:.2f}{unit}", f"{measured / planned:.2f}" if planned else "-"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(
        row[1:], widths[1:], strict=True))]) for row in rows]
