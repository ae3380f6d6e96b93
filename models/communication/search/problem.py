"""A program and its prices as a wide problem: which passes are taken and in how many chunks are choices of one solve.

One device stands for what all ranks of a pipeline group compute, as they all do the same; a lane of it for their
collectives, another for what they send to the next group. Every program that the passes reach is an option of the
choice ``variant``, once for each chain of its stages that may run in chunks: in as many as the choice ``chunks`` says,
or whole where that number divides nothing. A stage in n chunks takes 1/n in each, and its launch besides.

*What is left out.* :func:`~weft.models.communication.search.blocks.least` says what a variant in n chunks takes at
least, :func:`~weft.models.communication.search.blocks.listed` what an order of it takes. Where the first is no less
than the second of another, no schedule with it is better than the best of all: it is left out before the search, and
the bound proven over what is left holds over all. A variant's load at one chunk is its least at any: more chunks launch
more.

One solve for transformation, chunks and order: what to run of all that the passes reach, with a proven bound.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Unpack

from weft.models.communication.prices import Engine, Prices, require_named, work_of
from weft.models.communication.program import CommunicationError, CommunicationProgram
from weft.models.communication.search.blocks import UNIT, blocks_of, engines_of, least, listed
from weft.models.communication.search.chains import Chain, chain_sets, in_chunks, titles
from weft.models.communication.search.schedules import ProgramSchedule, schedules
from weft.solver.control.clock import is_over, watching
from weft.solver.problem import Device
from weft.solver.wide.block import Options, WideBlock
from weft.solver.wide.problem import WideProblem

if TYPE_CHECKING:
    from weft.solver.schedule import Schedule as Found
    from weft.solver.step.search import Limits

#: The names of the choices.
VARIANT, CHUNKS = "variant", "chunks"


@dataclass(frozen=True)
class Choices:
    """``problem`` in microseconds, and what its options mean: the schedule of each variant, the chains that it runs in
    chunks. Where one variant or one number is left, there is no choice of it. ``tried``: how many programs there were;
    ``complete``: whether these are all that the passes reach but for other ways to fuse, ``every_fusion``: whether
    every legal way to fuse is among them; both hold of programs that are given."""

    problem: WideProblem
    variants: Mapping[str, ProgramSchedule]
    chains: Mapping[str, tuple[Chain, ...]]
    counts: tuple[int, ...]
    tried: int
    complete: bool
    every_fusion: bool = True

    def variant(self, taken: Options) -> str:
        """The variant that the options ``taken`` mean."""
        return taken.get(VARIANT, next(iter(self.variants)))

    def chosen(self, taken: Options) -> CommunicationProgram:
        """The program of the options ``taken``, its chains in chunks."""
        name = self.variant(taken)
        return in_chunks(self.variants[name].program, self.chains[name], int(taken.get(CHUNKS, self.counts[0])))


def choices_of(program: CommunicationProgram, prices: Prices, counts: Sequence[int] = (1, 2, 4, 8, 16), *,
               variants: Sequence[ProgramSchedule] | None = None, limit: int = 1024, held: int | None = None,
               every_chain: bool = True, leave_out: bool = True) -> Choices:
    """The wide problem of one run of ``program``, with the choices :data:`VARIANT` and :data:`CHUNKS`.

    ``variants``: the programs to choose among, all that the passes reach (at most ``limit``) unless given. ``held``:
    the bytes of weights and states that a rank may hold; variants that hold more are none. ``every_chain``: each
    chain of a variant is one of its own, otherwise only the longest with those that fit beside it. ``leave_out``:
    variants and numbers go that cannot be better than what is left. Where time is over
    (:mod:`weft.solver.control.clock`) the variants listed and priced so far serve, at least one, and ``complete`` is
    false.

    Raises :class:`~weft.models.communication.program.CommunicationError` for counts that are none, below 1 or there
    twice, for a matmul without a price, for seconds of a stage that computes nothing or is not there, where every
    variant holds more than ``held``, and where none takes any time.
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

    def _blocks(self, entry: ProgramSchedule, chains: tuple[Chain, ...], count: int, when: Options) -> list[WideBlock]:
        return blocks_of(in_chunks(entry.program, chains, count), self.prices, self.written, self.index, when)

    def choices(self, engines: Sequence[Engine], leave_out: bool, tried: int, complete: bool) -> Choices:
        """Those that may be best, and one that is listed as such."""
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
        problem = WideProblem(self.written.name, _devices(engines), tuple(blocks), time_unit="us",
                              choices={choice: found for choice, found in options.items() if len(found) > 1})
        return Choices(problem, {name: entry.entry for name, entry in zip(names, kept, strict=True)},
                       {name: entry.chains for name, entry in zip(names, kept, strict=True)}, counts, tried, complete)


def _engines(variants: Sequence[ProgramSchedule], prices: Prices, written: CommunicationProgram) -> list[Engine]:
    """All engines, those that compute first: every group has one, whose lanes the others are."""
    found = {engine for entry in variants for engine in engines_of(entry.program, prices, written)}
    found |= {("compute", group) for _, group in found}
    return sorted(found, key=lambda engine: (engine[0] != "compute", engine[1], engine[0]))


def _devices(engines: Sequence[Engine]) -> tuple[Device, ...]:
    return tuple(Device(f"group {group}" if kind == "compute" else f"{kind} {group}",
                        lane_of=None if kind == "compute" else f"group {group}") for kind, group in engines)


def _held(program: CommunicationProgram) -> int:
    return program.state_bytes(("parameter", "state"))


#: What listing the programs may take of the time limit.
_LISTING = 0.4


@dataclass(frozen=True)
class Tuned:
    """``program``: what was chosen, its chains in chunks; ``variant``: its title, ``passes``: what leads to it;
    ``chunks``: of its ``chains``, 1 where it runs whole. ``schedule`` is judged, its makespan in microseconds and its
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
        """The longest of its chains; none where it runs whole."""
        return self.chains[0] if self.chains else ()

    @property
    def microseconds(self) -> float:
        """How long a run takes."""
        return float(self.schedule.makespan)

    @property
    def bound(self) -> float:
        """No run of the variants that were tried, in these numbers of chunks, takes less."""
        return float(self.schedule.makespan_bound)

    @property
    def proven(self) -> bool:
        """Whether nothing among the choices is shorter."""
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
    """The best of the programs that the passes reach from ``program``, in the best of ``counts`` of chunks.

    The arguments are those of :func:`~weft.models.communication.search.problem.choices_of`; ``limits`` those of
    :func:`~weft.solver.choices.solve.solve_wide` (``time_limit``, ``effort``, ``seed`` ...). ``time_limit`` (60 s) is
    one for all: listing the programs takes at most two fifths of it where no ``effort`` is given, and where it stops
    early ``choices.complete`` is false. Past the limit there is only what one program takes to price, and the answer
    to judge. Raises what these do.
    """
    from weft.solver.choices.solve import solve_wide  # loads OR-Tools

    began, limit_s = time.monotonic(), limits.get("time_limit", 60.0)
    listed_by = began + limit_s * (_LISTING if limits.get("effort") is None else 1.0)
    with watching(lambda: time.monotonic() >= listed_by):
        choices = choices_of(program, prices, counts, variants=variants, limit=limit, held=held,
                             every_chain=every_chain, leave_out=leave_out)
    limits["time_limit"] = max(1e-3, limit_s - (time.monotonic() - began))
    schedule = solve_wide(choices.problem, 1, **limits)
    taken = schedule.choices or {}
    name, chosen = choices.variant(taken), choices.chosen(taken)
    chunks = chosen.overlaps[0].chunks if chosen.overlaps else 1
    return Tuned(chosen, name, choices.variants[name].passes, chunks,
                 tuple(overlap.stages for overlap in chosen.overlaps), schedule, choices)
