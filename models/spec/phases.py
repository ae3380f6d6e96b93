"""Changes of a spec during training: entries by steps, and the density of experts by a curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator

from weft.models.spec.base import Section, refuse

#: The tag of a list of steps in pydantic's locations.
BY_STEPS = "steps:"
#: The entry whose values may follow a curve.
DENSITY = "experts.density"
#: Steps of a training; more are a mistake.
_MOST_STEPS = 10**9
#: Entries of one list of steps.
_MOST_ENTRIES = 64


class Temperature(Section):
    """How a gate's temperature falls from ``start`` to ``end`` in ``decay`` steps, and stays there."""

    kind: Literal["exponential", "linear"] = Field(default="exponential", description="How it falls. Default "
                                                   "exponential.")
    start: float = Field(gt=0, le=1e6, description="At the first step.", examples=[2.0])
    end: float = Field(gt=0, le=1e6, description="After decay steps and from then on.", examples=[0.1])
    decay: int = Field(ge=1, le=_MOST_STEPS, description="Steps until end is reached.", examples=[20000])

    @model_validator(mode="after")
    def _falls(self) -> Temperature:
        if self.end > self.start:
            refuse(f"the temperature rises from {self.start:g} to {self.end:g}, but a gate becomes sparse as it falls; "
                   "give an end of at most start")
        return self

    def at(self, step: int) -> float:
        """The temperature at ``step``."""
        part = min(step / self.decay, 1.0)
        if self.kind == "linear":
            return self.start + (self.end - self.start) * part
        return self.start * float((self.end / self.start) ** part)


class DtsDensity(Section):
    """How many experts a token uses under a dense-to-sparse gate (EvoMoE, Nie et al., 2021), modelled."""

    kind: Literal["dts"] = Field(description="A dense-to-sparse gate: Gumbel softmax with a falling temperature.")
    temperature: Temperature = Field(description="How it falls.")
    threshold: float = Field(default=0.001, description="A token uses the experts of more weight than this. "
                             "Default 0.001.")
    hard_at: int | None = Field(default=None, ge=1, le=_MOST_STEPS, description="From this step on a token uses one "
                                "expert. Default: never.", examples=[25000])
    spread: float = Field(default=2.0, ge=0, le=100, description="Standard deviation of a token's logits. Default 2, "
                          "whose densities are within 0.06 of those measured of 8 experts.")

    @model_validator(mode="after")
    def _check(self) -> DtsDensity:
        if not 0 < self.threshold < 1:
            refuse(f"threshold is {self.threshold:g}, it must be between 0 and 1: the weights of a token's experts add "
                   "up to 1")
        return self


def _pairs(value: object) -> tuple[tuple[int, Any], ...]:
    """Pairs of a step and the value from there on; refuses a gap at the start, and steps out of order."""
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= _MOST_ENTRIES:
        raise ValueError(f"it must be a list of 1 to {_MOST_ENTRIES} pairs of a step and a value, such as "
                         "[[0, 512], [10000, 2048]]")
    pairs: list[tuple[int, Any]] = []
    for i, entry in enumerate(value):
        if not isinstance(entry, list | tuple) or len(entry) != 2 or type(entry[0]) is not int:
            refuse(f"entry {i} is {entry!r:.60}, it must be a pair of a step and a value")
        if not pairs and entry[0] != 0:
            refuse(f"the first entry begins at step {entry[0]}, which leaves a gap before it; begin at 0")
        if pairs and entry[0] <= pairs[-1][0]:
            refuse(f"the entry from step {entry[0]} on overlaps the one from step {pairs[-1][0]} on; list them by "
                   "rising step")
        pairs.append((entry[0], entry[1]))
    return tuple(pairs)


_SCHEMA: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": _MOST_ENTRIES, "items": {
    "type": "array", "prefixItems": [{"type": "integer", "minimum": 0}, {}], "minItems": 2, "maxItems": 2}}
ByStep: TypeAlias = Annotated[Any, BeforeValidator(_pairs), WithJsonSchema(_SCHEMA)]


class MeasuredDensity(Section):
    """How many experts a token uses, as measured; straight lines between the points, level behind the last."""

    kind: Literal["measured"] = Field(description="Measured points.")
    points: ByStep = Field(description="Pairs of a step, from 0 on and rising, and the experts that a token used on "
                           "average.", examples=[[[0, 8.0], [10000, 2.2]]])

    @model_validator(mode="after")
    def _check(self) -> MeasuredDensity:
        for step, density in self.points:
            if isinstance(density, bool) or not isinstance(density, int | float) or not 1 <= density <= 2**20:
                refuse(f"the density is {density!r:.60} at step {step}, it must be a number of at least 1: every token "
                       "has an expert")
        return self


#: The curves by their kind, which is also pydantic's tag.
CURVES: Mapping[str, type[Section]] = {"dts": DtsDensity, "measured": MeasuredDensity}


def _kind(value: Any) -> str | None:
    if isinstance(value, Section):
        return next((kind for kind, section in CURVES.items() if isinstance(value, section)), None)
    return str(value.get("kind", "dts")) if isinstance(value, dict) else BY_STEPS


Values: TypeAlias = Annotated[
    Annotated[DtsDensity, Tag("dts")] | Annotated[MeasuredDensity, Tag("measured")] | Annotated[ByStep, Tag(BY_STEPS)],
    Discriminator(_kind)]


class Phases(Section):
    """What changes while a model trains: any entry of the spec by its path, as a list of ``[first step, value]``.

    ``experts.density``, how many experts a token uses, may be a curve instead. ``sequence``, ``micro_batches`` and
    ``micro_batch_size`` need no path.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Values]

    steps: int = Field(ge=1, le=_MOST_STEPS, description="Steps of the whole training.", examples=[30000])
    samples: int = Field(default=6, ge=1, le=_MOST_ENTRIES, description="Into how many parts of equal relative change "
                         "a curve is cut, each with its mean. Default 6.")

    @property
    def values(self) -> Mapping[str, DtsDensity | MeasuredDensity | tuple[tuple[int, Any], ...]]:
        """What changes, by name."""
        return self.__pydantic_extra__

    @model_validator(mode="after")
    def _check(self) -> Phases:
        if not self.values:
            refuse("nothing changes; list an entry, such as sequence: [[0, 512], [10000, 2048]]")
        for name, value in self.values.items():
            if isinstance(value, Section) and name != DENSITY:
                refuse(f"{name} follows a curve, which {DENSITY} alone may; list its values by steps")
            if isinstance(value, tuple) and value[-1][0] >= self.steps:
                refuse(f"{name} changes at step {value[-1][0]}, but the training has {self.steps} steps")
        return self
