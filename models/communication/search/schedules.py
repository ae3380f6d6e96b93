"""The autotuner's space: every program reachable by the passes, each with its stages fused in several ways.

After CoCoNet's autotuner, which applies legal passes until no new program results. Fusing is legal for any convex set
of stages, including products and independent collectives, so only for small programs are all fusions tried; for larger
ones those named in :data:`_STYLES`. Chunks are not included: their number is a choice of the problem
(:mod:`weft.models.communication.search.problem`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft.models.communication.passes.fuse import fuse, require_fusable
from weft.models.communication.passes.reorder import reorder
from weft.models.communication.passes.split import as_slice, split
from weft.models.communication.program import CommunicationError, CommunicationProgram, ProgramStage
from weft.models.communication.rebuilding import attempted
from weft.solver.control.clock import is_over

#: Kinds that a custom kernel computes element by element; and a norm, which sums over elements.
_FUSED = ("pointwise", "norm", "dropout", "cast", "update", "slice")
#: By name, the kinds fused with them.
_STYLES: Mapping[str, tuple[str, ...]] = {
    "fused": (), "fused with gathers": ("all_gather", "send"),
    "fused with collectives": ("reduce_scatter", "all_gather", "send")}
#: Including products, and sums over the ranks.
_WIDER: Mapping[str, tuple[str, ...]] = {
    "fused with all collectives": ("all_reduce", "reduce_scatter", "all_gather", "send"),
    "fused with products": ("matmul", "all_reduce", "reduce_scatter", "all_gather", "send")}
#: Collectives that one launch may run for several tensors.
_JOINED = ("all_reduce", "reduce_scatter", "all_gather")
#: For programs of at most this many stages every fusion is tried: there are up to 52.
_EVERY_WAY = 5
#: Number of additional programs with fusions other than :data:`_STYLES`, those of few passes first.
_OTHERWISE = 128


@dataclass(frozen=True)
class ProgramSchedule:
    """A program and the passes that lead to it, in words: ``split gradient``, ``fused`` ..."""

    program: CommunicationProgram
    passes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The passes; for the program as written, ``as written``."""
        return ", ".join(self.passes) or "as written"


@dataclass(frozen=True)
class Reached:
    """``schedules``, the one as written first; ``complete``: whether these are all reachable programs except for other
    fusions, or the ``limit`` was met; ``every_fusion``: whether every legal fusion of them is included."""

    schedules: tuple[ProgramSchedule, ...]
    limit: int
    complete: bool
    every_fusion: bool = False

    def __str__(self) -> str:
        count = len(self.schedules)
        if not self.complete:
            return f"{count} programs, the limit: there are more"
        return f"{count} programs" + ("" if self.every_fusion else ", not every way to fuse them")


def schedules(program: CommunicationProgram, limit: int = 1024) -> Reached:
    """The programs reachable by split, reorder, as_slice and fuse from ``program``, at most ``limit``, without
    duplicates; and up to 128 with other fusions.

    A split uses the axis along which most of the following stages can be moved before the gather. Stages are moved one
    by one. Each resulting program has up to four versions: its stages unchanged, its pointwise parts fused, these fused
    with adjacent gathers and sends, and with the reduce-scatters as well. They are ordered by the number of passes; if
    there are more than ``limit``, or time is over (:mod:`weft.solver.control.clock`), those found depth-first. Then
    these, those of few passes first, with all collectives and products fused as well, with independent collectives of a
    kind as one stage, with all stages as one, and if there are few stages, in every legal way.
    """
    if limit < 1:
        raise CommunicationError(f"schedules: limit is {limit}, at least the program as it is written is one")
    seen = {_key(program)}
    found: list[ProgramSchedule] = []
    rest = [ProgramSchedule(program, ())]
    bases: list[ProgramSchedule] = []

    def unseen(entries: Iterable[ProgramSchedule]) -> Iterator[ProgramSchedule]:
        for entry in entries:
            key = _key(entry.program)
            if key not in seen:
                seen.add(key)
                yield entry

    while rest and len(found) < limit and not (found and is_over()):
        at = rest.pop()
        found.append(at)
        bases.append(at)
        found += unseen(_fusings(at))
        rest += reversed(list(unseen(_moves(at))))
    kept = sorted(found[:limit], key=lambda entry: len(entry.passes))
    complete = not rest and len(found) <= limit
    every_fusion = complete and all(len(at.program.stages) <= _EVERY_WAY for at in bases)
    others: list[ProgramSchedule] = []
    bases.sort(key=lambda entry: len(entry.passes))
    for made in unseen(made for at in bases for made in _fused_otherwise(at)):
        if len(others) == _OTHERWISE or is_over():
            every_fusion = False
            break
        others.append(made)
    return Reached((*kept, *others), limit, complete, every_fusion)


def fused_parts(program: CommunicationProgram, collectives: Collection[str] = ()) -> CommunicationProgram:
    """``program`` with its pointwise parts in as few fused stages as legal: grown along the data, a stage at a time.

    ``collectives``: the kinds fused with them, of ``reduce_scatter``, ``all_gather`` and ``send``. A send is fused with
    its receivers' work and with the computation before it, never with another group's collective.
    """
    groups: list[list[str]] = []
    for stage in program.stages:
        if stage.kind not in _FUSED and stage.kind not in collectives:
            continue
        beside = [group for group in groups if _touch(program, group, stage)]
        merged = [name for group in beside for name in group] + [stage.name]
        tries = [(beside, merged), *(([group], [*group, stage.name]) for group in beside)]
        for gone, names in tries:
            if len(names) > 1 and _legal(program, names):
                groups = [group for group in groups if group not in gone] + [names]
                break
        else:
            groups.append([stage.name])
    for group in groups:
        if len(group) > 1 and any(program.by_name[name].kind not in ("slice", "update") for name in group):
            program = attempted(fuse, program, group) or program  # two groups may wait for each other
    return program


def _touch(program: CommunicationProgram, group: Iterable[str], stage: ProgramStage) -> bool:
    """Whether the stage reads an output of the group, or shares an external input with it."""
    read = program.producer.keys() & set(stage.inputs)
    return any(read.intersection((*one.outputs, *one.inputs)) for one in map(program.by_name.__getitem__, group))


def _legal(program: CommunicationProgram, names: Collection[str]) -> bool:
    stages = [program.by_name[name] for name in names]
    sender = {program.group_of(stage) for stage in stages if stage.kind == "send"}
    if any(stage.kind in ("reduce_scatter", "all_gather") and program.group_of(stage) in sender for stage in stages):
        return False
    try:
        require_fusable(program, names)
    except CommunicationError:
        return False
    return True


def _fusings(at: ProgramSchedule, styles: Mapping[str, tuple[str, ...]] = _STYLES) -> Iterator[ProgramSchedule]:
    for word, collectives in styles.items():
        program = fused_parts(at.program, collectives)
        if program is not at.program:
            yield ProgramSchedule(program, (*at.passes, word))


def _fused_otherwise(at: ProgramSchedule) -> Iterator[ProgramSchedule]:
    """``at`` with products, several collectives, or all stages as one."""
    yield from _fusings(at, _WIDER)
    joined = _joined(at.program)
    if joined is not at.program:
        base = ProgramSchedule(joined, (*at.passes, "join collectives"))
        yield base
        yield from _fusings(base, {**_STYLES, **_WIDER})
    names = list(at.program.by_name)
    if len(names) > 1 and _legal(at.program, names):
        yield ProgramSchedule(fuse(at.program, names), (*at.passes, "fuse all"))
    if len(names) <= _EVERY_WAY:
        yield from _every_fusing(at)


def _joined(program: CommunicationProgram) -> CommunicationProgram:
    """``program`` with the collectives of each kind that do not wait for each other as one stage."""
    for kind in _JOINED:
        group: list[str] = []
        for stage in program.stages:
            if stage.kind == kind and (not group or (_legal(program, [*group, stage.name])
                                                     and not _touch(program, group, stage))):
                group.append(stage.name)
        if len(group) > 1:
            program = fuse(program, group)
    return program


def _every_fusing(at: ProgramSchedule) -> Iterator[ProgramSchedule]:
    """Every legal fusion of the stages."""
    for groups in _divisions(list(at.program.by_name)):
        program, words = at.program, []
        try:
            for group in groups:
                if len(group) > 1:
                    program = fuse(program, group)
                    words.append(f"fuse {' + '.join(group)}")
        except CommunicationError:
            continue
        if words:
            yield ProgramSchedule(program, (*at.passes, *words))


def _divisions(names: Sequence[str]) -> Iterator[list[list[str]]]:
    """All ways to divide ``names`` into groups."""
    if not names:
        yield []
        return
    for groups in _divisions(names[:-1]):
        yield [*groups, [names[-1]]]
        for place, group in enumerate(groups):
            yield [*groups[:place], [*group, names[-1]], *groups[place + 1:]]


def _moves(at: ProgramSchedule) -> Iterator[ProgramSchedule]:
    """One further pass."""
    program = at.program
    for stage in program.stages:
        if stage.kind == "all_reduce":
            best = max(_splits(program, stage), key=lambda found: found[0], default=None)
            if best is not None:
                yield ProgramSchedule(best[1], (*at.passes, f"split {stage.name}"))
        if stage.kind == "all_gather":
            for mover in _movers(program, stage):
                moved = attempted(reorder, program, [mover], stage.name)
                if moved is not None:
                    yield ProgramSchedule(moved, (*at.passes, f"reorder {mover}"))
    for name, tensor in program.tensors.items():
        if tensor.source in ("parameter", "state") and tensor.layout == "replicated":
            sliced = attempted(as_slice, program, name)
            if sliced is not None:
                yield ProgramSchedule(sliced, (*at.passes, f"as_slice {name}"))


def _movers(program: CommunicationProgram, gather: ProgramStage) -> Iterator[str]:
    """Stages that may run before a gather: its readers, and those that read only weights and states of its shape."""
    yield from program.readers[gather.outputs[0]]
    for stage in program.stages:
        if stage.kind in ("pointwise", "norm", "cast") and all(
                program.tensors[name].source in ("parameter", "state") for name in stage.inputs):
            yield stage.name


def _splits(program: CommunicationProgram, stage: ProgramStage) -> Iterator[tuple[int, CommunicationProgram]]:
    """An all-reduce split along each possible axis, and the number of following stages that can be moved."""
    shape = program.tensors[stage.outputs[0]].shape
    for axis in (*range(len(shape) if len(shape) > 1 else 0), None):
        made = attempted(split, program, stage.name, axis)
        if made is not None:
            yield _moved(made, f"gather({stage.outputs[0]})"), made


def _moved(program: CommunicationProgram, gather: str) -> int:
    """The number of stages that can be moved before a gather, one after the other, in the program's order."""
    names: list[str] = []
    for stage in program.stages:
        if stage.name != gather and stage.kind in (*_FUSED, "matmul", "send") and \
                attempted(reorder, program, [*names, stage.name], gather) is not None:
            names.append(stage.name)
    return len(names)


def _key(program: CommunicationProgram) -> object:
    """A key equal for programs that differ only in the order of their stages: names follow from the rewrites."""
    sources = tuple(sorted((tensor.name, tensor.layout, str(tensor.axis)) for tensor in program.given.values()))
    return sources, frozenset(map(_shape, program.stages)), frozenset(program.carried.items())


def _shape(stage: ProgramStage) -> object:
    return (stage.kind, stage.inputs, stage.outputs, tuple(sorted((key, str(value)) for key, value in
                                                                  stage.attributes.items())),
            frozenset(map(_shape, stage.parts)))
