"""The program of every rank: a list of instructions, in a small text form that prints and parses back.

========================  =============================================================================================
text                      meaning, with what it does to memory and time
========================  =============================================================================================
``2F0``                   forward of stage 2 on micro-batch 0. Keeps the stage's input, output and autograd graph.
``2B0``                   full backward. Takes the gradient of the stage's output, gives the gradient of its input, adds
                          to the weight gradients, frees what F kept.
``2I0``                   input gradient only. Gives the gradient of the input and frees F's graph, but keeps, for each
                          linear layer, its input and its output's gradient; other parameters get theirs now.
``2W0``                   weight gradients from what I kept, then frees that. On a stage without an I (it owes no stage
                          an input gradient) it is a full backward.
``2R0``                   forward of stage 2 once more, from the inputs, which are then all that ``2F0`` kept; keeps
                          what a forward keeps.
``2O0``, ``2L0``          offload: what ``2F0`` keeps has moved to the host's memory, and its bytes here are given
                          back; load: they are taken again, and it comes back for the next pass of the stage. The copies
                          run beside other instructions where the problem has them as transfers.
``embed[0]``              the block ``embed`` of micro-batch 0, where blocks are no stages. A name that is not letters,
                          digits, ``_``, ``.``, ``-``, or that starts with a digit, stands in JSON quotes.
``SEND 2F0>1``            hands the result of ``2F0`` to rank 1: an activation after F, an input gradient after B or I.
                          Starts the transfer and goes on; the tensor is kept until the transfer is done.
``RECV 2F0<0``            the other end of it, on rank 1. The transfer into the buffer that
                          :mod:`weft.runtime.plan.buffers` gives it has started here or before; the instruction that
                          needs the result waits for it. Other messages get the buffer when no instruction may read this
                          one any more.
``REDUCE 2``              sum the gradients of the parameters that only stage 2 holds, over the replicas of the plan.
                          Stands behind the last pass of the stage that adds to them.
``REDUCE 0+3``            sum the gradients of the parameters that stages 0 and 3 hold together (tied, or one object),
                          over the ranks that hold them, then over the replicas. All these ranks run it.
========================  =============================================================================================

A block on several devices is an instruction of each, and they start it together: so all ranks of a group enter its
collectives in one order, which :mod:`weft.runtime.plan.check` proves. The same holds for a REDUCE. A message is named
after the instruction whose result it carries, on both ends. A program is an order, without times. The optimizer steps
after all instructions.

A rank is a device that is not a lane, with its lanes: its *pool*. Ranks are numbered in the order of their devices, so
without lanes rank r is device r.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from weft.runtime.plan.stage_graph import LETTERS, NotAStageGraph, StageGraph
from weft.solver.pipeline import NotAPipeline, Pipeline
from weft.solver.problem import Problem
from weft.solver.problem.rounds import Rounds


@dataclass(frozen=True)
class RankMap:
    """The ranks of ``problem``. ``devices``: per rank, its device; ``of_device``: per device, its rank."""

    problem: Problem
    devices: tuple[int, ...]
    of_device: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem) -> RankMap:
        """The ranks of ``problem``."""
        devices = tuple(d for d, owner in enumerate(problem.pool_of) if d == owner)
        rank = {device: r for r, device in enumerate(devices)}
        return cls(problem, devices, tuple(rank[owner] for owner in problem.pool_of))

    def __len__(self) -> int:
        return len(self.devices)

    def of_block(self, block: int) -> tuple[int, ...]:
        """The ranks that run ``block`` together, without duplicates, in the order of its devices."""
        return tuple(dict.fromkeys(self.of_device[device] for device in self.problem.blocks[block].devices))

    def pool(self, rank: int) -> tuple[int, ...]:
        """The devices of ``rank``: its own, then its lanes."""
        device = self.devices[rank]
        return device, *self.problem.lanes_of[device]

    def held(self, rank: int, block: int) -> tuple[int, ...]:
        """The devices (or lanes) of ``rank`` on which ``block`` runs."""
        return tuple(device for device in self.problem.blocks[block].devices if self.of_device[device] == rank)

    def blocks_on(self, rank: int) -> Sequence[int]:
        """The blocks that ``rank`` runs, in file order."""
        return tuple(self.problem.pool_places[self.devices[rank]])


class ProgramError(ValueError):
    """A text is not an instruction, or a program does not match its problem."""


class StageWork(NamedTuple):
    """One pass of one stage over one micro-batch; ``letter`` is one of :data:`.LETTERS`."""

    stage: int
    letter: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.letter}{self.micro_batch}"


class BlockWork(NamedTuple):
    """One block, by name, of one micro-batch."""

    block: str
    micro_batch: int

    def __str__(self) -> str:
        name = self.block if _BARE_NAME.fullmatch(self.block) else json.dumps(self.block)
        return f"{name}[{self.micro_batch}]"


Work: TypeAlias = StageWork | BlockWork


@dataclass(frozen=True, slots=True)
class Send:
    """Send the result of ``what`` to rank ``peer``."""

    what: Work
    peer: int

    def __str__(self) -> str:
        return f"SEND {self.what}>{self.peer}"


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive the result of ``what`` from rank ``peer``."""

    what: Work
    peer: int

    def __str__(self) -> str:
        return f"RECV {self.what}<{self.peer}"


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sum the gradients of the parameters that exactly ``stages``, ascending, share."""

    stages: tuple[int, ...]

    def __str__(self) -> str:
        return f"REDUCE {'+'.join(map(str, self.stages))}"


Instruction: TypeAlias = StageWork | BlockWork | Send | Recv | Reduce

_NUMBER = r"(?:0|[1-9][0-9]*)"
_BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_STAGE_WORK = re.compile(rf"(?P<stage>{_NUMBER})(?P<letter>[{LETTERS}])(?P<micro_batch>{_NUMBER})", re.ASCII)
_BLOCK_WORK = re.compile(rf'(?P<name>{_BARE_NAME.pattern}|"(?:[^"\\]|\\.)*")\[(?P<micro_batch>{_NUMBER})\]', re.ASCII)
_MESSAGE = re.compile(rf"(?P<verb>SEND|RECV) (?P<what>.+)(?P<arrow>[<>])(?P<peer>{_NUMBER})", re.ASCII)
_REDUCE = re.compile(rf"REDUCE (?P<stages>{_NUMBER}(?:\+{_NUMBER})*)", re.ASCII)


def parse_instruction(text: str) -> Instruction:
    """The instruction that prints as exactly ``text``. Raises :class:`ProgramError` for anything else."""
    instruction = _parse_message(text) or _parse_reduce(text) or _parse_work(text)
    if instruction is None or str(instruction) != text:
        raise ProgramError(f"{text!r} is no instruction, it must look like 2F0, 2B0, 2I0, 2W0, block[0], SEND 2F0>1, "
                           "RECV 2F0<0, REDUCE 2 or REDUCE 0+3")
    return instruction


def _parse_message(text: str) -> Send | Recv | None:
    message = _MESSAGE.fullmatch(text)
    if message is None or (what := _parse_work(message["what"])) is None:
        return None
    end = Send if (message["verb"], message["arrow"]) == ("SEND", ">") else Recv
    return end(what, int(message["peer"]))


def _parse_reduce(text: str) -> Reduce | None:
    match = _REDUCE.fullmatch(text)
    stages = tuple(map(int, match["stages"].split("+"))) if match else ()
    return Reduce(stages) if stages and all(one < other for one, other in pairwise(stages)) else None


def _parse_work(text: str) -> Work | None:
    if match := _STAGE_WORK.fullmatch(text):
        return StageWork(int(match["stage"]), match["letter"], int(match["micro_batch"]))
    if match := _BLOCK_WORK.fullmatch(text):
        name = match["name"]
        try:
            return BlockWork(json.loads(name) if name.startswith('"') else name, int(match["micro_batch"]))
        except json.JSONDecodeError:
            return None
    return None


@dataclass(frozen=True)
class Program:
    """The instructions of each rank, in order. Rank r is device r of a problem without lanes.

    A rank with lanes has one list, too: each lane runs its instructions of the list in order, concurrently with the
    others (:mod:`weft.runtime.plan.lanes`).
    """

    ranks: tuple[tuple[Instruction, ...], ...]

    @classmethod
    def from_text(cls, ranks: Iterable[Sequence[str]]) -> Program:
        """The program of each rank's instruction texts. Raises :class:`ProgramError` with the place of a bad one."""
        found = []
        for rank, texts in enumerate(ranks):
            instructions = []
            for step, text in enumerate(texts):
                try:
                    instructions.append(parse_instruction(text))
                except ProgramError as error:
                    raise ProgramError(f"rank {rank}, step {step}: {error}") from None
            found.append(tuple(instructions))
        return cls(tuple(found))

    def to_text(self) -> tuple[tuple[str, ...], ...]:
        """Each rank's instructions as texts; :meth:`from_text` gives the same program back."""
        return tuple(tuple(str(instruction) for instruction in own) for own in self.ranks)

    def works(self, rank: int) -> Iterator[Work]:
        """The computations of rank ``rank``, in order, without its messages."""
        for instruction in self.ranks[rank]:
            if isinstance(instruction, (StageWork, BlockWork)):
                yield instruction


class Vocabulary:
    """The names of a problem's blocks in its program: stages and passes where the blocks are stages, else block names.

    ``graph``: the stages, if any; ``pipeline``: these as a chain with one device each, if they are one; ``ranks``: the
    map from devices to ranks. With ``rounds`` there are no stages; names are those of the blocks that they are copies
    of, and numbers those of their jobs' micro-batches.
    """

    def __init__(self, problem: Problem, rounds: Rounds | None = None) -> None:
        self.problem, self.rounds = problem, rounds
        self.ranks = RankMap.of(problem)
        self.graph: StageGraph | None = None
        try:
            self.graph = _stages(problem, rounds)
        except NotAStageGraph as reason:
            self.why_no_stages = str(reason)

    @cached_property
    def pipeline(self) -> Pipeline | None:
        """The problem as a chain, if it is one."""
        try:
            return Pipeline.of(self.problem)
        except NotAPipeline:
            return None

    def work(self, block: int, micro_batch: int) -> Work:
        """The name of ``block`` (an index into ``problem.blocks``) on ``micro_batch`` (with rounds, a round)."""
        if self.rounds is not None:
            copied, number = self.rounds.apart(block, micro_batch)
            return BlockWork(self.rounds.origin.blocks[copied].name, number)
        if self.graph is None:
            return BlockWork(self.problem.blocks[block].name, micro_batch)
        return StageWork(*self.graph.pass_of[block], micro_batch)

    def key(self, work: Work) -> tuple[int, int] | None:
        """The inverse of :meth:`work`: the block and the micro-batch (with rounds, a round) that ``work`` names;
        ``None`` if there is no such block."""
        if self.rounds is not None and isinstance(work, BlockWork):
            copied = self.rounds.origin.index.get(work.block)
            return None if copied is None else self.rounds.joined(copied, work.micro_batch)
        block = self.block(work)
        return None if block is None else (block, work.micro_batch)

    def known(self, work: Work) -> tuple[int, int]:
        """:meth:`key` for an instruction of a checked program."""
        key = self.key(work)
        assert key is not None, work
        return key

    def micro_batch(self, work: Work) -> str:
        """The micro-batch of ``work``, in words."""
        job = self._job(work)
        return f"micro-batch {work.micro_batch}" if job is None else f"micro-batch {work.micro_batch} of job {job!r}"

    def count(self, work: Work, micro_batches: int) -> int:
        """The number of micro-batches of the job of ``work`` in a run of ``micro_batches`` of the problem."""
        return micro_batches if self.rounds is None else len(self.rounds.run.classes[self._job(work)])

    def _job(self, work: Work) -> str | None:
        if self.rounds is None or not isinstance(work, BlockWork):
            return None
        return self.rounds.origin.blocks[self.rounds.origin.index[work.block]].job

    def block(self, work: Work) -> int | None:
        """The block that ``work`` names, as an index into ``problem.blocks``; ``None`` if there is none."""
        if isinstance(work, BlockWork) and self.rounds is not None:
            key = self.key(work)
            return None if key is None else key[0]
        if isinstance(work, BlockWork):
            return self.problem.index.get(work.block) if self.graph is None else None
        if self.graph is None or work.stage >= len(self.graph.stages):
            return None
        return self.graph.stages[work.stage].blocks.get(work.letter)


def _stages(problem: Problem, rounds: Rounds | None) -> StageGraph:
    """The stages of ``problem``. Raises :class:`NotAStageGraph` where it has none."""
    if rounds is not None and len(rounds.origin.jobs) > 1:
        raise NotAStageGraph("it has the jobs " + " and ".join(map(repr, rounds.origin.jobs)) + ", and one model is "
                             "trained at a time")
    if rounds is not None:
        raise NotAStageGraph("its micro-batches differ from each other, and the executor trains with micro-batches of "
                             "one kind")
    return StageGraph.of(problem)
