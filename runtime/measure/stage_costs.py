"""Measured costs of the stages of a training on a device: the figures, their file, and the block problem with them.

The file ``weft.stage-costs/1`` is one JSON object: ``format``, ``device``, ``torch``, ``stages``, and optionally
``ties``, each ``{parameter, stages}``. A stage has ``stage``; ``origin``, which is ``"measured"``, ``"as stage 3"`` if
it is built like that one, or ``"skipped: ..."`` with the reason; ``parameter_bytes``, ``buffer_bytes``,
``output_bytes``; and ``passes``, by kind of backward and letter: ``{seconds, spread, repeats, memory, peak}``, memory
in bytes. A stage that does not train has the pass F alone. Optional are ``parameters``, the number of its parameters;
``deferred``, the number of those whose weight gradient is deferred to W; and ``trained_bytes``, if not all parameters
are trained. A stage of a graph also has ``takes`` and ``owes``: by number of an earlier stage, the bytes of the values
that it takes from that stage, and of the gradients that it sends back.
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
    """The stages cannot be measured; the message is one sentence with the stage and the cause."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """The cost of one pass of one stage over one micro-batch."""

    time: Sample
    memory: Memory


@dataclass(frozen=True, slots=True)
class StageCosts:
    """The costs of one stage. ``passes``: by kind of backward (``"full"``, ``"split"``) and letter.

    ``parameter_bytes``, ``buffer_bytes``, ``output_bytes``: bytes of parameters, buffers and results. ``same_as``: the
    stage, built alike, that was measured in its place. ``skipped``: why it was not measured. ``takes``: in a graph of
    stages, the bytes that it takes from each earlier stage; ``owes``: the bytes of gradients that it sends back; both
    ``None`` in a chain. ``parameters``: their number. ``deferred``: the number of those whose weight gradient is
    deferred to W. Both are ``None`` in files without them. ``trained_bytes``: of trained parameters; ``None``: all are
    trained. A stage without trained parameters in itself and before it has the pass F alone.
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
        """Bytes of the trained parameters."""
        return self.parameter_bytes if self.trained_bytes is None else self.trained_bytes

    @property
    def trains(self) -> bool:
        """Whether it has backward passes."""
        return any(len(passes) > 1 for passes in self.passes.values())


@dataclass(frozen=True, slots=True)
class MeasuredStages:
    """The costs of all stages of a training, with the device and the version of torch. ``ties``: for each tied
    parameter its name in the first of its stages, and these stages."""

    device: str
    torch: str
    stages: tuple[StageCosts, ...]
    ties: tuple[tuple[str, tuple[int, ...]], ...] = ()


def static_bytes(costs: Sequence[StageCosts], stage: int, *, optimizer_copies: int = 2,
                 micro_batches: int | None = None) -> int:
    """A stage's resident bytes in the executor, without those that passes allocate and free.

    These are weights, gradients of trained weights, ``optimizer_copies`` further values per trained weight (Adam: 2;
    AdamA: 1, as it has two moments and no gradients), buffers, and results that are being sent: up to
    :data:`~weft.runtime.plan.buffers.OPEN_SENDS` of them, or those of ``micro_batches``.
    """
    cost = costs[stage]
    sends = _messages(costs, stage)
    sent = sorted(sends * (OPEN_SENDS if micro_batches is None else micro_batches), reverse=True)
    state = cost.parameter_bytes + (1 + optimizer_copies) * cost.learning_bytes
    return state + cost.buffer_bytes + sum(sent[:OPEN_SENDS])


def _messages(costs: Sequence[StageCosts], stage: int) -> list[int]:
    """The bytes of each message that ``stage`` sends for a micro-batch, if each stage is on its own device."""
    if costs[stage].takes is None:  # an activation, an input gradient
        return [costs[stage].output_bytes, costs[stage - 1].output_bytes if stage and costs[stage - 1].trains else 0]
    return [*(cost.takes[stage] for cost in costs if cost.takes and stage in cost.takes),
            *(costs[stage].owes or {}).values()]


def measured_problem(costs: Sequence[StageCosts], *, backward: str = "full", memory: int | None = None,
                     optimizer_copies: int = 2, name: str = "measured stages",
                     ties: Sequence[tuple[str, Sequence[int]]] = ()) -> Problem:
    """The block problem with stage s on device s: durations in seconds, memory and workspace in bytes.

    ``memory``: each device's capacity in bytes, of which :func:`static_bytes` are not available to activations
    (``None``: unlimited). Transfers take no time. Raises :class:`MeasureError` if a stage was skipped, or leaves no
    memory for activations.
    """
    for cost in costs:
        if cost.skipped is not None:
            raise MeasureError(f"stage {cost.stage} was not measured: it {cost.skipped}")
    letter, kind = ("B", BlockKind.BACKWARD) if backward == "full" else ("I", BlockKind.INPUT_GRAD)
    blocks = [_block(cost, "F", backward, BlockKind.FORWARD, _after("F", _producers(cost))) for cost in costs]
    for cost in reversed(costs):
        s = cost.stage
        if not cost.trains:
            continue
        consumers = [other.stage for other in costs if s in (_producers(other) if other.owes is None else other.owes)]
        # In a chain, the gradient follows the forward anyway; in a graph it may follow another stage's forward.
        own = _after("F", [s]) if cost.takes is not None or not consumers else ()
        blocks.append(_block(cost, letter, backward, kind, (*own, *_after(letter, consumers))))
        if backward == "split":
            blocks.append(_block(cost, "W", backward, BlockKind.WEIGHT_GRAD, _after("I", [s])))
    static = [static_bytes(costs, cost.stage, optimizer_copies=optimizer_copies) for cost in costs]
    devices = tuple(Device(f"rank{cost.stage}", None if memory is None else _capacity(memory, static[cost.stage], cost))
                    for cost in costs)
    return Problem(name, devices, tuple(blocks), time_unit="s", memory_unit="B", model=_model(costs, backward, ties))


def _model(costs: Sequence[StageCosts], backward: str, ties: Sequence[tuple[str, Sequence[int]]]) -> ModelFacts:
    """The measured properties of stages, to be compared with the modules that run. The output of a chain's last stage
    is omitted, as its loss reads it."""
    return ModelFacts(
        tuple(StageFacts(f"F{cost.stage}", parameters=cost.parameters, parameter_bytes=cost.parameter_bytes,
                         output_bytes=cost.output_bytes if cost.takes is None and cost is not costs[-1] else None,
                         deferred=cost.deferred if backward == "split" else None) for cost in costs),
        tuple(TieFacts(name, tuple(f"F{stage}" for stage in stages)) for name, stages in ties))


def _producers(cost: StageCosts) -> Sequence[int]:
    """The stages from which the stage of ``cost`` takes values."""
    return list(range(cost.stage))[-1:] if cost.takes is None else sorted(cost.takes)


def _after(letter: str, stages: Sequence[int]) -> tuple[Dependency, ...]:
    return tuple(Dependency(f"{letter}{stage}") for stage in stages)


def _capacity(memory: int, static: int, cost: StageCosts) -> int:
    if static >= memory:
        raise MeasureError(f"stage {cost.stage} needs {static} bytes for weights, gradients, optimizer and messages, "
                           f"but a device has {memory}: cut the model into more stages, or give more memory")
    return memory - static


def _block(cost: StageCosts, letter: str, backward: str, kind: BlockKind, after: tuple[Dependency, ...]) -> Block:
    measured = cost.passes[backward][letter]
    change, peak = measured.memory.change, measured.memory.peak
    return Block(f"{letter}{cost.stage}", kind, (cost.stage,), max(measured.time.seconds, 1e-9), (change,),
                 (max(0, peak - max(change, 0)),), after)


# -- files -------------------------------------------------------------------------------------------------------------


def load_stage_costs(path: str | os.PathLike[str]) -> MeasuredStages:
    """Read a ``weft.stage-costs/1`` file. Raises :class:`~weft.solver.io.entries.FormatError`."""
    return stage_costs_from_json(read_json(path), os.fspath(path))


def save_stage_costs(measured: MeasuredStages, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.stage-costs/1`` file atomically. Raises ``OSError``."""
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
    """The stages of a ``weft.stage-costs/1`` object; error messages begin with ``where``, such as a file name."""
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
