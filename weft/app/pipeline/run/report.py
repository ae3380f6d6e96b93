"""What a pipeline was planned to take beside what it took, for people and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Report:
    """What one step was planned to take and took, in seconds: ``planned`` and ``measured`` are from the first block to
    the last (``None`` before the first step; the median of the first few later), ``step`` is the median of whole steps
    on this rank, without the optimizer's; no schedule is under ``bound``. ``stages``: where each stage begins and ends,
    by the model's modules (:func:`weft.app.pipeline.run.names.stage_names`); ``ranks``: where each stage is. ``peaks``:
    the bytes that each rank was planned to hold at most, ``measured_peaks`` the most that it held when the plan was run
    before training (``None``: it was not); both with two values of an optimizer for each weight, as Adam has.
    ``peaks`` count as many results that wait for their receiver as do by the plan's times, or did in the steps that
    were timed: a receiver that is later leaves more of them, at most eight messages."""

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
        rows += [(f"most held by rank {rank}", f"{peak / 2**20:.2f} MiB", *_beside(peak, held, 2**-20, " MiB"))
                 for rank, (peak, held) in enumerate(zip(self.peaks, measured, strict=True))]
        notes = [f"no schedule of these stages takes less than {self.bound * 1e3:.2f} ms"] if self.bound else []
        if self.step is not None:
            notes.append(f"a whole step takes {self.step * 1e3:.2f} ms, with losses, sums and what the script hands "
                         "over")
        return "\n".join([*stages, *_aligned(rows), *notes, *self.notes])


def _beside(planned: float, measured: float | None, scale: float, unit: str) -> tuple[str, str]:
    """What was measured, and its ratio to what was planned."""
    if measured is None:
        return "-", "-"
    return f"{measured * scale:.2f}{unit}", f"{measured / planned:.2f}" if planned else "-"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(
        row[1:], widths[1:], strict=True))]) for row in rows]
