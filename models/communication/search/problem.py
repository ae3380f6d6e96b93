"""A program and its prices as one problem: passes and numbers of chunks are choices of one solve.

One device represents the computation of all ranks of a pipeline group, as they all do the same; one of its lanes
represents their collectives, another their sends to the next group. Every program reachable by the passes is an option
of the choice ``variant``, once for each chain of its stages that may run in chunks: their number is the choice
``chunks``, or the chain stays whole if that number divides nothing. A stage in n chunks takes 1/n in each, plus its
launch.

*Pruning.* :func:`~weft.models.communication.search.chains.least` is a lower bound on a variant in n chunks,
:func:`~weft.models.communication.search.chains.listed` the time of one of its orders. If the first is no less than the
second of another variant, no schedule with it is better than the best of all: it is left out before the search, and the
bound proven over the rest holds over all. A variant's load at one chunk is its least at any number: more chunks mean
more launches.

One solve for transformation, chunks and order: the best of all programs reachable by the passes, with a proven bound.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Unpack

from weft.models.communication.prices import Engine, Prices, require_named, work_of
from weft.models.communication.program import CommunicationError, CommunicationProgram
from weft.models.communication.search.chains import (
    UNIT,
    Chain,
    ProgramBlocks,
    chain_sets,
    in_chunks,
    least,
    listed,
    titles,
)
from weft.models.communication.search.schedules import ProgramSchedule, schedules
from weft.solver.control.clock import is_over, watching
from weft.solver.problem import Block, Device, Options, Problem

if TYPE_CHECKING:
    from weft.solver.schedule import Schedule as Found
    from weft.solver.step.search import Limits

#: The names of the choices.
VARIANT, CHUNKS = "variant", "chunks"


@dataclass(frozen=True)
class Choices:
    """``problem`` in microseconds, and the meaning of its options: the schedule of each variant, its chains in chunks.
    If one variant or one number is left, it is not a choice. ``tried``: the number of programs; ``complete``: whether
    these are all reachable programs except for other fusions, ``every_fusion``: whether every legal fusion is included;
    both are true for given programs."""

    problem: Problem
    variants: Mapping[str, ProgramSchedule]
    chains: Mapping[str, tuple[Chain, ...]]
    counts: tuple[int, ...]
    tried: int
    complete: bool
    every_fusion: bool = True

    def variant(self, taken: Options) -> str:
        """The variant of the options ``taken``."""
        return taken.get(VARIANT, next(iter(self.variants)))

    def chosen(self, taken: Options) -> CommunicationProgram:
        """The program of the options ``taken``, its chains in chunks."""
        name = self.variant(taken)
        return in_chunks(self.variants[name].program, self.chains[name], int(taken.get(CHUNKS, self.counts[0])))


def choices_of(program: CommunicationProgram, prices: Prices, counts: Sequence[int] = (1, 2, 4, 8, 16), *,
               variants: Sequence[ProgramSchedule] | None = None, limit: int = 1024, held: int | None = None,
               every_chain: bool = True, leave_out: bool = True) -> Choices:
    """The problem of one run of ``program``, with the choices :data:`VARIANT` and :data:`CHUNKS`.

    ``variants``: the candidate programs, by default all reachable ones (at most ``limit``). ``held``: the limit on a
    rank's bytes of weights and states; variants above it are excluded. ``every_chain``: each chain is a separate
    variant, otherwise only the longest with the compatible ones. ``leave_out``: prune variants and numbers that cannot
    be better than the rest. If time is over (:mod:`weft.solver.control.clock`), the variants listed and priced so far
    are used, at least one, and ``complete`` is false.

    Raises :class:`~weft.models.communication.program.CommunicationError` for missing, nonpositive or duplicate counts,
    for a matmul without a price, for seconds of a stage that computes nothing or does not exist, if every variant
    exceeds ``held``, and if none takes any time.
    """
    if not counts or len(set(counts)) < len(counts) or not all(
            isinstance(count, int) and count >= 1 for count in counts):
        raise CommunicationError(f"chunks: {', '.join(map(str, counts)) or 'nothing'} must be numbers of at least 1, "
                                 "each once")
    require_named(program, prices)
    complete = every_fusion = True
    if variants is None:
        reached = schedules(program, limit)
        variants, complete, every_fusion = reached.schedules, reached.complete, reached.every_fusion
    fitting = [entry for entry in variants if held is None or _held(entry.program) <= held]
    if not fitting:
        every = "every variant" if complete else f"each of the {len(variants)} variants listed (there are more)"
        raise CommunicationError(f"held: {every} holds more than {held} bytes on each rank, the least "
                                 f"{min((_held(entry.program) for entry in variants), default=0)}")
    engines = _engines(fitting, prices, program)
    found = _Candidates(program, prices, tuple(counts), {engine: i for i, engine in enumerate(engines)})
    tried = len(fitting)
    for number, entry in enumerate(sorted(fitting, key=lambda entry: found.load(entry.program))):
        if leave_out and found.load(entry.program) >= found.best:
            break
        if found.all and is_over():  # the bound holds over those before it
            tried, complete = number, False
            break
        found.add(entry, every_chain)
    return replace(found.choices(engines, leave_out, tried, complete), every_fusion=every_fusion)


@dataclass
class _Candidate:
    """A program, its chains, and its least and listed times by the number of chunks."""

    entry: ProgramSchedule
    chains: tuple[Chain, ...]
    times: dict[int, tuple[float, float]]


@dataclass
class _Candidates:
    """``best``: the shortest time listed of all."""

    written: CommunicationProgram
    prices: Prices
    counts: tuple[int, ...]
    index: Mapping[Engine, int]
    best: float = float("inf")
    all: list[_Candidate] = field(default_factory=list)

    def load(self, program: CommunicationProgram) -> float:
        """Microseconds of the busiest engine with one chunk."""
        loads: dict[Engine, float] = {}
        for stage in program.stages:
            for work in work_of(program, stage, self.prices, self.written):
                for engine in work.engines:
                    loads[engine] = loads.get(engine, 0.0) + work.seconds + work.launch
        return max(loads.values(), default=0.0) * UNIT

    def add(self, entry: ProgramSchedule, every_chain: bool) -> None:
        for chains in chain_sets(entry.program, self.prices, self.written, every=every_chain):
            times = {}
            for count in self.counts:
                blocks = self._blocks(entry, chains, count, {})
                if not blocks:
                    raise CommunicationError(f"prices: nothing of {self.written.name!r} takes any time")
                times[count] = least(blocks), listed(blocks)
            self.best = min(self.best, *(end for _, end in times.values()))
            self.all.append(_Candidate(entry, chains, times))

    def _blocks(self, entry: ProgramSchedule, chains: tuple[Chain, ...], count: int, when: Options) -> list[Block]:
        return ProgramBlocks(in_chunks(entry.program, chains, count), self.prices, self.written, self.index, when).all()

    def choices(self, engines: Sequence[Engine], leave_out: bool, tried: int, complete: bool) -> Choices:
        """The candidates that may be best, including the one with the best listed time."""
        one, often = next((entry, count) for entry in self.all for count, (_, end) in entry.times.items()
                          if end == self.best)
        may = [(entry, count) for entry in self.all for count, (low, _) in entry.times.items()
               if not leave_out or low < self.best or (entry is one and count == often)]
        kept = [entry for entry in self.all if any(entry is other for other, _ in may)]
        counts = tuple(count for count in self.counts if any(count == other for _, other in may))
        names = titles([candidate.entry.program for candidate in kept])
        blocks = [block for name, candidate in zip(names, kept, strict=True) for count in counts
                  for block in self._blocks(candidate.entry, candidate.chains, count,
                                            {**({VARIANT: name} if len(names) > 1 else {}),
                                             **({CHUNKS: str(count)} if len(counts) > 1 else {})})]
        options = {VARIANT: tuple(names), CHUNKS: tuple(map(str, counts))}
        problem = Problem(self.written.name, _devices(engines), tuple(blocks), time_unit="us",
                          choices={choice: found for choice, found in options.items() if len(found) > 1})
        return Choices(problem, {name: entry.entry for name, entry in zip(names, kept, strict=True)},
                       {name: entry.chains for name, entry in zip(names, kept, strict=True)}, counts, tried, complete)


def _engines(variants: Sequence[ProgramSchedule], prices: Prices, written: CommunicationProgram) -> list[Engine]:
    """All engines, compute engines first: every group has one, and the others are its lanes."""
    found = {engine for entry in variants for stage in entry.program.stages
             for work in work_of(entry.program, stage, prices, written) for engine in work.engines}
    found |= {("compute", group) for _, group in found}
    return sorted(found, key=lambda engine: (engine[0] != "compute", engine[1], engine[0]))


def _devices(engines: Sequence[Engine]) -> tuple[Device, ...]:
    return tuple(Device(f"group {group}" if kind == "compute" else f"{kind} {group}",
                        lane_of=None if kind == "compute" else f"group {group}") for kind, group in engines)


def _held(program: CommunicationProgram) -> int:
    return program.state_bytes(("parameter", "state"))


#: The share of the time limit for listing the programs.
_LISTING = 0.4


@dataclass(frozen=True)
class Tuned:
    """``program``: the choice, with its chains in chunks; ``variant``: its title, ``passes``: the passes that lead to
    it; ``chunks``: of its ``chains``, 1 if they run whole. ``schedule`` is judged, its makespan in microseconds and its
    bound proven over all ``choices``."""

    program: CommunicationProgram
    variant: str
    passes: tuple[str, ...]
    chunks: int
    chains: tuple[tuple[str, ...], ...]
    schedule: Found
    choices: Choices

    @property
    def chain(self) -> tuple[str, ...]:
        """The longest of its chains; none if it runs whole."""
        return self.chains[0] if self.chains else ()

    @property
    def microseconds(self) -> float:
        """The time of a run."""
        return float(self.schedule.makespan)

    @property
    def bound(self) -> float:
        """A lower bound on runs of the variants tried, in these numbers of chunks."""
        return float(self.schedule.makespan_bound)

    @property
    def proven(self) -> bool:
        """Whether it is proven the shortest among the choices."""
        return self.microseconds <= self.bound * (1 + 1e-9)

    def __str__(self) -> str:
        rows = " and ".join(" -> ".join(chain) for chain in self.chains)
        whole = f", {rows} in {self.chunks} chunks" if self.chains else ""
        more = ("" if self.choices.complete and self.choices.every_fusion else " (there are more)"
                if not self.choices.complete else " (not every way to fuse them is among these)")
        of = f"{self.choices.tried} program{'s' * (self.choices.tried != 1)}{more}"
        sure = "proven best" if self.proven else f"nothing is below {self.bound:.6g} us"
        return f"{self.variant}{whole}: {self.microseconds:.6g} us, {sure} of {of}"


def tune(program: CommunicationProgram, prices: Prices, counts: Sequence[int] = (1, 2, 4, 8, 16), *,
         variants: Sequence[ProgramSchedule] | None = None, limit: int = 1024, held: int | None = None,
         every_chain: bool = True, leave_out: bool = True, **limits: Unpack[Limits]) -> Tuned:
    """The best program reachable by the passes from ``program``, in the best of ``counts`` of chunks.

    The arguments are those of :func:`~weft.models.communication.search.problem.choices_of`; ``limits`` those of
    :func:`~weft.solver.choices.solve.solve_run` (``time_limit``, ``effort``, ``seed`` ...). ``time_limit`` (60 s)
    covers everything: listing the programs takes at most two fifths of it if no ``effort`` is given, and if it stops
    early ``choices.complete`` is false. Only pricing one program and judging the answer may exceed the limit. Raises
    the exceptions of these functions.
    """
    from weft.solver.choices.solve import solve_run  # loads OR-Tools

    began, limit_s = time.monotonic(), limits.get("time_limit", 60.0)
    listed_by = began + limit_s * (_LISTING if limits.get("effort") is None else 1.0)
    with watching(lambda: time.monotonic() >= listed_by):
        choices = choices_of(program, prices, counts, variants=variants, limit=limit, held=held,
                             every_chain=every_chain, leave_out=leave_out)
    limits["time_limit"] = max(1e-3, limit_s - (time.monotonic() - began))
    schedule = solve_run(choices.problem, 1, **limits)
    taken = schedule.choices or {}
    name, chosen = choices.variant(taken), choices.chosen(taken)
    chunks = chosen.overlaps[0].chunks if chosen.overlaps else 1
    return Tuned(chosen, name, choices.variants[name].passes, chunks,
                 tuple(overlap.stages for overlap in chosen.overlaps), schedule, choices)
