"""Measured costs of the stages of a training on a device: the figures, their file, and the problem made of them.

The file, ``weft.stage-costs/1``, is one JSON object: ``format``, ``device``, ``torch``, and ``stages``, each with
``stage``; ``origin``, which is ``"measured"``, ``"as stage 3"`` where that one is built alike, or ``"skipped: ..."``
with the reason; ``parameter_bytes``, ``buffer_bytes``, ``output_bytes``; and ``passes``, by kind of backward and
letter: ``{seconds, spread, repeats, memory, peak}``, memory in bytes. Optional are ``parameters`` and ``deferred``, the
number of a stage's parameters and of those whose weight gradient waits for W, and ``trained_bytes``, of trained
parameters where not all are; a stage that does not train has the pass F alone. Beside ``stages`` also ``ties``, each
``{parameter, stages}``. The stages of a graph also have ``takes`` and ``owes``: by the number of an earlier stage, the
bytes of its values that this one takes, and of the gradients that it gets back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.runtime.measure.measure import Memory, Sample
from weft.runtime.plan.buffers import OPEN_SENDS
from weft.solver.io.entries import Entry, FormatError, read_json, require_format
from weft.solver.io.writing import write_atomically
from weft.solver.model_facts import ModelFacts, StageFacts, TieFacts
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

COSTS_FORMAT = "weft.stage-costs/1"
#: Kinds of backward, and the passes of each.
MODES: Mapping[str, str] = {"full": "FB", "split": "FIW"}
_COUNTS = ("parameters", "deferred", "trained_bytes")


class MeasureError(ValueError):
    """Stages that cannot be measured; the message says which and why."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """One pass of one stage over one micro-batch."""

    time: Sample
    memory: Memory


@dataclass(frozen=True, slots=True)
class StageCosts:
    """One stage. ``passes``: by kind of backward (``"full"``, ``"split"``) and letter, the cost of each pass.

    ``parameter_bytes``: of its parameters; ``buffer_bytes`` of its buffers. ``output_bytes``: of its results.
    ``same_as``: the stage measured in its place, being built alike. ``skipped``: why it was not measured. ``takes``: in
    a graph of stages, the bytes that it takes from each earlier stage; ``owes`` those of the gradients that it gives
    back. ``None`` in a chain. ``parameters``: their number; ``deferred``: the number of those whose weight gradient
    waited for W. ``None`` in files without them. ``trained_bytes``: of its trained parameters; ``None``: all. A stage
    that does not train, and has none before it that does, has the pass F alone.
    """

    stage: int
    parameter_bytes: int
    buffer_bytes: int
    output_bytes: int
    passes: Mapping[str, Mapping[str, PassCost]] = field(default_factory=dict)
    same_as: int | None = None
    skipped: str | None = None
    takes: Mapping[int, int] | None = None
    owes: Mapping[int, int] | None = None
    parameters: int | None = None
    deferred: int | None = None
    trained_bytes: int | None = None

    @property
    def learning_bytes(self) -> int:
        """Bytes of its parameters that are trained."""
        return self.parameter_bytes if self.trained_bytes is None else self.trained_bytes

    @property
    def trains(self) -> bool:
        """Whether it has backward passes."""
        return any(len(passes) > 1 for passes in self.passes.values())


@dataclass(frozen=True, slots=True)
class MeasuredStages:
    """All stages of a training, and the device and torch they were measured with. ``ties``: the stages that share each
    tied parameter, by its name in the first of them."""

    device: str
    torch: str
    stages: tuple[StageCosts, ...]
    ties: tuple[tuple[str, tuple[int, ...]], ...] = ()


def static_bytes(costs: Sequence[StageCosts], stage: int, *, optimizer_copies: int = 2,
                 micro_batches: int | None = None) -> int:
    """A stage's resident bytes in the executor, beside those that passes allocate and free.

    Weights, gradients of the trained ones, ``optimizer_copies`` further values for each of these (Adam: 2; AdamA: 1, as
    it has two and no gradients), buffers, and results whose transfers may still be under way: up to
    :data:`~weft.runtime.plan.buffers.OPEN_SENDS` of them, or those of ``micro_batches``.
    """
    cost = costs[stage]
    sends = _messages(costs, stage)
    sent = sorted(sends * (OPEN_SENDS if micro_batches is None else micro_batches), reverse=True)
    held = cost.parameter_bytes + (1 + optimizer_copies) * cost.learning_bytes
    return held + cost.buffer_bytes + sum(sent[:OPEN_SENDS])


def _messages(costs: Sequence[StageCosts], stage: int) -> list[int]:
    """The bytes of each message that ``stage`` sends for a micro-batch, with each stage on its own device."""
    if costs[stage].takes is None:  # an activation, an input gradient
        return [costs[stage].output_bytes, costs[stage - 1].output_bytes if stage and costs[stage - 1].trains else 0]
    return [*(cost.takes[stage] for cost in costs if cost.takes and stage in cost.takes),
            *(costs[stage].owes or {}).values()]


def measured_problem(costs: Sequence[StageCosts], *, backward: str = "full", memory: int | None = None,
                     optimizer_copies: int = 2, name: str = "measured stages",
                     ties: Sequence[tuple[str, Sequence[int]]] = ()) -> Problem:
    """Stage s on device s, with measured costs: durations in seconds, memory and workspace in bytes.

    ``memory`` is each device's capacity, of which :func:`static_bytes` are not for activations; ``None``: unlimited. A
    transfer takes no time. Raises :class:`MeasureError` if a stage was skipped, or leaves no memory for activations.
    """
    for cost in costs:
        if cost.skipped is not None:
            raise MeasureError(f"stage {cost.stage} was not measured: it {cost.skipped}")
    letter, kind = ("B", BlockKind.BACKWARD) if backward == "full" else ("I", BlockKind.INPUT_GRAD)
    blocks = [_block(cost, "F", backward, BlockKind.FORWARD, _after("F", _givers(cost))) for cost in costs]
    for cost in reversed(costs):
        s = cost.stage
        if not cost.trains:
            continue
        takers = [other.stage for other in costs if s in (_givers(other) if other.owes is None else other.owes)]
        # In a chain a gradient comes after the forward anyway; a graph must say so, or it might be another's.
        own = _after("F", [s]) if cost.takes is not None or not takers else ()
        blocks.append(_block(cost, letter, backward, kind, (*own, *_after(letter, takers))))
        if backward == "split":
            blocks.append(_block(cost, "W", backward, BlockKind.WEIGHT_GRAD, _after("I", [s])))
    devices = tuple(Device(f"rank{cost.stage}", None if memory is None
                           else _left(memory, static_bytes(costs, cost.stage, optimizer_copies=optimizer_copies), cost))
                    for cost in costs)
    return Problem(name, devices, tuple(blocks), time_unit="s", memory_unit="B", model=_model(costs, backward, ties))


def _model(costs: Sequence[StageCosts], backward: str, ties: Sequence[tuple[str, Sequence[int]]]) -> ModelFacts:
    """The measured facts, to compare with the modules that will run. (The output of a chain's last stage goes into its
    loss.)"""
    return ModelFacts(
        tuple(StageFacts(f"F{cost.stage}", parameters=cost.parameters, parameter_bytes=cost.parameter_bytes,
                         output_bytes=cost.output_bytes if cost.takes is None and cost is not costs[-1] else None,
                         deferred=cost.deferred if backward == "split" else None) for cost in costs),
        tuple(TieFacts(name, tuple(f"F{stage}" for stage in stages)) for name, stages in ties))


def _givers(cost: StageCosts) -> Sequence[int]:
    """The stages whose values ``cost``'s stage takes."""
    return list(range(cost.stage))[-1:] if cost.takes is None else sorted(cost.takes)


def _after(letter: str, stages: Sequence[int]) -> tuple[Dependency, ...]:
    return tuple(Dependency(f"{letter}{stage}") for stage in stages)


def _left(memory: int, held: int, cost: StageCosts) -> int:
    if held >= memory:
        raise MeasureError(f"stage {cost.stage} needs {held} bytes for weights, gradients, optimizer and messages, "
                           f"but a device has {memory}: cut the model into more stages, or give more memory")
    return memory - held


def _block(cost: StageCosts, letter: str, backward: str, kind: BlockKind, after: tuple[Dependency, ...]) -> Block:
    found = cost.passes[backward][letter]
    change, peak = found.memory.change, found.memory.peak
    return Block(f"{letter}{cost.stage}", kind, (cost.stage,), max(found.time.seconds, 1e-9), (change,),
                 (max(0, peak - max(change, 0)),), after)


# -- files -------------------------------------------------------------------------------------------------------------


def load_stage_costs(path: str | os.PathLike[str]) -> MeasuredStages:
    """Read a ``weft.stage-costs/1`` file. Raises :class:`~weft.solver.io.entries.FormatError`."""
    return stage_costs_from_json(read_json(path), os.fspath(path))


def save_stage_costs(measured: MeasuredStages, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.stage-costs/1`` file, whole or not at all. Raises ``OSError``."""
    write_atomically(path, json.dumps(stage_costs_to_json(measured), indent=1, allow_nan=False) + "\n")


def stage_costs_to_json(measured: MeasuredStages) -> dict[str, Any]:
    """The ``weft.stage-costs/1`` object of ``measured``."""
    return {"format": COSTS_FORMAT, "device": measured.device, "torch": measured.torch,
            "stages": [_stage_to_json(cost) for cost in measured.stages],
            **({"ties": [{"parameter": name, "stages": list(stages)} for name, stages in measured.ties]}
               if measured.ties else {})}


def _stage_to_json(cost: StageCosts) -> dict[str, Any]:
    origin = "measured" if cost.same_as is None else f"as stage {cost.same_as}"
    graph = {name: {str(stage): size for stage, size in values.items()}
             for name, values in (("takes", cost.takes), ("owes", cost.owes)) if values is not None}
    counts = {name: value for name in _COUNTS if (value := getattr(cost, name)) is not None}
    return {
        **graph, **counts, "stage": cost.stage,
        "origin": origin if cost.skipped is None else f"skipped: {cost.skipped}",
        "parameter_bytes": cost.parameter_bytes, "buffer_bytes": cost.buffer_bytes, "output_bytes": cost.output_bytes,
        "passes": {mode: {letter: {"seconds": run.time.seconds, "spread": run.time.spread, "repeats": run.time.repeats,
                                   "memory": run.memory.change, "peak": run.memory.peak}
                          for letter, run in passes.items()} for mode, passes in cost.passes.items()}}


def stage_costs_from_json(value: Any, where: str = "stage costs") -> MeasuredStages:
    """The stages of a ``weft.stage-costs/1`` object; ``where`` (a file name) leads every error message."""
    entry = Entry(value, where)
    require_format(entry, COSTS_FORMAT)
    entry.allow("format", "device", "torch", "stages", "ties")
    stages = tuple(_stage(item) for item in entry.list("stages"))
    if [cost.stage for cost in stages] != list(range(len(stages))):
        raise FormatError(f"{where}: stages must be numbered from 0 on, in order")
    ties = tuple(_tie(item, len(stages)) for item in entry.list("ties", required=False))
    return MeasuredStages(entry.text("device"), entry.text("torch"), stages, ties)


def _tie(item: Entry, count: int) -> tuple[str, tuple[int, ...]]:
    item.allow("parameter", "stages")
    stages = item.get("stages")
    if not isinstance(stages, list) or not all(type(s) is int and 0 <= s < count for s in stages):
        raise FormatError(f"{item.where}: stages is {stages}, it must be a list of stages from 0 to {count - 1}")
    return item.text("parameter"), tuple(stages)


def _stage(item: Entry) -> StageCosts:
    item.allow("stage", "origin", "parameter_bytes", "buffer_bytes", "output_bytes", "passes", "takes", "owes",
               *_COUNTS)
    origin = item.text("origin")
    skipped = origin.removeprefix("skipped: ") if origin.startswith("skipped: ") else None
    twin = origin.removeprefix("as stage ")
    if skipped is None and origin != "measured" and not (origin != twin and twin.isdecimal()):
        raise FormatError(f"{item.where}: origin is {origin!r}, it must be 'measured', 'as stage N' or 'skipped: WHY'")
    modes = item.child("passes")
    modes.allow(*MODES)
    passes = {mode: _passes(modes.child(mode), MODES[mode]) for mode in modes.value}
    takes, owes = (_by_stage(item, name) for name in ("takes", "owes"))
    if (takes is None) != (owes is None) or set(owes or ()) - set(takes or ()):
        raise FormatError(f"{item.where}: owes must stand beside takes, and name no other stages")
    return StageCosts(item.count("stage"), item.count("parameter_bytes"), item.count("buffer_bytes"),
                      item.count("output_bytes"), passes, int(twin) if twin.isdecimal() else None, skipped, takes, owes,
                      *(item.count(name) if item.has(name) else None for name in _COUNTS))


def _by_stage(item: Entry, name: str) -> dict[int, int] | None:
    if name not in item.value:
        return None
    entry, stage = item.child(name), item.count("stage")
    for key in entry.value:
        if not key.isdecimal() or not int(key) < stage:
            raise FormatError(f"{entry.where}: {key!r} is no stage before {stage}")
    return {int(key): entry.count(key) for key in entry.value}


def _passes(entry: Entry, letters: str) -> dict[str, PassCost]:
    entry.allow(*letters)
    found = {}
    for letter in letters if set(entry.value) != {"F"} else "F":
        item = entry.child(letter)
        item.allow("seconds", "spread", "repeats", "memory", "peak")
        memory = item.number("memory")
        if not isinstance(memory, int):
            raise FormatError(f"{item.where}: memory is {memory}, it must be a whole number of bytes")
        found[letter] = PassCost(Sample(item.number("seconds"), item.number("spread"), item.count("repeats")),
                                 Memory(memory, item.count("peak")))
    return found
