"""How the stages of a cut lie on the GPUs: one shape with its number of stages a GPU."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from weft.models.candidates.stages import Shape, stage_device

__all__ = ["Layout", "layouts"]


@dataclass(frozen=True, slots=True)
class Layout:
    """``shape`` with ``chunks`` stages on each of ``gpus`` GPUs."""

    shape: Shape
    chunks: int
    gpus: int

    @property
    def stages(self) -> int:
        """How many there are."""
        return self.chunks * self.gpus

    @property
    def devices(self) -> tuple[int, ...]:
        """The GPU of each stage."""
        return stage_device(self.shape, self.gpus, self.chunks)


def layouts(shapes: Collection[str], gpus: int, most_chunks: int, layers: int) -> list[Layout]:
    """The layouts of ``shapes`` with up to ``most_chunks`` stages a GPU that ``layers`` layers can fill, fewest stages
    first; on one GPU only the chain."""
    found = [Layout("chain", 1, gpus)] if "chain" in shapes and layers >= gpus else []
    for chunks in range(2, most_chunks + 1 if gpus > 1 else 0):
        turning: Shape = "v" if chunks == 2 else "wave"
        found += [Layout(shape, chunks, gpus) for shape in (turning, "loop") if shape in shapes]
    return [layout for layout in found if layout.stages <= layers]
