"""The common base of a spec file's sections: a strict pydantic model, and refusals of combinations of keys.

The sizes of models, each within its limit, and the check that one divides another.
"""

from __future__ import annotations

from typing import Annotated, Any, NoReturn, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from weft.models.files.limits import MAX_LAYERS, MAX_PIXELS, MAX_ROWS, MAX_SEQUENCE, MAX_VOCABULARY, MAX_WIDTH


class Section(BaseModel):
    """Unknown keys are refused, types are not guessed, nothing changes after reading.

    Numbers without a fraction are whole ones, as JSON Schema has it: ``16.0`` is 16.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        counts = {name for name, field in cls.model_fields.items() if int in _kinds(field.annotation)}
        return {name: _whole(value) if name in counts else value for name, value in values.items()}


def refuse(message: str) -> NoReturn:
    """An error about several keys of one section; :mod:`weft.models.spec.spec` prefixes its location."""
    raise PydanticCustomError("section", "{message}", {"message": message})


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _kinds(annotation: Any) -> list[Any]:
    """The types in an annotation."""
    return [annotation, *(kind for part in get_args(annotation) for kind in _kinds(part))]


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
