"""The parts of a training run with constant costs, each with its spec.

A list changes at its steps. A curve is cut at equal ratios of its value, so that no part's ends are far from its mean,
which represents it.

The number of experts a token uses under a dense-to-sparse gate, modelled or measured.

A gate gives expert e the weight softmax((l + g) / tau)_e: l are the token's logits, here from a normal distribution
with a given spread, g is Gumbel noise. The density is the mean number of weights above the threshold, over fixed random
draws, so it is reproducible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.models.spec.families import MoeModel
from weft.models.spec.phases import DENSITY, DtsDensity, MeasuredDensity
from weft.models.spec.sections import Spec
from weft.models.spec.spec import SpecError, with_values

#: Number of evenly spaced steps at which a curve is sampled.
_SAMPLES = 512
#: The entries that need no path.
_PATHS = {"sequence": "model.sequence", "micro_batches": "training.micro_batches",
          "micro_batch_size": "training.micro_batch_size", DENSITY: "model.density"}


@dataclass(frozen=True)
class TrainingPart:
    """Steps ``first`` to ``last - 1``, whose costs are those of ``spec``. ``values``: the values of the entries of
    phases, by name."""

    first: int
    last: int
    values: Mapping[str, Any]
    spec: Spec

    @property
    def steps(self) -> int:
        return self.last - self.first


def parts_of(spec: Spec) -> list[TrainingPart]:
    """The parts of ``spec``'s training, first to last; parts with equal values are of one spec object.

    Raises :class:`~weft.models.spec.spec.SpecError` if it has no phases, an entry does not exist, or a value is invalid
    for the spec.
    """
    phases = spec.phases
    if phases is None:
        raise SpecError(f"{spec.where}: phases is missing: what changes while it trains, such as "
                        "phases: {steps: 20000, sequence: [[0, 512], [10000, 2048]]}")
    _require_whole_layers(spec)
    _require_once(spec, phases.values)
    experts = _experts(spec) if DENSITY in phases.values else 0
    borders = {0, phases.steps}
    for value in phases.values.values():
        borders |= ({step for step, _ in value} if isinstance(value, tuple)
                    else _cuts(value, phases.steps, phases.samples, experts))
    specs: dict[str, Spec] = {}
    parts = []
    for first, last in pairwise(sorted(borders)):
        values = {name: _value(value, first, last, experts) for name, value in phases.values.items()}
        key = repr(values)
        if key not in specs:
            specs[key] = with_values(spec, {_path(spec, name): value for name, value in values.items()},
                                     f"phases from step {first} on")
        parts.append(TrainingPart(first, last, values, specs[key]))
    return parts


def _require_once(spec: Spec, names: Iterable[str]) -> None:
    """Refuse an entry given under two names."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(_path(spec, name), name)
        if other != name:
            raise SpecError(f"{spec.where}: phases: {other} and {name} are one entry; leave one of them out")


def _require_whole_layers(spec: Spec) -> None:
    """Refuse open decisions in a plan that must be the same at several costs."""
    if spec.parallel is not None:
        raise SpecError(f"{spec.where}: parallel divides GPUs into a grid of its own at every cost, but plans of "
                        "phases stay the same until they are switched; leave one of them out")
    asked = spec.placement
    for entry, is_asked in (("memory: decide", asked.memory == "decide"), ("choices", bool(asked.choices)),
                            ("sequence_chunks", bool(asked.sequence_chunks))):
        if is_asked:
            raise SpecError(f"{spec.where}: placement.{entry} decides anew at every cost, but plans of phases stay the "
                            "same until they are switched; leave it out")
    if spec.training is not None and spec.training.lengths is not None:
        raise SpecError(f"{spec.where}: training.lengths is of one step, phases are of many; leave one of them out")


def _experts(spec: Spec) -> int:
    """The number of experts in a layer. Raises ``SpecError`` if there are none."""
    if not isinstance(spec.model, MoeModel):
        found = getattr(spec.model, "family", "of no family; write its sizes as one")
        raise SpecError(f"{spec.where}: phases.{DENSITY} is for the family moe, but the model is {found}; leave it out")
    return spec.model.experts


def _path(spec: Spec, name: str) -> str:
    """The path of the entry ``name`` in the file."""
    path = _PATHS.get(name, name)
    if path.partition(".")[0] == "phases":
        raise SpecError(f"{spec.where}: phases.{name} changes phases themselves; leave it out")
    return path


def _cuts(curve: DtsDensity | MeasuredDensity, steps: int, samples: int, experts: int) -> set[int]:
    """The steps at which ``curve`` is cut into ``samples`` parts of equal relative change, before and behind a jump."""
    hard = curve.hard_at if isinstance(curve, DtsDensity) else None
    end = min(steps, hard or steps)
    grid = sorted({round(step) for step in np.linspace(0, end - 1, _SAMPLES)})
    values = np.log([density_at(curve, step, experts) for step in grid])
    levels = np.linspace(values.max(), values.min(), samples + 1)[1:-1]
    place = np.searchsorted(-levels, -values, side="left")  # the number of levels above each value
    found = {step for step, before, after in zip(grid[1:], place, place[1:], strict=False) if before != after}
    return found | ({hard} if hard is not None and hard < steps else set())


def _value(value: Any, first: int, last: int, experts: int) -> Any:
    """The entry of a list at ``first``, or the mean of a curve from there to ``last``."""
    if isinstance(value, tuple):
        return next(entry for step, entry in reversed(value) if step <= first)
    steps = sorted({round(step) for step in np.linspace(first, last - 1, 17)})
    return float(f"{np.mean([density_at(value, step, experts) for step in steps]):.4g}")


#: Number of sampled tokens: the standard error of a density of 8 experts is below 0.03.
_DRAWS = 4096


def density_at(curve: DtsDensity | MeasuredDensity, step: int, experts: int) -> float:
    """Experts that a token uses at ``step``, of ``experts``, on average."""
    if isinstance(curve, MeasuredDensity):
        steps, values = zip(*curve.points, strict=True)
        return float(np.interp(step, steps, values))
    if curve.hard_at is not None and step >= curve.hard_at:
        return 1.0
    return dts_density(experts, curve.temperature.at(step), curve.threshold, curve.spread)


@lru_cache(maxsize=4096)
def dts_density(experts: int, temperature: float, threshold: float, spread: float) -> float:
    """Experts of more weight than ``threshold`` at this ``temperature``, at least 1."""
    logits = _draws(experts, spread) / temperature
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    used = (weights > threshold * weights.sum(axis=1, keepdims=True)).sum(axis=1)
    return float(np.maximum(used, 1).mean())


@lru_cache(maxsize=8)
def _draws(experts: int, spread: float) -> NDArray[np.float64]:
    generator = np.random.default_rng(0)
    return generator.gumbel(size=(_DRAWS, experts)) + spread * generator.normal(size=(_DRAWS, experts))
