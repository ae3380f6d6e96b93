"""The check of buffer tables: each buffer is written once before it is read, and not again before its last read.

Transfers write while the rank computes, so the check must hold at any speed. A slot may be written at any time after
its posting, and is read up to the last instruction that reads the message: these intervals of instructions must not
overlap on one slot. Messages carry no tag: the n-th posted receive from a peer gets that peer's n-th SEND. So both
ranks must name the same results, with the same layouts, in the order of the program in both directions. Together with
the check of the program, an instruction then finds in its slot the result and the micro-batch that it names.

A rank with lanes runs its list in several concurrent queues (:mod:`weft.runtime.plan.lanes`). There the executor posts
a slot only when all readers of its previous content, which are earlier in the list, are complete, so the check of
intervals of the list holds for the run.

Last reads are derived from the problem's dependencies, independently of the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NoReturn

from weft.runtime.plan.buffers import BufferTable, Landing, MessageLayout, Staging, send_done
from weft.runtime.plan.check import grid
from weft.runtime.plan.program import Program, ProgramError, Recv, Reduce, Send, StageWork, Vocabulary, Work
from weft.solver.problem import Number, Problem
from weft.solver.problem.rounds import Rounds


def check_buffers(program: Program, problem: Problem, tables: Sequence[BufferTable],
                  keeps: Callable[[Work], Work] | None = None, rounds: Rounds | None = None) -> None:
    """Raise :class:`ProgramError`, with the rank x step grid around the fault, unless ``tables`` (one per rank) are
    correct for ``program``, which :func:`weft.runtime.plan.check.check_program` has accepted.

    ``keeps(work)``: the last instruction at which its rank may read the inputs of ``work``; default: the last pass of
    its stage for that micro-batch if blocks are stages, otherwise ``work`` itself. ``rounds``: if given, the problem's
    micro-batches are these rounds.
    """
    if len(tables) != len(program.ranks):
        raise ProgramError(f"there are {len(tables)} buffer tables for {len(program.ranks)} ranks")
    proof = _Proof(program, Vocabulary(problem, rounds), tables, keeps)
    for rank in range(len(tables)):
        proof.require_buffers(rank)
    for rank in range(len(tables)):
        proof.require_pairs(rank)


class _Proof:
    def __init__(self, program: Program, vocabulary: Vocabulary, tables: Sequence[BufferTable],
                 keeps: Callable[[Work], Work] | None) -> None:
        self.program, self.tables = program, tables
        self.vocabulary = vocabulary
        self.keeps = keeps or self._last_of_stage

    def require_buffers(self, rank: int) -> None:
        """Check that every message has a large enough slot of its own while it is in use."""
        table, instructions = self.tables[rank], self.program.ranks[rank]
        receives, sends = {e.step: e for e in table.receives}, {e.step: e for e in table.sends}
        if len(receives) != len(table.receives) or len(sends) != len(table.sends):
            raise ProgramError(f"rank {rank}'s buffer table has two entries for one step")
        for step, instruction in enumerate(instructions):
            entry: Landing | Staging | None
            entry = receives.pop(step, None) if isinstance(instruction, Recv) else (
                sends.pop(step, None) if isinstance(instruction, Send) else None)
            if isinstance(instruction, (Send, Recv)) and (
                    entry is None or (entry.what, entry.peer) != (instruction.what, instruction.peer)):
                self._refuse(rank, step, f"rank {rank}'s buffer table has no entry for {instruction}")
        left: list[Landing | Staging] = [*receives.values(), *sends.values()]
        if left:
            raise ProgramError(f"rank {rank}'s buffer table has an entry for step {left[0].step}, which is no such "
                               "message")
        _, last = self.reads(rank)
        done = send_done(instructions)
        for landing in table.receives:
            if not 0 <= landing.posted <= landing.step:
                self._refuse(rank, landing.step, f"the receive of {landing.what} is posted before step "
                             f"{landing.posted}, after its RECV")
            if last.get(landing.what, landing.step) > landing.last:
                step = last[landing.what]
                self._refuse(rank, step, f"{instructions[step]} may still look at {landing.what}, "
                             f"whose buffer is given away after step {landing.last}")
        for send in table.sends:
            if send.last < done[send.step]:
                self._refuse(rank, send.step, f"the staging buffer of SEND {send.what} is given away after step "
                             f"{send.last}, while the SEND may be under way")
        self._require_disjoint(rank, "slot", table.slots, [(e, e.posted) for e in table.receives])
        self._require_disjoint(rank, "staging buffer", table.staging_slots, [(e, e.step) for e in table.sends])

    def _require_disjoint(self, rank: int, name: str, sizes: Sequence[int],
                          entries: Sequence[tuple[Landing | Staging, int]]) -> None:
        taken: dict[int, tuple[Landing | Staging, int]] = {}
        for entry, begin in sorted(entries, key=lambda item: item[1]):
            if not 0 <= entry.slot < len(sizes):
                self._refuse(rank, entry.step, f"{entry.what} lands in {name} {entry.slot} of {len(sizes)}")
            if sizes[entry.slot] < entry.layout.size:
                self._refuse(rank, entry.step, f"{entry.what} has {entry.layout.size} bytes, but {name} {entry.slot} "
                                               f"has {sizes[entry.slot]}")
            if sizes[entry.slot] and not entry.layout.is_known:
                self._refuse(rank, entry.step, f"{entry.what} has a shape that is not known, but {name} {entry.slot} "
                                               f"has {sizes[entry.slot]} bytes for other messages")
            before = taken.get(entry.slot)
            if before is not None and begin <= before[1]:
                self._refuse(rank, entry.step, f"{entry.what} may be written to {name} {entry.slot} from step {begin} "
                             f"on, while {before[0].what} is needed there up to step {before[1]}")
            taken[entry.slot] = entry, entry.last

    def require_pairs(self, rank: int) -> None:
        """Check that messages with every peer start in the order of the program, and that both ends agree on them."""
        events: dict[int, list[tuple[int, int, Work, MessageLayout, bool]]] = defaultdict(list)
        length = len(self.program.ranks[rank])
        for landing in self.tables[rank].receives:
            events[landing.peer].append((landing.posted, landing.step, landing.what, landing.layout, False))
        for send in self.tables[rank].sends:  # a posting before step s comes before a SEND at s
            events[send.peer].append((send.step, send.step + length, send.what, send.layout, True))
        for peer, started in events.items():
            mine = sorted(started, key=lambda e: e[:2])
            others: list[Landing | Staging] = [*self.tables[peer].receives, *self.tables[peer].sends]
            theirs = [(e.what, e.layout, isinstance(e, Landing)) for e in sorted(others, key=lambda e: e.step)
                      if e.peer == rank]
            for (_, key, what, layout, sends), (other, other_layout, also) in zip(mine, theirs, strict=False):
                step = key - length if sends else key
                if (what, sends) != (other, also):
                    self._refuse(rank, step, f"rank {rank} starts the message of {what} where rank {peer} expects that "
                                             f"of {other}")
                if layout != other_layout:
                    self._refuse(rank, step, f"the message of {what} is {layout} on rank {rank} and {other_layout} on "
                                             f"rank {peer}")

    def reads(self, rank: int) -> tuple[dict[Work, int], dict[Work, int]]:
        """For each result, the first and the last step of ``rank`` that may read it."""
        instructions, problem = self.program.ranks[rank], self.vocabulary.problem
        step_of = {instruction: step for step, instruction in enumerate(instructions)}
        first: dict[Work, int] = {}
        last: dict[Work, int] = {}
        done = send_done(instructions)
        for step, instruction in enumerate(instructions):
            if isinstance(instruction, (Recv, Reduce)):
                continue
            if isinstance(instruction, Send):
                inputs, end = [instruction.what], done[step]
            else:
                block, micro_batch = self.vocabulary.known(instruction)
                inputs = [self.vocabulary.work(problem.index[d.block], micro_batch - d.distance)
                          for d in problem.blocks[block].after if micro_batch >= d.distance]
                end = step_of[self.keeps(instruction)]
            for what in inputs:
                first.setdefault(what, step)
                last[what] = max(last.get(what, 0), end)
        return first, last

    def _last_of_stage(self, work: Work) -> Work:
        graph = self.vocabulary.graph
        if graph is None or not isinstance(work, StageWork):
            return work
        return self.vocabulary.work(graph.stages[work.stage].order[-1], work.micro_batch)

    def _refuse(self, rank: int, step: int, sentence: str) -> NoReturn:
        steps = [step if r == rank else min(step, max(len(own) - 1, 0)) for r, own in enumerate(self.program.ranks)]
        raise ProgramError(f"{sentence}\n{grid(self.program, steps, rank)}")


def check_memory(program: Program, problem: Problem, rank: int, table: BufferTable, reserve: int,
                 rounds: Rounds | None = None) -> None:
    """Raise :class:`ProgramError` unless the slots of ``rank`` fit in addition to the memory of its blocks.

    A block's memory includes its inputs from its start on. Messages that arrived earlier, and empty slots, are
    additional; they must fit in the rest of the device's capacity and in ``reserve`` (bytes that the problem omits).
    Problems whose memory is not in bytes are not checked. With lanes: :func:`.lanes.check_pool_memory`.
    """
    capacity, instructions = problem.devices[rank].memory, program.ranks[rank]
    if problem.memory_unit != "B" or capacity is None:
        return
    vocabulary = Vocabulary(problem, rounds)
    reads, _ = _Proof(program, vocabulary, (), lambda work: work).reads(rank)
    change = [0] * (len(instructions) + 1)  # bytes in slots that blocks count as their own
    for landing in table.receives:
        change[min(reads.get(landing.what, landing.last), landing.last)] += landing.layout.size
        change[landing.last + 1] -= landing.layout.size
    level: Number = 0
    counted = 0
    for step, instruction in enumerate(instructions):
        counted += change[step]
        if isinstance(instruction, (Send, Recv, Reduce)):
            continue
        block = problem.blocks[vocabulary.known(instruction)[0]]
        during = level + max(block.memory_on(rank), 0) + block.workspace_on(rank)
        level += block.memory_on(rank)
        if during + table.size - counted > capacity + reserve:
            steps = [step if r == rank else min(step, max(len(other) - 1, 0)) for r, other in enumerate(program.ranks)]
            raise ProgramError(
                f"during {instruction}, rank {rank}'s blocks hold {during} bytes and its {len(table.slots)} message "
                f"buffers {table.size - counted} more, but device {problem.devices[rank].name!r} has {capacity} and "
                f"{reserve} in reserve\n{grid(program, steps, rank)}")
