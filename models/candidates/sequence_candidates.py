"""A spec's placements with micro-batches in chunks of their sequence: of each number, even in tokens and even in work.

The share of attention is that of the operators' times: of the spec's own where they are known operator by operator, and
of modelled ones on the same device where they are known layer by layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weft.models.candidates.build import Candidate, layer_costs
from weft.models.candidates.family_costs import decoder_model, device_of, family_costs, uses_measured_gpt
from weft.models.candidates.sequence_chunks import Attention, even_tokens, even_work, in_sequence_chunks
from weft.models.graph.operators import OperatorGraph
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import model_cluster
from weft.models.layers.costs import LayerCost
from weft.models.spec.families import GptModel
from weft.models.spec.sections import Spec, Training
from weft.models.spec.spec import SpecError
from weft.models.times.operator_times import OperatorTime
from weft.models.times.roofline import Roofline
from weft.models.zoo.graphs import model_graph
from weft.solver.problem import Problem

__all__ = ["SequenceCandidate", "sequence_candidates"]

#: Kinds of operators that work on queries times keys, and what their names end in where the kind does not say so.
_FUSED, _CORE = "attention", ("score", "softmax", "dropout", "context")


@dataclass(frozen=True)
class SequenceCandidate:
    """``candidate``, its problem in chunks of ``lengths`` tokens. ``title`` says that in a few words."""

    candidate: Candidate
    lengths: tuple[int, ...]
    title: str


def sequence_candidates(spec: Spec, found: Sequence[Candidate], counts: Sequence[int]) -> list[SequenceCandidate]:
    """The placements ``found`` of ``spec``, for each number of chunks even in tokens, and in work where that differs.

    Raises :class:`~weft.models.spec.spec.SpecError` where micro-batches have no sequence that can be cut (other
    families than decoders, listed layers, graphs, inference), for fewer than two chunks and for more than tokens.
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


def _replaced(candidate: Candidate, problem: Problem, lengths: tuple[int, ...]) -> Candidate:
    note = (f"micro-batches pass in sequence chunks of {', '.join(map(str, lengths))} tokens; kernels are taken to be "
            "as efficient on them as on whole sequences, and gradients of keys and values that wait are not counted")
    return replace(candidate, problem=problem, notes=(*candidate.notes, note))


def _decoder(spec: Spec) -> GptModel:
    """The spec's model, whose tokens attend to earlier ones only."""
    wrong = f"{spec.where}: placement.sequence_chunks is for training decoders of the families gpt and moe"
    if not isinstance(spec.run, Training):
        raise SpecError(f"{wrong}, but this is inference; leave it out")
    return decoder_model(spec, wrong)


def _attention_by_layer(spec: Spec, model: GptModel) -> dict[str, tuple[float, float]]:
    """The shares of attention in each layer's forward and whole backward."""
    graph, times = _timed(spec, model)
    recompute = isinstance(spec.run, Training) and spec.run.recompute
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


def _over_all(attention: Sequence[Attention], candidate: Candidate) -> float:
    """Attention's share of all stages' forwards and backwards together."""
    core = sum(own.forward * row.forward + own.backward * row.backward
               for own, row in zip(attention, candidate.stages, strict=True))
    return core / sum(row.forward + row.backward for row in candidate.stages)
