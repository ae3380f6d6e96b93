"""A spec whose micro-batches have different sequence lengths: a problem with a class for each length.

Every placement is one :class:`~weft.solver.problem.Problem`: its stages are the same layers for all
micro-batches, and a block's time, its transfers and its memory are those of the stage at the micro-batch's length,
modelled operator by operator (:mod:`weft.models.times.roofline`) or read from the spec's source of times. Cuts are made
for the longest micro-batch: so one of it fits on every GPU, and as longer ones spend a larger share of their time in
attention, the stages are balanced for those that matter most. A GPU's static memory does not depend on lengths; a
learned table of positions has a row for each of the model's.

Micro-batches run in the order of the list; the user packs samples into sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

from weft.models.candidates.build import ModelCandidate, candidate_at, candidates
from weft.models.candidates.gpu_costs import decoder_model, uses_measured_gpt
from weft.models.spec.families import GptModel
from weft.models.spec.sections import Spec
from weft.models.spec.spec import SpecError, with_lengths
from weft.solver.problem import Problem, per_class
from weft.solver.problem.rounds import Run

_Value = TypeVar("_Value")
#: Shapes of one GPU a stage.
_SHAPES = {"chain", "v", "loop", "wave"}


@dataclass(frozen=True)
class LengthProblem:
    """``candidate``, a placement at the longest length, for micro-batches of all lengths."""

    candidate: ModelCandidate
    problem: Problem
    run: Run


def class_of_length(length: int) -> str:
    """The name of the class of micro-batches with this many tokens."""
    return f"len{length}"


def length_problems(spec: Spec) -> list[LengthProblem]:
    """The placements of ``spec``, which gives the ``lengths`` of its micro-batches, as problems with classes.

    Raises :class:`~weft.models.spec.spec.SpecError` for features incompatible with lengths (models other than decoders,
    measured costs of one length, GPUs that compute together, memory decisions, sequence chunks) and for lengths beyond
    the model's positions; and the exceptions of :func:`~weft.models.candidates.build.candidates`.
    """
    spec = with_lengths(spec)
    assert spec.training is not None
    lengths = spec.training.lengths
    assert isinstance(lengths, tuple)
    model = _decoder(spec)
    _require_lengths(spec, model, lengths)
    specs = {length: _at_length(spec, model, length) for length in dict.fromkeys(lengths)}
    found = []
    for candidate in candidates(specs[max(lengths)]):
        cut = tuple(accumulate(map(len, candidate.layers_of_stage), initial=0))
        plain = {class_of_length(length): candidate_at(own, candidate.shape, cut, candidate.backward).problem
                 for length, own in specs.items()}
        joined = with_classes(f"{candidate.problem.name}, {len(plain)} lengths", plain)
        found.append(LengthProblem(candidate, joined, Run.of(joined, [class_of_length(length) for length in lengths])
                                   if joined.classes else Run.of(joined, len(lengths))))
    return found


def _decoder(spec: Spec) -> GptModel:
    """The spec's model, whose sequences may be shorter. Raises :class:`~weft.models.spec.spec.SpecError`."""
    return decoder_model(spec, f"{spec.where}: training.lengths is for decoders of the families gpt and moe")


def _require_lengths(spec: Spec, model: GptModel, lengths: Sequence[int]) -> None:
    placement = spec.placement
    if uses_measured_gpt(spec):
        raise SpecError(f"{spec.where}: training.lengths needs costs at each length, but those of "
                        f"{spec.costs or 'gpt-1.3b-v100'} are measured at one; give costs: v100 (or another device to "
                        "model)")
    for entry, given, way in (("sequence_chunks", bool(placement.sequence_chunks), "leave one of them out"),
                              ("memory", placement.memory == "decide", "give memory: layers"),
                              ("shapes", not _SHAPES & set(placement.shapes), "allow chain"),
                              ("co_shard", bool(placement.co_shard), "leave one of them out")):
        if given:
            raise SpecError(f"{spec.where}: training.lengths is for placements of one GPU a stage whose layers are "
                            f"whole, which placement.{entry} is not; {way}")
    most = model.max_positions or model.sequence
    for i, length in enumerate(lengths):
        if length > most:
            raise SpecError(f"{spec.where}: training.lengths: entry {i} is {length} tokens, but the model has {most} "
                            "positions; give shorter sequences, or a model with more (model.sequence or "
                            "model.max_positions)")


def _at_length(spec: Spec, model: GptModel, length: int) -> Spec:
    """``spec`` with all sequences of ``length`` tokens; the model's positions are unchanged."""
    assert spec.training is not None
    short = model.model_copy(update={"sequence": length, "max_positions": model.max_positions or model.sequence})
    return spec.model_copy(update={"model": short, "training": spec.training.model_copy(update={"lengths": None})})


def with_classes(name: str, plain: dict[str, Problem]) -> Problem:
    """One problem with the classes of ``plain``, which differ only in times and amounts, on devices of the same
    memory."""
    first = next(iter(plain.values()))
    assert all(problem.devices == first.devices for problem in plain.values())
    blocks = []
    for i, block in enumerate(first.blocks):
        own = {label: problem.blocks[i] for label, problem in plain.items()}
        assert all(other.name == block.name and other.devices == block.devices for other in own.values())
        waits = (replace(wait, **per_class(lag=_each({label: other.after[k].lag for label, other in own.items()})))
                 for k, wait in enumerate(block.after))
        blocks.append(replace(block, after=tuple(waits), **per_class(
            **{field: _each({label: getattr(other, field) for label, other in own.items()})
               for field in ("duration", "memory", "workspace")})))
    return replace(first, name=name, blocks=tuple(blocks))


def _each(values: dict[str, _Value]) -> _Value | dict[str, _Value]:
    """A single value if it is the same for all classes."""
    return next(iter(values.values())) if len(set(values.values())) == 1 else values
