"""What every section of a spec file shares: a strict pydantic model, and the refusal of several keys together."""

from __future__ import annotations

from typing import NoReturn

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

__all__ = ["MAX_LAYERS", "Section", "refuse"]

#: A limit that keeps a typing error (a layer count of 10^9) from taking the machine down.
MAX_LAYERS = 1_024


class Section(BaseModel):
    """Unknown keys are refused, types are not guessed, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def refuse(message: str) -> NoReturn:
    """A finding about several keys of one section; :mod:`models.spec` puts file, line and section before it."""
    raise PydanticCustomError("section", "{message}", {"message": message})
