"""A chain of stages in chunks: the communication of a chunk overlaps the computation of the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from weft.models.communication.chunks import Cutting
from weft.models.communication.program import CommunicationError, CommunicationProgram, Overlap, ProgramStage
from weft.models.communication.rebuilding import detour, in_order, require_free


def overlap(program: CommunicationProgram, stages: Iterable[str] | str, chunks: int) -> CommunicationProgram:
    """``program`` with the chain ``stages`` in ``chunks``: every stage's chunks run in the same order.

    The first possible axis of the chain is used. Raises :class:`~weft.models.communication.program.CommunicationError`
    for stages that are not a chain, for one that needs its input whole, for a number that divides no axis, and for two
    chains that wait for each other.
    """
    named = list(stages)
    made = replace(program, overlaps=(*program.overlaps, next(overlaps(program, named, chunks))))
    in_order(made)
    return made


def overlaps(program: CommunicationProgram, stages: Sequence[str], chunks: int) -> Iterator[Overlap]:
    """The ways to run a chain in chunks, one for each axis. Raises as :func:`overlap` if there is none."""
    chain = require_free(program, stages, "overlap")
    if chunks < 1:
        raise CommunicationError(f"overlap: {chunks} chunks are too few, one is the whole")
    _require_chain(program, chain)
    refusals: list[CommunicationError] = []
    found = False
    first = program.tensors[next(chain[0].leaves()).outputs[0]]
    flat = first.layout == "sliced" and first.axis is None
    for axis in ((None,) if flat else (*range(len(first.shape)), None)):
        try:
            cutting = Cutting.of(program, chain, axis)
            cutting.require_divided(program, chunks)
        except CommunicationError as error:
            refusals.append(error)
            continue
        found = True
        yield Overlap(tuple(stage.name for stage in chain), chunks, cutting.axes, cutting.by_slices)
    if not found:
        raise next((error for error in refusals if "divide" in str(error)), refusals[0])


def _require_chain(program: CommunicationProgram, chain: Sequence[ProgramStage]) -> None:
    if len(chain) < 2:
        raise CommunicationError("overlap: a chain has at least two stages, a producer and a consumer")
    for one, other in pairwise(chain):
        if not set(one.outputs) & set(other.inputs):
            raise CommunicationError(f"overlap: the stages are no chain: {other.name!r} reads nothing that "
                                     f"{one.name!r} makes")
    path = detour(program, {stage.name for stage in chain})
    if path is not None:
        raise CommunicationError(f"overlap: the stage {path[2]!r} waits for all of {path[0]!r} over {path[1]!r}, and "
                                 "cannot begin with a chunk of it")
