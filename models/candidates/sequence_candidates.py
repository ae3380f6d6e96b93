"""A spec's placements with micro-batches in chunks of their sequence: of each number, even in tokens and even in work.

The share of attention comes from the operators' times: the spec's own if they are known by operator, and modelled ones
on the same device if they are known by layer.

Micro-batches that pass through the stages in chunks of their sequence: block problems for Seq1F1B and for weft.

A decoder's token attends only to earlier ones, so a micro-batch's tokens can be cut into k consecutive chunks that run
in sequence: a stage's forward of chunk j needs the keys and values of chunks 0 to j - 1, which it has kept; its
backward adds to their gradients, so chunks run last to first there. :mod:`weft.solver.baselines.seq1f1b` describes
these blocks.

*Times.* Let a be the share of a stage's time that is attention itself (scores, softmax, context), and let a chunk reach
from x to y of the sequence, as shares of it. All other work is proportional to tokens, y - x. A kernel that skips
masked scores works on y^2 - x^2 of them (FlashAttention, and the paper's count); one that computes the whole square and
masks it works, with chunks, on (y - x) y of it: with more chunks, less work is wasted. A backward's attention is input
gradient only, weight gradients are proportional to tokens. The lower efficiency of kernels on shorter chunks is not
modelled.

*Memory* is proportional to tokens: the activations of chunk j are kept from its forward to its backward (including the
scores kept by unfused attention). Gradients of keys and values that wait for earlier chunks are not counted, as in the
paper.

*Cuts* (Sun et al., "Seq1F1B", NAACL 2025, section 3.4): even in tokens, or with equal work for every chunk, which makes
later ones shorter. The latter is exact for the share of attention in all stages together; a stage without attention,
such as an embedding, still takes longer for longer chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise

from weft.models.candidates.build import ModelCandidate, layer_costs
from weft.models.candidates.gpu_costs import decoder_model, device_of, family_costs, uses_measured_gpt
from weft.models.graph.operators import OperatorGraph
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import model_cluster
from weft.models.layers.costs import LayerCost
from weft.models.spec.families import GptModel
from weft.models.spec.sections import Spec, TrainingRun
from weft.models.spec.spec import SpecError
from weft.models.times.operator_times import OperatorTime
from weft.models.times.roofline import Roofline
from weft.models.zoo.graphs import model_graph
from weft.solver.pipeline import Pipeline
from weft.solver.problem import Block, BlockKind, Dependency, Number, Problem

#: Kinds of operators that work on queries times keys, and the endings of their names if the kind is not specific.
_FUSED, _CORE = "attention", ("score", "softmax", "dropout", "context")


@dataclass(frozen=True)
class SequenceCandidate:
    """``candidate``, its problem in chunks of ``lengths`` tokens. ``title`` is a short description."""

    candidate: ModelCandidate
    lengths: tuple[int, ...]
    title: str


def sequence_candidates(spec: Spec, found: Sequence[ModelCandidate], counts: Sequence[int]) -> list[SequenceCandidate]:
    """The placements ``found`` of ``spec``, for each number of chunks even in tokens, and in work if that differs.

    Raises :class:`~weft.models.spec.spec.SpecError` if micro-batches have no sequence to cut (families other than
    decoders, listed layers, graphs, inference), for fewer than two chunks and for more chunks than tokens.
    """
    model = _decoder(spec)
    layers = {layer.name: layer for layer in layer_costs(spec)}
    shares = _attention_by_layer(spec, model)
    latency = model_cluster(spec.cluster).network.seconds(0, (0,), (1,)) if spec.cluster.gpus > 1 else 0.0
    made = []
    for candidate in found:
        attention = [_of_stage([layers[name] for name in names], shares, skips=model.attention == "fused")
                     for names in candidate.layers_of_stage]
        whole = _over_all(attention, candidate)
        for count in counts:
            if not 2 <= count <= model.sequence:
                raise SpecError(f"{spec.where}: {count} sequence chunks, it must be from 2 to the model's sequence, "
                                f"{model.sequence} tokens")
            cuts = {even_tokens(model.sequence, count): "of even length",
                    even_work(model.sequence, count, whole, skips=model.attention == "fused"): "of even work"}
            for lengths, how in cuts.items():
                problem = in_sequence_chunks(candidate.problem, lengths, attention, latency=latency)
                made.append(SequenceCandidate(_replaced(candidate, problem, lengths), lengths,
                                              f"{count} sequence chunks {how}"))
    return made


def _replaced(candidate: ModelCandidate, problem: Problem, lengths: tuple[int, ...]) -> ModelCandidate:
    note = (f"micro-batches pass in sequence chunks of {', '.join(map(str, lengths))} tokens; kernels are taken to be "
            "as efficient on them as on whole sequences, and gradients of keys and values that wait are not counted")
    return replace(candidate, problem=problem, notes=(*candidate.notes, note))


def _decoder(spec: Spec) -> GptModel:
    """The spec's model, whose tokens attend only to earlier ones."""
    wrong = f"{spec.where}: placement.sequence_chunks is for training decoders of the families gpt and moe"
    if not isinstance(spec.run, TrainingRun):
        raise SpecError(f"{wrong}, but this is inference; leave it out")
    return decoder_model(spec, wrong)


def _attention_by_layer(spec: Spec, model: GptModel) -> dict[str, tuple[float, float]]:
    """The shares of attention in each layer's forward and whole backward."""
    graph, times = _timed(spec, model)
    recompute = isinstance(spec.run, TrainingRun) and spec.run.recompute
    core: dict[str, tuple[float, float]] = {}
    whole: dict[str, tuple[float, float]] = {}
    for operator in graph.operators:
        time, layer = times[operator.name], operator.layer or operator.name
        backward = time.input_grad + time.weight_grad + (time.forward if recompute else 0.0)
        is_core = operator.kind == _FUSED or (".attention." in f".{operator.name}" and operator.name.rsplit(".", 1)[-1]
                                              in _CORE)
        for sums, counts in ((whole, True), (core, is_core)):
            before = sums.get(layer, (0.0, 0.0))
            sums[layer] = (before[0] + time.forward, before[1] + backward) if counts else before
    return {layer: (core[layer][0] / max(ahead, 1e-12), core[layer][1] / max(back, 1e-12))
            for layer, (ahead, back) in whole.items()}


def _timed(spec: Spec, model: GptModel) -> tuple[OperatorGraph, Mapping[str, OperatorTime]]:
    if not uses_measured_gpt(spec):
        costs = family_costs(spec)
        return costs.graph, costs.times
    graph = model_graph(model, spec.run.micro_batch_size, training=True)
    return graph, Roofline(DEVICES[device_of(spec) or "v100"]).times(graph)


def _of_stage(layers: Sequence[LayerCost], shares: Mapping[str, tuple[float, float]], *, skips: bool) -> Attention:
    forward, backward = sum(layer.forward for layer in layers), sum(layer.backward for layer in layers)
    return Attention(sum(layer.forward * shares[layer.name][0] for layer in layers) / forward if forward else 0.0,
                     sum(layer.backward * shares[layer.name][1] for layer in layers) / backward if backward else 0.0,
                     skips)


def _over_all(attention: Sequence[Attention], candidate: ModelCandidate) -> float:
    """Attention's share of all stages' forwards and backwards together."""
    core = sum(own.forward * row.forward + own.backward * row.backward
               for own, row in zip(attention, candidate.stages, strict=True))
    return core / sum(row.forward + row.backward for row in candidate.stages)


@dataclass(frozen=True, slots=True)
class Attention:
    """The shares of attention itself in a stage's forward and whole backward, from 0 to 1. ``skips``: whether masked
    scores are skipped.

    Raises ``ValueError`` for other shares.
    """

    forward: float
    backward: float
    skips: bool = True

    def __post_init__(self) -> None:
        for what, share in (("forward", self.forward), ("backward", self.backward)):
            if not 0 <= share <= 1:
                raise ValueError(f"attention's share of the {what} is {share}, it must be between 0 and 1")


def even_tokens(tokens: int, chunks: int) -> tuple[int, ...]:
    """The lengths of ``chunks`` chunks of ``tokens`` tokens that differ by one at most, longer ones first.

    Raises ``ValueError`` for less than one chunk, or more than tokens.
    """
    _require_chunks(tokens, chunks)
    size, longer = divmod(tokens, chunks)
    return (size + 1,) * longer + (size,) * (chunks - longer)


def even_work(tokens: int, chunks: int, attention: float, *, skips: bool = True, multiple: int = 1) -> tuple[int, ...]:
    """The lengths of ``chunks`` chunks of ``tokens`` tokens with equal work, given ``attention``, its share of the time
    for the whole sequence, rounded to multiples of ``multiple`` tokens except for the last.

    Raises ``ValueError`` as :func:`even_tokens`, for a share outside 0 to 1, and if rounding leaves a chunk without
    tokens.
    """
    _require_chunks(tokens, chunks)
    Attention(attention, attention)
    least, most = 0.0, 1.0  # a chunk's work: the reach of k chunks rises with it
    for _ in range(60):
        work = (least + most) / 2
        if _reach(work, chunks, attention, skips)[-1] < 1:
            least = work
        else:
            most = work
    ends = [round(end * tokens / multiple) * multiple for end in _reach(most, chunks, attention, skips)[:-1]]
    lengths = tuple(end - begin for begin, end in pairwise((0, *ends, tokens)))
    if min(lengths) < 1:
        raise ValueError(f"{tokens} tokens in {chunks} chunks of equal work leave one of them without tokens; ask for "
                         "fewer chunks, or a smaller multiple")
    return lengths


def _require_chunks(tokens: int, chunks: int) -> None:
    if not 1 <= chunks <= tokens:
        raise ValueError(f"{tokens} tokens cannot be cut into {chunks} chunks, it must be 1 to {tokens}")


def _reach(work: float, chunks: int, attention: float, skips: bool) -> list[float]:
    """The ends of chunks of this work, first to last: each end y is the root of a quadratic in y."""
    ends, x = [], 0.0
    for _ in range(chunks):
        # (1 - a)(y - x) + a (y^2 - x^2) = work, or with (y - x) y for the square's part
        linear = 1 - attention - (0.0 if skips else attention * x)
        constant = (1 - attention) * x + (attention * x * x if skips else 0.0) + work
        if attention:
            x = (math.sqrt(linear * linear + 4 * attention * constant) - linear) / (2 * attention)
        else:
            x = constant
        ends.append(x)
    return ends


def in_sequence_chunks(problem: Problem, lengths: Sequence[int], attention: Sequence[Attention], *,
                       latency: Number = 0) -> Problem:
    """``problem``, a training pipeline, with micro-batches in chunks of ``lengths`` tokens.

    ``attention``: that of every stage. ``latency``: the part of a transfer's time independent of its size, in the
    problem's time unit; the rest is proportional to tokens. Block ``F{s}.{j}`` is the forward of chunk j on stage s,
    ``B{s}.{j}`` its backward, or ``I{s}.{j}`` and ``W{s}.{j}``. Integer amounts stay integers, and those of a
    micro-batch's chunks add up to its own.

    Raises :class:`~weft.solver.pipeline.NotAPipeline` for another problem, and ``ValueError`` for a pipeline without
    backward, for no lengths or one below 1, and for another number of stages than ``attention`` has.
    """
    found = Pipeline.of(problem)
    if not found.has_backward:
        raise ValueError("a pipeline without a backward has no use for chunks of a sequence")
    if not lengths or min(lengths) < 1:
        raise ValueError(f"lengths is {list(lengths)}, every chunk needs a token")
    if len(attention) != len(found.stages):
        raise ValueError(f"attention has {len(attention)} entries for {len(found.stages)} stages")
    ends = [Fraction(end, sum(lengths)) for end in accumulate(lengths, initial=0)]
    return replace(problem, name=f"{problem.name}, {len(lengths)} sequence chunks", model=None,
                   blocks=tuple(_Cut(found, ends, attention, latency).blocks()))


@dataclass(frozen=True)
class _Cut:
    """The chunks of one pipeline; ``ends``: their boundaries, from 0 to 1."""

    pipeline: Pipeline
    ends: Sequence[Fraction]
    attention: Sequence[Attention]
    latency: Number

    @cached_property
    def digits(self) -> int:
        """Decimals of times: to a millionth of the longest block's magnitude."""
        return 6 - math.floor(math.log10(max(float(block.duration) for block in self.pipeline.problem.blocks)))

    def blocks(self) -> Iterator[Block]:
        """Stage by stage, forwards first to last and then backwards last to first, each chunk by chunk."""
        chunks, count = range(len(self.ends) - 1), len(self.pipeline.stages)
        for s in range(count):
            for j in chunks:
                yield self._block(s, j, self.pipeline.stages[s].forward)
        for s in reversed(range(count)):
            for j in reversed(chunks):
                for block in self.pipeline.stages[s].blocks[1:]:
                    yield self._block(s, j, block)

    def _block(self, s: int, j: int, number: int) -> Block:
        blocks = self.pipeline.problem.blocks
        block, own = blocks[number], self.pipeline.stages[s].blocks
        kept = sum(blocks[i].memory[0] for i in own[:own.index(number)])  # the stage's memory before it, and after
        after = kept + block.memory[0]
        return Block(
            self._name(s, j, block.kind), block.kind, block.devices, self._duration(s, j, number),
            (self._part(after, j) - self._part(kept, j),), (self._part(block.workspace[0], j),),
            tuple(self._waits(s, j, number)))

    @staticmethod
    def _name(s: int, j: int, kind: BlockKind) -> str:
        return f"{kind.letter}{s}.{j}"

    def _part(self, amount: Number, j: int) -> Number:
        """Chunk j's part of ``amount``, by tokens."""
        if isinstance(amount, int):
            return round(amount * self.ends[j + 1]) - round(amount * self.ends[j])
        return round(amount * float(self.ends[j + 1]), 9) - round(amount * float(self.ends[j]), 9)

    def _duration(self, s: int, j: int, number: int) -> float:
        """Chunk j's part of a block's time, and never 0."""
        problem, stage, attention = self.pipeline.problem, self.pipeline.stages[s], self.attention[s]
        block = problem.blocks[number]
        if block.kind == BlockKind.FORWARD:
            share = attention.forward
        elif block.kind == BlockKind.WEIGHT_GRAD:
            share = 0.0
        else:
            whole = sum(problem.blocks[i].duration for i in stage.blocks[1:])
            share = min(1.0, attention.backward * whole / block.duration)
        x, y = float(self.ends[j]), float(self.ends[j + 1])
        part = (1 - share) * (y - x) + share * (y * y - x * x if attention.skips else (y - x) * y)
        return max(round(block.duration * part, self.digits), 10.0 ** -self.digits)

    def _waits(self, s: int, j: int, number: int) -> Iterator[Dependency]:
        """The stage's other chunk and, for this chunk, all predecessors of the block itself."""
        problem = self.pipeline.problem
        kind = problem.blocks[number].kind
        neighbour = j - 1 if kind == BlockKind.FORWARD else j + 1
        if 0 <= neighbour < len(self.ends) - 1 and kind != BlockKind.WEIGHT_GRAD:
            yield Dependency(self._name(s, neighbour, kind))
        for item in problem.blocks[number].after:
            producer = problem.index[item.block]
            stage = self.pipeline.stage_of(producer)
            sized = max(0.0, item.lag - self.latency) * float(self.ends[j + 1] - self.ends[j])
            lag = round(min(item.lag, self.latency) + sized, self.digits) if sized else item.lag
            yield replace(item, block=self._name(stage, j, problem.blocks[producer].kind), lag=lag)
