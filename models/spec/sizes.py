"""The sizes that models have, each within its limit, and the check that one divides another."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from weft.models.files.limits import MAX_LAYERS, MAX_PIXELS, MAX_ROWS, MAX_SEQUENCE, MAX_VOCABULARY, MAX_WIDTH
from weft.models.spec.base import refuse

__all__ = ["Layers", "Pixels", "Rows", "Tokens", "Vocabulary", "Width", "divides"]

Width: TypeAlias = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
Layers: TypeAlias = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
Vocabulary: TypeAlias = Annotated[int, Field(ge=1, le=MAX_VOCABULARY)]
Tokens: TypeAlias = Annotated[int, Field(ge=1, le=MAX_SEQUENCE)]
Pixels: TypeAlias = Annotated[int, Field(ge=1, le=MAX_PIXELS)]
Rows: TypeAlias = Annotated[int, Field(ge=1, le=MAX_ROWS)]


def divides(part: int, whole: int, part_name: str, whole_name: str) -> None:
    """Refuses a ``part`` that does not divide the ``whole``."""
    if whole % part:
        refuse(f"{whole_name} is {whole}, it must be a multiple of {part_name} ({part})")
