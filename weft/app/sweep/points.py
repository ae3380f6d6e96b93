"""The points of a sweep: one source with other memory, micro-batches, sizes, recomputation and shapes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from weft.solver.problem import Number, Problem
from weft.solver.values import is_finite_number

if TYPE_CHECKING:
    from weft.models.spec.spec import Spec

#: More points than this are a mistake: at a few seconds each they take hours and fit in no picture.
MAX_POINTS = 1000
#: The maximum number of micro-batches in a spec.
_MOST_MICRO_BATCHES = 65_536
_MOST_SAMPLES = 65_536

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Axes:
    """The values that a sweep varies; ``None`` keeps the source's. Meanings and units are those of
    :func:`weft.sweep`."""

    memory: Sequence[Number | str] | None = None
    micro_batches: Sequence[int] | None = None
    micro_batch_sizes: Sequence[int] | None = None
    recompute: Sequence[bool] | None = None
    shapes: Sequence[str] | None = None
    chunks: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One combination. ``memory`` is each device's, as counted by the source: for a spec all of the GPU's.

    Values that a block problem lacks (sizes, recomputation, shapes) are ``None``.
    """

    memory: tuple[Number | None, ...]
    micro_batches: int
    micro_batch_size: int | None = None
    recompute: bool | None = None
    shapes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ChangedSource:
    """A point and the source changed to it. ``work`` is the mean work of a micro-batch, in the sweep's unit."""

    point: Point
    source: Spec | Problem
    work: float

    @property
    def reserve(self) -> Number:
        """The part of each device's memory that is kept free."""
        return 0 if isinstance(self.source, Problem) else self.source.cluster.reserve

    def with_memory(self, memory: tuple[Number | None, ...]) -> ChangedSource:
        """The same with the given memory."""
        if isinstance(self.source, Problem):
            source: Spec | Problem = with_memory(self.source, memory)
        else:
            source = self.source.model_copy(update={"cluster": self.source.cluster.model_copy(
                update={"memory": memory})})
        return ChangedSource(replace(self.point, memory=memory), source, self.work)


def with_memory(problem: Problem, memory: Sequence[Number | None]) -> Problem:
    """``problem`` on devices of this memory."""
    return replace(problem, devices=tuple(replace(device, memory=amount) for device, amount
                                          in zip(problem.devices, memory, strict=True)))


def variants_of(source: Spec | Problem, axes: Axes) -> tuple[list[ChangedSource], str]:
    """All combinations, and the unit of work that their throughput counts: ``tokens``, ``samples`` or
    ``micro-batches``. Memory varies slowest, then shapes, recomputation, sizes, micro-batches.

    Raises ``ValueError`` for a meaningless value, an axis that the source lacks, and too many points.
    """
    for name in Axes.__slots__:
        values = getattr(axes, name)
        if values is not None and (isinstance(values, str) or not isinstance(values, Iterable) or not list(values)):
            raise ValueError(f"{name} is {values!r}, it must be a list with at least one value, or left out")
    found = _of_problem(source, axes) if isinstance(source, Problem) else _of_spec(source, axes)
    points = math.prod(len(values) for values in found.axes)
    if points > MAX_POINTS:
        raise ValueError(f"the sweep has {points:,} points ({' x '.join(str(len(v)) for v in found.axes)}), at most "
                         f"{MAX_POINTS:,} are solved in one: give fewer values")
    return [found.make(*values) for values in product(*found.axes)], found.unit


@dataclass(frozen=True)
class _SweepGrid:
    axes: tuple[Sequence[Any], ...]
    make: Callable[..., ChangedSource]
    unit: str


# -- block problems ----------------------------------------------------------------------------------------------


def _of_problem(problem: Problem, axes: Axes) -> _SweepGrid:
    for name in ("micro_batch_sizes", "recompute", "shapes", "chunks"):
        if getattr(axes, name) is not None:
            raise ValueError(f"{name} cannot vary in a block problem, whose blocks are fixed; sweep a model spec")
    if axes.micro_batches is None:
        raise ValueError("a block problem does not say how many micro-batches run: give it (--micro-batches N,N,...)")
    capacities = tuple(device.memory for device in problem.devices)

    def make(memory: tuple[Number | None, ...], micro_batches: int) -> ChangedSource:
        return ChangedSource(Point(memory, micro_batches), with_memory(problem, memory), 1)

    memory = _memory(axes, capacities, problem.memory_unit, asks=False)
    return _SweepGrid((memory, _micro_batches(axes, 1)), make, "micro-batches")


# -- specs ---------------------------------------------------------------------------------------------------------


def _of_spec(spec: Spec, axes: Axes) -> _SweepGrid:
    from weft.models.spec.families import GptModel
    from weft.models.spec.model_sections import ExplicitModel, GraphModel
    from weft.models.spec.sections import TrainingRun

    run = spec.run
    for name in ("micro_batch_sizes", "recompute", "shapes", "chunks"):
        if spec.parallel is not None and getattr(axes, name) is not None:
            raise ValueError(f"{name} cannot vary on a uniform grid, whose parallel states it; sweep a spec for each")
    if axes.recompute is not None and not isinstance(run, TrainingRun):
        raise ValueError("recompute cannot vary in inference, which keeps nothing for a backward")
    if axes.micro_batch_sizes is not None and isinstance(spec.model, ExplicitModel | GraphModel):
        raise ValueError("micro_batch_sizes cannot vary for a model that lists its layers or is a graph: they are for "
                         f"one micro-batch of the size the spec states ({run.micro_batch_size})")
    gpus = spec.cluster.gpus
    have = spec.cluster.memory * (gpus if len(spec.cluster.memory) == 1 else 1)
    sequence: float = spec.model.sequence if isinstance(spec.model, GptModel) else 1
    if isinstance(run, TrainingRun) and isinstance(run.lengths, tuple):
        if axes.micro_batches is not None:
            raise ValueError("micro_batches cannot vary where training.lengths lists each of them; leave it out")
        sequence = sum(run.lengths) / len(run.lengths) if isinstance(spec.model, GptModel) else 1

    def make(memory: tuple[int, ...], shapes: tuple[str, ...], recompute: bool | None, size: int,
             micro_batches: int) -> ChangedSource:
        changes: dict[str, Any] = {"micro_batches": micro_batches, "micro_batch_size": size}
        if recompute is not None:
            changes["recompute"] = recompute
        section = "training" if isinstance(run, TrainingRun) else "inference"
        # Values are checked below: pydantic does not check a copy.
        changed = spec.model_copy(update={
            "cluster": spec.cluster.model_copy(update={"memory": memory}),
            "placement": spec.placement.model_copy(update={"shapes": shapes, **(
                {} if axes.chunks is None else {"chunks": _chunks(shapes)})}),
            section: run.model_copy(update=changes)})
        return ChangedSource(Point(memory, micro_batches, size, recompute, shapes), changed, size * sequence)

    recompute = [run.recompute] if isinstance(run, TrainingRun) else [None]
    return _SweepGrid((
        _memory(axes, have, "B", asks=True),
        _shapes(axes, spec.placement.shapes),
        recompute if axes.recompute is None else _distinct(_flag(value) for value in axes.recompute),
        [run.micro_batch_size] if axes.micro_batch_sizes is None else
        _distinct(_whole(value, "micro_batch_sizes", _MOST_SAMPLES) for value in axes.micro_batch_sizes),
        _micro_batches(axes, run.micro_batches),
    ), make, "tokens" if isinstance(spec.model, GptModel) else "samples")


def _shapes(axes: Axes, allowed: tuple[str, ...]) -> list[tuple[str, ...]]:
    from weft.models.candidates.stages import SHAPES, stage_device
    from weft.models.spec.placement import Shape

    if axes.shapes is not None and axes.chunks is not None:
        raise ValueError("give either shapes or chunks (stages a GPU), not both")
    if axes.shapes is not None:
        known = get_args(Shape)
        for shape in axes.shapes:
            if shape not in known:
                raise ValueError(f"shapes: {shape!r} is none of {', '.join(known)}")
        return _distinct((shape,) for shape in axes.shapes)
    if axes.chunks is None:
        return [allowed]
    by_chunks: dict[int, list[str]] = {}
    for shape in SHAPES:
        if shape in allowed:
            by_chunks.setdefault(len(stage_device(shape, 2)) // 2, []).append(shape)
    if not by_chunks:
        raise ValueError(f"chunks: only {', '.join(SHAPES)} have a number of stages a GPU, and the spec allows none of "
                         "them; sweep shapes instead")
    for count in axes.chunks:
        if count not in by_chunks:
            offer = ", ".join(f"{n} ({', '.join(shapes)})" for n, shapes in sorted(by_chunks.items()))
            raise ValueError(f"chunks: {count!r} stages a GPU has no shape that the spec allows, it must be of {offer}")
    return _distinct(tuple(by_chunks[count]) for count in axes.chunks)


def _chunks(shapes: tuple[str, ...]) -> int:
    """The number of stages on each GPU for shapes with one number of chunks."""
    from weft.models.candidates.stages import SHAPES, stage_device

    return next(len(stage_device(shape, 2)) // 2 for shape in SHAPES if shape in shapes)


# -- values --------------------------------------------------------------------------------------------------------


def _memory(axes: Axes, have: tuple[Number | None, ...], unit: str, *, asks: bool) -> list[tuple[Number | None, ...]]:
    if axes.memory is None:
        return [have]
    return _distinct(_amounts(value, have, unit, asks) for value in axes.memory)


def _amounts(value: Number | str, have: tuple[Number | None, ...], unit: str, asks: bool) -> tuple[Number | None, ...]:
    """Each device's memory: ``value``, or for a text like ``1.5x`` a multiple of its previous memory. ``asks``: refuse
    a few bytes without a unit with a question; in a block problem numbers are in its own unit."""
    from weft.models.spec.quantities import parse_bytes, parse_memory

    if isinstance(value, str) and value.strip().lower().endswith("x"):
        scale = _positive(value.strip()[:-1], value, unit)
        if all(amount is None for amount in have):
            raise ValueError(f"memory: {value!r} scales what the devices have, but all of them are unlimited")
        return tuple(None if amount is None else _scaled(amount, scale, unit) for amount in have)
    if unit != "B":
        return (_positive(value, value, unit),) * len(have)
    try:
        amount = parse_memory(value) if asks and isinstance(value, str) else parse_bytes(value)
    except ValueError as error:
        raise ValueError(f"memory: {value!r} is no amount, {error}, or times what there is, like '1.5x'") from None
    if amount <= 0:
        raise ValueError(f"memory: {value!r} is no amount, it must be greater than 0")
    return (amount,) * len(have)


def _scaled(amount: Number, scale: Number, unit: str) -> Number:
    result = amount * scale
    return int(result) if unit == "B" else result


def _positive(text: Number | str, value: Number | str, unit: str) -> Number:
    number: Number = -1
    with contextlib.suppress(TypeError, ValueError):
        number = float(text)
    if not is_finite_number(number) or number <= 0:
        raise ValueError(f"memory: {value!r} is no amount, it must be a number greater than 0 (in {unit}), or times "
                         "what there is, like '1.5x'")
    return int(number) if number == int(number) else number


def _micro_batches(axes: Axes, stated: int) -> list[int]:
    if axes.micro_batches is None:
        return [stated]
    return _distinct(_whole(value, "micro_batches", _MOST_MICRO_BATCHES) for value in axes.micro_batches)


def _whole(value: object, name: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"{name}: {value!r} is not possible, it must be a whole number from 1 to {most}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"recompute: {value!r} is not possible, it must be True or False")
    return value


def _distinct(values: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(values))
