"""A checked program, ready to launch, and its file ``weft.plan/2``.

The file is one JSON object: ``format``; ``problem``, as in a schedule file; ``micro_batches``; ``makespan``, predicted,
in the problem's time unit; ``stages``, the rank of every stage (a list for several ranks), or ``null`` if the blocks
are not stages; ``ranks[]``, each ``{device, instructions}``; ``solver``, the provenance of the schedule. An instruction
is ``{"do": "SEND 0F0>1"}``, or for a computation, with its predicted times, ``{"do": "0F0", "start": 0, "end": 1.5}``.
If devices have lanes, ``ranks[]`` has an entry for each device that is not a lane, with the names of its ``lanes``. A
plan of rounds (:mod:`weft.solver.problem.rounds`) has the ``problem`` and the ``micro_batches`` of a schedule file with
jobs or classes, and its instructions name blocks and micro-batches as that file does. Optional are ``signatures``: a
hash of each stage's module (:mod:`weft.runtime.checkpoint.signature`); and ``shared``: the sets of stages that share
parameters, as lists.

A file ``weft.plan/1`` has no REDUCE instructions and no ``shared``; reading adds them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from weft.runtime.plan.check import check_program
from weft.runtime.plan.lowering import lower, with_reductions
from weft.runtime.plan.program import (
    Instruction,
    Program,
    ProgramError,
    Recv,
    Reduce,
    Send,
    Vocabulary,
    Work,
    parse_instruction,
)
from weft.solver.io.entries import Entry, FormatError, read_json, require_format
from weft.solver.io.problem_files import problem_from_json, problem_to_json
from weft.solver.io.provenance import check_provenance
from weft.solver.io.schedule_files import rounds_from_json
from weft.solver.io.writing import write_atomically
from weft.solver.problem import BlockKind, Problem
from weft.solver.problem.rounds import Rounds
from weft.solver.schedule import Operation, Schedule

PLAN_FORMAT = "weft.plan/2"
WITHOUT_REDUCTIONS = "weft.plan/1"
#: The readable formats; the last one is written.
PLAN_FORMATS = (WITHOUT_REDUCTIONS, PLAN_FORMAT)


@dataclass(frozen=True)
class Plan:
    """The program of ``problem``'s ranks for ``micro_batches`` micro-batches.

    ``times``: the predicted start and end of every computation, in the problem's time unit. ``solver``: the provenance
    of the schedule. ``signatures``: hashes of the stages' modules, if the plan was made for them. ``shared``: the sets
    of stages that share parameters (:meth:`sharing`). ``rounds``: if given, the micro-batches are these rounds.
    """

    problem: Problem
    micro_batches: int
    program: Program
    times: Mapping[Work, tuple[float, float]]
    solver: Mapping[str, Any] = field(default_factory=dict)
    signatures: Mapping[str, str] = field(default_factory=dict)
    shared: tuple[tuple[int, ...], ...] = ()
    rounds: Rounds | None = None

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The meaning of the instructions' names."""
        return Vocabulary(self.problem, self.rounds)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule from which the plan was made."""
        keys = ((self.vocabulary.key(work), times) for work, times in self.times.items())
        return Schedule(self.problem, self.micro_batches, tuple(Operation(*key, *times) for key, times in keys
                                                                if key is not None), 0.0)

    def awaits(self, work: Work) -> tuple[Work, ...]:
        """The work that an instruction waits for, without duplicates."""
        block, micro_batch = self.vocabulary.known(work)
        needed = dict.fromkeys((dependency.block, micro_batch - dependency.distance)
                               for dependency in self.problem.blocks[block].after)
        return tuple(self.vocabulary.work(self.problem.index[name], m) for name, m in needed if m >= 0)

    @property
    def why_not_trained(self) -> str | None:
        """The reason why the plan can be emulated but not run with the stages of a model, as a sentence; ``None`` if it
        can be run."""
        if self.vocabulary.graph is not None:
            return None
        return f"the problem {self.problem.name!r} can be emulated, but not run: {self.vocabulary.why_no_stages}"

    @cached_property
    def makespan(self) -> float:
        """Latest predicted end, in the problem's time unit."""
        return max(end for _, end in self.times.values())

    @property
    def stage_ranks(self) -> tuple[int, ...] | None:
        """The rank of every stage; ``None`` if blocks are not stages, or a stage is on several ranks."""
        groups = self.stage_groups
        return None if groups is None or any(len(ranks) > 1 for ranks in groups) else tuple(r for r, in groups)

    @property
    def stage_groups(self) -> tuple[tuple[int, ...], ...] | None:
        """The ranks of every stage; ``None`` if blocks are not stages."""
        graph = self.vocabulary.graph
        return None if graph is None else tuple(stage.ranks for stage in graph.stages)

    @property
    def parameter_groups(self) -> Mapping[tuple[int, ...], tuple[int, ...]]:
        """The sets of stages whose parameters have a REDUCE of their own, with the ranks that run it."""
        graph = self.vocabulary.graph
        return {} if graph is None else graph.parameter_groups(self.shared)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The sets of ranks that run a block together."""
        found = (tuple(sorted(self.vocabulary.ranks.of_block(b))) for b in range(len(self.problem.blocks)))
        return tuple(sorted({ranks for ranks in found if len(ranks) > 1}))

    @property
    def meetings(self) -> Mapping[tuple[int, ...], tuple[int, ...]]:
        """For problems with lanes: the sets of devices, ascending, of blocks on several ranks, with these ranks. Blocks
        on different sets may run concurrently, so each set synchronises separately; blocks on one set run in order."""
        if not self.problem.has_lanes:
            return {}
        found = {tuple(sorted(block.devices)): tuple(sorted(self.vocabulary.ranks.of_block(b)))
                 for b, block in enumerate(self.problem.blocks)}
        return {devices: ranks for devices, ranks in sorted(found.items()) if len(ranks) > 1}

    @cached_property
    def digest(self) -> str:
        """The plan's identity in timelines and checkpoints: the SHA-256 of its JSON without reductions, which files of
        :data:`WITHOUT_REDUCTIONS` lack."""
        value = _to_json(self, lambda instruction: not isinstance(instruction, Reduce))
        del value["shared"]
        return hashlib.sha256(json.dumps({**value, "format": WITHOUT_REDUCTIONS}, sort_keys=True).encode()).hexdigest()

    def sharing(self, shared: Iterable[Sequence[int]]) -> Plan:
        """The plan for stages that share parameters: those of each set in ``shared`` sum the gradients of their shared
        parameters separately. Reductions are inserted and checked again, unless ``shared`` is unchanged."""
        wanted = tuple(sorted({tuple(sorted(stages)) for stages in shared}))
        return self if wanted == self.shared else _reduced(replace(self, shared=wanted))


def plan_of(schedule: Schedule) -> Plan:
    """The plan of ``schedule``: lowered, then checked (:func:`weft.runtime.plan.check.check_program`).

    Raises :class:`~weft.runtime.plan.program.ProgramError` for a schedule that breaks its problem's dependencies, and
    for a gradient without a forward before it.
    """
    schedule = _without_idle_rounds(schedule)
    _refuse_lone_gradients(schedule.problem)
    program = lower(schedule)
    check_program(program, schedule.problem, schedule.micro_batches, rounds=schedule.rounds)
    vocabulary = Vocabulary(schedule.problem, schedule.rounds)
    times = {vocabulary.work(o.block, o.micro_batch): (o.start, o.end) for o in schedule.operations}
    return _reduced(Plan(schedule.problem, schedule.micro_batches, program, times, dict(schedule.solver),
                         rounds=schedule.rounds))


def _without_idle_rounds(schedule: Schedule) -> Schedule:
    """``schedule`` with micro-batches in place of rounds if all rounds are equal, as in a file."""
    rounds = schedule.rounds
    if rounds is None or not rounds.origin.is_plain:
        return schedule
    operations = (Operation(*rounds.apart(block, m), start, end) for block, m, start, end in schedule.operations)
    return replace(schedule, problem=rounds.origin.plain(), micro_batches=rounds.run.micro_batches,
                   operations=tuple(operations), rounds=None, period=None, period_bound=None, repetend=None)


def _refuse_lone_gradients(problem: Problem) -> None:
    """Refuse a gradient without a forward before it, which is a mistake in the problem."""
    is_trained: dict[int, bool] = {}  # whether it is a forward, or comes after one
    for block in problem.topological_order:
        kind = problem.blocks[block].kind
        is_trained[block] = kind == BlockKind.FORWARD or any(
            is_trained[problem.index[item.block]] for item in problem.blocks[block].after if item.distance == 0)
        if kind in (BlockKind.BACKWARD, BlockKind.INPUT_GRAD, BlockKind.WEIGHT_GRAD) and not is_trained[block]:
            raise ProgramError(f"{kind} block {problem.blocks[block].name!r} of problem {problem.name!r} waits for no "
                               "forward block, directly or through others: there is nothing it is the gradient of; "
                               "name its forward in `after`, or make it a block of kind other")


def _reduced(plan: Plan) -> Plan:
    """``plan``, checked without reductions, with reductions, checked again."""
    graph = plan.vocabulary.graph
    if graph is None or not graph.has_backward:
        return plan
    ends = {work: end for work, (_, end) in plan.times.items()}
    plan = replace(plan, program=with_reductions(plan.program, graph, plan.shared, ends))
    check_program(plan.program, plan.problem, plan.micro_batches, plan.parameter_groups)
    return plan


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a ``weft.plan/2`` or ``/1`` file and check its program.

    Raises :class:`~weft.solver.io.entries.FormatError`.
    """
    return plan_from_json(read_json(path), os.fspath(path))


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.plan/2`` file atomically. Raises ``OSError``."""
    write_atomically(path, json.dumps(plan_to_json(plan), indent=1, allow_nan=False) + "\n")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The ``weft.plan/2`` object of ``plan``."""
    value = _to_json(plan, lambda instruction: True)
    if not plan.shared:
        del value["shared"]
    return value


def _to_json(plan: Plan, shown: Callable[[Instruction], bool]) -> dict[str, Any]:
    ranks = []
    rounds = plan.rounds
    for rank, own in enumerate(plan.program.ranks):
        instructions: list[dict[str, Any]] = []
        for instruction in filter(shown, own):
            entry: dict[str, Any] = {"do": str(instruction)}
            if not isinstance(instruction, (Send, Recv, Reduce)):
                entry["start"], entry["end"] = plan.times[instruction]
            instructions.append(entry)
        device, *lanes = _names(plan.vocabulary, rank)
        ranks.append({"device": device, **({"lanes": lanes} if plan.problem.has_lanes else {}),
                      "instructions": instructions})
    return {
        "format": PLAN_FORMAT,
        "problem": problem_to_json(plan.problem if rounds is None else rounds.origin),
        "micro_batches": plan.micro_batches if rounds is None else rounds.run.to_json(),
        "makespan": plan.makespan,
        "stages": _stages(plan),
        "ranks": ranks,
        "solver": dict(plan.solver),
        **({"signatures": dict(plan.signatures)} if plan.signatures else {}),
        "shared": [list(stages) for stages in plan.shared],
    }


def plan_from_json(value: Any, where: str = "plan") -> Plan:
    """The plan of a ``weft.plan/2`` or ``weft.plan/1`` object, with its program checked. Error messages begin with
    ``where``, such as a file name.

    ``makespan`` and ``stages`` are redundant; other values are refused.
    """
    entry = Entry(value, where)
    reduces = entry.text("format") != WITHOUT_REDUCTIONS
    if reduces:
        require_format(entry, PLAN_FORMAT)
    entry.allow("format", "problem", "micro_batches", "makespan", "stages", "ranks", "solver", "signatures",
                *["shared"] * reduces)
    listed = problem_from_json(entry.get("problem"), f"{where}: problem")
    items = list(entry.list("ranks"))
    rounds = None
    if listed.is_plain:
        problem, micro_batches = listed, entry.count("micro_batches", minimum=1)
    else:
        rounds = rounds_from_json(entry, listed, sum(1 for item in items for _ in item.list("instructions")))
        problem, micro_batches = rounds.problem, rounds.run.rounds
    solver = check_provenance(entry.get("solver"), len(problem.devices), f"{where}: solver")
    ranks: list[tuple[Instruction, ...]] = []
    times: dict[Work, tuple[float, float]] = {}
    vocabulary = Vocabulary(problem, rounds)
    for item in items:
        ranks.append(_instructions(item, len(ranks), vocabulary, times))
    signatures: dict[str, str] = {}
    if "signatures" in entry.value:
        hashes = entry.child("signatures")
        signatures = {stage: hashes.text(stage) for stage in hashes.value}
    plan = Plan(problem, micro_batches, Program(tuple(ranks)), times, solver, signatures, rounds=rounds)
    graph = plan.vocabulary.graph
    plan = replace(plan, shared=_shared(entry, 0 if graph is None else len(graph.stages)))
    try:
        check_program(plan.program, problem, micro_batches, plan.parameter_groups if reduces else None, rounds)
        plan = plan if reduces else _reduced(plan)
    except ProgramError as error:
        raise FormatError(f"{where}: {error}") from None
    makespan = entry.number("makespan")
    if not math.isclose(makespan, plan.makespan, rel_tol=1e-9):
        raise FormatError(f"{where}: makespan is {makespan}, but the last instruction ends at {plan.makespan}")
    stages = _stages(plan)
    if entry.get("stages") != stages:
        raise FormatError(f"{where}: stages is {entry.get('stages')}, but the problem's stages are on ranks {stages}")
    return plan


def _shared(entry: Entry, stages: int) -> tuple[tuple[int, ...], ...]:
    value = entry.get("shared", [])
    good = isinstance(value, list) and all(
        isinstance(one, list) and len(one) > 1 and all(type(s) is int and 0 <= s < stages for s in one)
        and one == sorted(set(one)) for one in value) and value == sorted(value)
    if not good or len({tuple(one) for one in value}) != len(value):
        raise FormatError(f"{entry.where}: shared is {value}, it must be a sorted list of lists, each of at least two "
                          f"of the stages 0 to {stages - 1}, ascending")
    return tuple(tuple(one) for one in value)


def _stages(plan: Plan) -> list[int | list[int]] | None:
    groups = plan.stage_groups
    return None if groups is None else [ranks[0] if len(ranks) == 1 else list(ranks) for ranks in groups]


def _names(vocabulary: Vocabulary, rank: int) -> list[str]:
    """The names of the device of ``rank`` and of its lanes."""
    return [vocabulary.problem.devices[device].name for device in vocabulary.ranks.pool(rank)]


def _instructions(entry: Entry, rank: int, vocabulary: Vocabulary,
                  times: dict[Work, tuple[float, float]]) -> tuple[Instruction, ...]:
    has_lanes = vocabulary.problem.has_lanes
    entry.allow("device", *["lanes"] * has_lanes, "instructions")
    if rank < len(vocabulary.ranks):
        device, *lanes = _names(vocabulary, rank)
        if entry.text("device") != device:
            raise FormatError(f"{entry.where}: device is {entry.text('device')!r}, but rank {rank} runs the problem's "
                              f"device {device!r}")
        if has_lanes and entry.get("lanes") != lanes:
            raise FormatError(f"{entry.where}: lanes is {entry.get('lanes')}, but the lanes of {device!r} are {lanes}")
    found = []
    for item in entry.list("instructions"):
        item.allow("do", "start", "end")
        try:
            instruction = parse_instruction(item.text("do"))
        except ProgramError as error:
            raise FormatError(f"{item.where}: do: {error}") from None
        found.append(instruction)
        if isinstance(instruction, (Send, Recv, Reduce)):
            item.allow("do")
            continue
        start, end = item.number("start"), item.number("end")
        if times.setdefault(instruction, (start, end)) != (start, end) or not 0 <= start < end:
            raise FormatError(f"{item.where}: {instruction} is from {start} to {end}, it must end after it starts, not "
                              "start before 0, and have the same times on all its ranks")
    return tuple(found)
