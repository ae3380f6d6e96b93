"""How the stages of a cut lie on the GPUs: one shape with its number of stages a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from weft.models.candidates.stages import CutShape

__all__ = ["MOST_CHUNKS", "Layout", "layouts"]

#: More stages on one GPU than this are never tried.
MOST_CHUNKS = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """``shape`` with ``chunks`` stages on each of ``gpus`` GPUs.

    ``chain``: one stage a GPU. ``loop``: round after round down the GPUs. ``v``: down them and back up. ``wave``: the
    same, at least three times.
    """

    shape: CutShape
    chunks: int
    gpus: int

    @property
    def stages(self) -> int:
        """How many there are."""
        return self.chunks * self.gpus

    @property
    def devices(self) -> tuple[int, ...]:
        """The GPU of each stage."""
        down = tuple(range(self.gpus))
        rounds = [down if self.shape in ("chain", "loop") or k % 2 == 0 else down[::-1] for k in range(self.chunks)]
        return tuple(device for row in rounds for device in row)


def layouts(shapes: tuple[str, ...], gpus: int, most_chunks: int, layers: int) -> list[Layout]:
    """The layouts of ``shapes`` with up to ``most_chunks`` stages a GPU that ``layers`` layers can fill; on one GPU
    only the chain."""
    found = [Layout("chain", 1, gpus)] if "chain" in shapes and layers >= gpus else []
    for chunks in range(2, min(most_chunks, MOST_CHUNKS) + 1 if gpus > 1 else 0):
        if chunks * gpus > layers:
            break
        turning: CutShape = "v" if chunks == 2 else "wave"
        if turning in shapes:
            found.append(Layout(turning, chunks, gpus))
        if "loop" in shapes:
            found.append(Layout("loop", chunks, gpus))
    return found
