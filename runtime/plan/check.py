"""The check before the launch: a program is complete and cannot deadlock.

The proof is a run under the strictest rules: a SEND waits until its peer reaches the matching RECV, and vice versa; an
instruction starts only when the previous one on its rank is complete. A program that completes under these rules also
completes, with the same pairs of messages, on every channel that keeps the order of messages between two ranks: one
NCCL stream per pair or per rank, gloo's buffers, transfers that overlap computation. (By induction along the strict
run: its next instruction is never delayed by anything but itself.) The executor's channels are of this kind. The check
refuses a program in which two ranks both first send and then receive, which buffers would allow; lowering never makes
such a program.

Complete means: every block of every micro-batch runs once on each of its devices and nowhere else, so every gradient
contribution is counted once; on its rank, everything it waits for has run or was received before; the passes of a stage
are in order (F, then I, then W); every SEND has a RECV with the same content; nothing is received twice or without a
reader. A block on several devices starts only when all of them have reached it, so the ranks of a group enter its
collectives in one order; otherwise they are refused as a deadlock.

A rank with lanes runs its list in several concurrent queues (:mod:`weft.runtime.plan.lanes`), each in the order of the
list; a queue waits only for instructions that are earlier in the list. So the strict run, which takes the list as one
queue, is also a run of the queues, and the same induction holds: a list that completes strictly completes in queues.

Every gradient is summed once: each group of parameters has one REDUCE on each of its ranks, after the last pass there
that adds to it, and so before the optimizer's step, which follows all instructions. A REDUCE also starts only when all
its ranks have reached it. Replicas of a plan need no further proof: all run the same program, so a strict run of one is
a strict run of all in lockstep, and a rank and its counterparts sum in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NoReturn

from weft.runtime.plan.program import Instruction, Program, ProgramError, Recv, Reduce, Send, Vocabulary, Work
from weft.solver.problem import Problem
from weft.solver.problem.rounds import Rounds

GRID_REACH = 3  # number of steps before and after the fault that an error shows
RANK_REACH = 4  # the same for ranks


def check_program(program: Program, problem: Problem, micro_batches: int,
                  groups: Mapping[tuple[int, ...], tuple[int, ...]] | None = None,
                  rounds: Rounds | None = None, *, buffered: bool = False) -> None:
    """Raise :class:`ProgramError`, with the rank x step grid around the fault, unless ``program`` is complete and
    free of deadlock for ``micro_batches`` micro-batches of ``problem``.

    ``groups``: the sets of stages whose gradients are summed, with their ranks
    (:meth:`~weft.runtime.plan.stage_graph.StageGraph.parameter_groups`); default: none. ``rounds``: if given, the
    problem's micro-batches are these rounds. ``buffered``: a SEND does not wait, as on buffered channels; default: the
    strictest rules.
    """
    pools = sum(device.lane_of is None for device in problem.devices)
    if len(program.ranks) != pools:
        raise ProgramError(f"the program has {len(program.ranks)} ranks for {pools} devices"
                           + " that are no lanes" * problem.has_lanes)
    _StrictRun(program, Vocabulary(problem, rounds), micro_batches, groups or {}, buffered).run()


def grid(program: Program, steps: Sequence[int], fault: int) -> str:
    """A text with the instructions of ``program`` around each rank's current one (``steps``), and an arrow after rank
    ``fault``; with many ranks, only those near it."""
    first = max(0, min(fault - RANK_REACH, len(steps) - 2 * RANK_REACH - 1))
    shown = range(first, min(len(steps), first + 2 * RANK_REACH + 1))
    windows = {}
    for rank in shown:
        own, step = program.ranks[rank], steps[rank]
        cells = [str(own[i]) if 0 <= i < len(own) else "" for i in range(step - GRID_REACH, step + GRID_REACH + 1)]
        cells[GRID_REACH] = f"[{cells[GRID_REACH] or 'end'}]"
        windows[rank] = cells
    widths = [max(len(cells[i]) for cells in windows.values()) for i in range(2 * GRID_REACH + 1)]
    lines = []
    for rank, cells in windows.items():
        text = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        marker = "  <-- here" if rank == fault else ""
        lines.append(f"  rank {rank}, step {steps[rank]:>4}:  {text}".rstrip() + marker)
    if len(shown) < len(steps):
        lines.append(f"  ({len(steps) - len(shown)} more ranks)")
    return "\n".join(lines)


class _StrictRun:
    """Runs a program under the strictest rules. ``step``: each rank's position. ``held``: its available results."""

    def __init__(self, program: Program, vocabulary: Vocabulary, micro_batches: int,
                 groups: Mapping[tuple[int, ...], tuple[int, ...]], buffered: bool) -> None:
        self.program, self.micro_batches, self.groups = program, micro_batches, groups
        self.sent: dict[tuple[int, int], list[Work]] | None = defaultdict(list) if buffered else None
        self.vocabulary, self.problem = vocabulary, vocabulary.problem
        problem = vocabulary.problem
        self.step = [0] * len(program.ranks)
        self.held: list[set[tuple[int, int]]] = [set() for _ in program.ranks]
        self.unused: list[dict[tuple[int, int], int]] = [{} for _ in program.ranks]  # received -> step of its RECV
        self.computed: list[set[tuple[int, int]]] = [set() for _ in program.ranks]
        self.reduced: list[set[tuple[int, ...]]] = [set() for _ in program.ranks]
        self.waited: list[tuple[tuple[int, int], ...]] = [
            tuple(dict.fromkeys((problem.index[d.block], d.distance) for d in block.after)) for block in problem.blocks]

    def run(self) -> None:
        moved = set(range(len(self.step)))
        while moved:  # only the partners of a rank that advanced may be able to advance now
            rank = moved.pop()
            while (partners := self._advance(rank)) is not None:
                moved.update(partners)
        for rank in range(len(self.step)):
            if self._current(rank) is not None:
                self._refuse_deadlock(rank)
        self._require_complete()

    def _current(self, rank: int) -> Instruction | None:
        own = self.program.ranks[rank]
        return own[self.step[rank]] if self.step[rank] < len(own) else None

    def _advance(self, rank: int) -> tuple[int, ...] | None:
        """Run the current instruction of ``rank``; returns the other ranks that advanced with it, ``None`` if it must
        wait."""
        instruction = self._current(rank)
        if instruction is None:
            return None
        if isinstance(instruction, (Send, Recv)):
            return self._transfer(rank, instruction)
        if isinstance(instruction, Reduce):
            return self._reduce(rank, instruction)
        return self._compute(rank, instruction)

    def _compute(self, rank: int, work: Work) -> tuple[int, ...] | None:
        key = self._key(rank, work)
        ranks = self.vocabulary.ranks.of_block(key[0])
        if rank not in ranks:
            name = self.problem.blocks[key[0]].name
            self._refuse(rank, f"{work} runs on rank {rank}, but its block {name!r} belongs on "
                               + " and ".join(map(str, ranks)))
        self._require_ready(rank, key, work)
        if any(self._current(other) != work for other in ranks):
            return None  # a block on several ranks starts when all of them have reached it
        for other in ranks:
            if other != rank:  # it may have arrived here by a message, without this check
                self._require_ready(other, key, work)
        for other in ranks:
            self.computed[other].add(key)
            self.held[other].add(key)
            for producer, distance in self.waited[key[0]]:
                self.unused[other].pop((producer, key[1] - distance), None)
            self.step[other] += 1
        return tuple(other for other in ranks if other != rank)

    def _require_ready(self, rank: int, key: tuple[int, int], work: Work) -> None:
        if key in self.computed[rank]:
            self._refuse(rank, f"{work} runs twice on rank {rank}")
        for producer, distance in self.waited[key[0]]:
            needed = producer, key[1] - distance
            if needed[1] >= 0 and needed not in self.held[rank]:
                self._refuse(rank, f"{work} needs the result of {self.vocabulary.work(*needed)}, which rank {rank} "
                                   "has neither computed nor received by then")
        self._require_stage_order(rank, key, work)

    def _require_stage_order(self, rank: int, key: tuple[int, int], work: Work) -> None:
        graph = self.vocabulary.graph
        if graph is None:
            return
        for block in graph.stages[graph.pass_of[key[0]][0]].order:
            if block == key[0]:
                return
            if (block, key[1]) not in self.computed[rank]:
                self._refuse(rank, f"{work} runs before {self.vocabulary.work(block, key[1])} of its stage")

    def _reduce(self, rank: int, instruction: Reduce) -> tuple[int, ...] | None:
        stages = instruction.stages
        if rank not in self.groups.get(stages, ()):
            expected = ", ".join(str(Reduce(group)) for group, ranks in self.groups.items() if rank in ranks)
            self._refuse(rank, f"{instruction} on rank {rank} sums gradients that it does not have; it has "
                               f"{expected or 'none to sum'}")
        self._require_all_added(rank, instruction)
        ranks = self.groups[stages]
        if any(self._current(other) != instruction for other in ranks):
            return None
        for other in ranks:
            if other != rank:
                self._require_all_added(other, instruction)
        for other in ranks:
            self.reduced[other].add(stages)
            self.step[other] += 1
        return tuple(other for other in ranks if other != rank)

    def _require_all_added(self, rank: int, instruction: Reduce) -> None:
        if instruction.stages in self.reduced[rank]:
            self._refuse(rank, f"{instruction} runs twice on rank {rank}: gradients would be summed again")
        assert self.vocabulary.graph is not None  # otherwise there are no groups
        for block in self.vocabulary.graph.contributions(instruction.stages):
            if rank not in self.problem.blocks[block].devices:
                continue
            for micro_batch in range(self.micro_batches):
                if (block, micro_batch) not in self.computed[rank]:
                    work = self.vocabulary.work(block, micro_batch)
                    self._refuse(rank, f"{instruction} on rank {rank} comes before {work}, whose gradient it would miss"
                                 if work in self.program.ranks[rank] else f"rank {rank} never runs {work}")

    def _transfer(self, rank: int, instruction: Send | Recv) -> tuple[int, ...] | None:
        what, peer = instruction.what, instruction.peer
        key = self._key(rank, what)
        if peer == rank or not 0 <= peer < len(self.step):
            self._refuse(rank, f"{instruction} on rank {rank} names rank {peer} as its peer, it must be another of the "
                               f"ranks 0 to {len(self.step) - 1}")
        if isinstance(instruction, Send) and key not in self.held[rank]:
            self._refuse(rank, f"{instruction}: rank {rank} has not computed {what} by then")
        if isinstance(instruction, Recv) and key in self.held[rank]:
            self._refuse(rank, f"{instruction}: rank {rank} already has the result of {what}")
        if self.sent is not None:
            return self._buffered(rank, instruction, self.sent)
        other = self._current(peer)
        matching = Recv(what, rank) if isinstance(instruction, Send) else Send(what, rank)
        if isinstance(other, (Send, Recv)) and other.peer == rank and other != matching:
            self._refuse(rank, f"ranks {rank} and {peer} do not see their messages in the same order: {instruction} "
                               f"on rank {rank} meets {other} on rank {peer}")
        if other != matching:
            return None
        receiver = peer if isinstance(instruction, Send) else rank
        if key in self.held[receiver]:
            self._refuse(receiver, f"{self._current(receiver)}: rank {receiver} already has the result of {what}")
        if receiver == rank and key not in self.held[peer]:
            self._refuse(peer, f"{other}: rank {peer} has not computed {what} by then")
        self.held[receiver].add(key)
        self.unused[receiver][key] = self.step[receiver]
        self.step[rank] += 1
        self.step[peer] += 1
        return (peer,)

    def _buffered(self, rank: int, instruction: Send | Recv, sent: dict[tuple[int, int], list[Work]]
                  ) -> tuple[int, ...] | None:
        """As :meth:`_transfer`, but messages of a pair are queued until they are received."""
        if isinstance(instruction, Send):
            sent[rank, instruction.peer].append(instruction.what)
        elif not (queue := sent[instruction.peer, rank]):
            return None
        elif (first := queue.pop(0)) != instruction.what:
            self._refuse(rank, f"{instruction} on rank {rank} meets the result of {first}")
        else:
            self.held[rank].add(key := self._key(rank, first))
            self.unused[rank][key] = self.step[rank]
        self.step[rank] += 1
        return (instruction.peer,)

    def _key(self, rank: int, work: Work) -> tuple[int, int]:
        key = self.vocabulary.key(work)
        if key is None:
            self._refuse(rank, f"{work} names nothing that the problem {self.problem.name!r} has")
        if key[1] >= self.micro_batches:
            count = self.vocabulary.count(work, self.micro_batches)
            self._refuse(rank, f"{work} names micro-batch {work.micro_batch}, but there are {count} (0 to {count - 1})")
        return key

    def _require_complete(self) -> None:
        for (rank, peer), left in (self.sent or {}).items():
            if left:
                self._refuse(rank, f"rank {peer} never receives the result of {left[0]} from rank {rank}")
        for rank in range(len(self.step)):
            blocks = self.vocabulary.ranks.blocks_on(rank)
            for micro_batch in range(self.micro_batches):
                for block in blocks:
                    if (block, micro_batch) not in self.computed[rank]:
                        self._refuse(rank, f"rank {rank} never runs {self.vocabulary.work(block, micro_batch)}")
            for key, step in self.unused[rank].items():
                self.step[rank] = step
                self._refuse(rank, f"rank {rank} receives the result of {self.vocabulary.work(*key)} and never uses it")
        for stages, ranks in self.groups.items():
            for rank in ranks:
                if stages not in self.reduced[rank]:
                    self._refuse(rank, f"rank {rank} never runs {Reduce(stages)}: gradients would not be summed")

    def _refuse_deadlock(self, rank: int) -> None:
        current = [self._current(r) for r in range(len(self.step))]
        waiting = [f"rank {r} is at its end" if at is None else f"rank {r} waits at {at}"
                   for r, at in enumerate(current)]
        self._refuse(rank, "the ranks wait for each other and none can go on: " + ", ".join(waiting))

    def _refuse(self, rank: int, sentence: str) -> NoReturn:
        raise ProgramError(f"{sentence}\n{grid(self.program, self.step, rank)}")
