"""Attention and feed-forward parts in parts that run in turn on one device: which, what they hold, what they cost."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import strategies as st

import weft
from tests.oracles.exchanges import co_shard_faults
from tests.support import for_all, valid
from weft.app.lib.verdicts import choice_lines
from weft.models import DEVICES, PUBLISHED, Spec, SpecError, model_graph, parse_spec
from weft.models.candidates.stages import Stages, static_bytes
from weft.models.graph.operators import OperatorGraph, Work
from weft.models.spec.base import Section
from weft.models.spec.families import GptModel, T5Model
from weft.models.tensor_parallel.co_shard import CoSharded, Family, co_shard, part_peaks, segments_of
from weft.models.tensor_parallel.group_split import LayerChain, split_onto_groups
from weft.models.tensor_parallel.part_times import PartTimes
from weft.models.tensor_parallel.shapes import together
from weft.models.times.roofline import Roofline, pass_seconds
from weft.solver import baseline, validate

ROOFLINE = Roofline(DEVICES["v100"])
GPT = GptModel(family="gpt", layers=2, hidden=512, heads=8, vocabulary=1024, sequence=256)
T5 = T5Model(family="t5", encoder_layers=2, decoder_layers=2, hidden=64, heads=4, feed_forward=128, vocabulary=96,
             sequence=16)


def parted(graph: OperatorGraph, parts: Mapping[Family, int]) -> CoSharded | None:
    times = ROOFLINE.times(graph)
    return co_shard(graph, times, parts, lambda count: PartTimes(graph, times, count, ROOFLINE), ROOFLINE)


def both(graph: OperatorGraph, parts: int) -> CoSharded:
    found = parted(graph, {"attention": parts, "feed forward": parts})
    assert found is not None
    return found


def test_segments_are_attention_and_feed_forward_but_no_loss() -> None:
    found = {(segment.layer, segment.family): segment for segment in segments_of(model_graph(GPT))}
    assert set(found) == {(layer, family) for layer in ("layer0", "layer1") for family in ("attention", "feed forward")}
    attention = found["layer0", "attention"]
    assert [name.rpartition(".")[2] for name in attention.choices] == ["qkv", "score", "softmax", "dropout", "context",
                                                                      "dense"]
    assert attention.reads == ("layer0.norm1",) and attention.gives == "layer0.attention.dense"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("model", [GPT, T5, PUBLISHED["swin-t"], PUBLISHED["graphpipe-mmt"],
                                   GPT.model_copy(update={"attention": "fused", "activation": "swiglu"})],
                         ids=lambda model: model.family)
def test_the_check_agrees(model: Section, training: bool) -> None:
    graph = model_graph(model, 2, training=training)
    found = both(graph, 2)
    assert found.segments and co_shard_faults(graph, found) == []
    assert found.graph.parameter_count() == graph.parameter_count()


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_memory_of_a_part_is_what_its_tensors_are(parts: int) -> None:
    """GPT with b sequences of s tokens, width h, a heads, fp16: by hand, in units of bytes."""
    b, s, h, a = 2, 256, 512, 8
    graph = model_graph(GPT, b)
    attention, mlp = segments_of(graph)[:2]
    state, square = 2 * b * s * h, 2 * b * a * s * s
    # Kept of a part's attention: qkv's output, softmax, dropout's mask, dropped scores, context.
    kept = 3 * state + square + square // 2 + square + state
    ahead, behind = part_peaks(graph, attention, parts)
    assert ahead == max(kept // parts + state,  # all of it, and the term of the output
                        (3 * state + 2 * square) // parts, (3 * state + 2 * square + square // 2) // parts)
    # Backward, from the last operator on: what operators up to it keep, the gradients of its output and inputs (those
    # of queries, keys and values lie together), the projections' weights', and at the first the term of its input's.
    at = {
        "dense": kept + state, "context": kept + square + 3 * state,
        "dropout": 3 * state + square + square // 2 + 2 * square + 3 * state,
        "softmax": 3 * state + square + 2 * square + 3 * state,
        "score": 3 * state + square + 3 * state, "qkv": 3 * state}
    weights = {"dense": 2 * h * h // parts + 2 * h, "qkv": (2 * 3 * h * h + 2 * 3 * h) // parts + state}
    exact = max(size // parts + weights.get(name, 0) for name, size in at.items())
    assert exact <= behind <= 1.01 * exact
    ahead, behind = part_peaks(graph, mlp, parts)
    assert ahead == 8 * state // parts + state
    assert behind == pytest.approx(max(16 * state // parts, 12 * state // parts + 2 * 4 * h * h // parts,
                                       4 * state // parts + 2 * 4 * h * h // parts + state), rel=0.01)


def test_time_is_that_of_all_parts_their_forward_again_and_the_additions() -> None:
    graph = model_graph(GPT, 2)
    times, found = ROOFLINE.times(graph), both(graph, 4)
    parts = PartTimes(graph, times, 4, ROOFLINE)
    segment = found.segments[1]
    each = [parts.of(graph.by_name[name], split) for name, split in segment.choices.items()]
    state = 2 * 2 * 256 * 512
    adding = [pass_seconds(ROOFLINE.device, "add", Work(state / 2, 2 * state, state), "float16", which)
              for which in ("forward", "backward")]
    time = found.times[found.graph.producer[segment.gives]]
    assert time.forward == pytest.approx(4 * sum(t.forward for t in each) + 3 * adding[0])
    assert time.input_grad == pytest.approx(4 * sum(t.forward + t.input_grad + t.weight_grad for t in each)
                                            + 3 * adding[1])
    assert time.weight_grad == 0
    whole = [times[name] for name in segment.choices]
    assert time.forward > sum(t.forward for t in whole)  # smaller kernels are less efficient


def test_what_does_not_divide_stays_whole() -> None:
    graph = model_graph(GPT.model_copy(update={"heads": 2}))
    found = both(graph, 4)
    assert {segment.family for segment in found.segments} == {"feed forward"}
    assert parted(graph, {"attention": 4}) is None and parted(graph, {}) is None


@for_all(st.integers(1, 3), st.sampled_from([2, 4, 8]), st.sampled_from([16, 48]), st.sampled_from(["gelu", "swiglu"]),
         st.booleans(), st.booleans(), st.booleans(), tries=40)
def test_any_layer_in_parts_passes_the_check_and_keeps_less(batch: int, heads: int, sequence: int, kind: str,
                                                            parallel: bool, dropout: bool, rotary: bool) -> None:
    """Against tensors played through one by one; and no part's peak is above that of fewer parts."""
    model = GptModel.model_validate({
        "family": "gpt", "layers": 1, "hidden": 64, "heads": heads, "vocabulary": 64, "sequence": sequence,
        "activation": kind, "parallel": parallel, "dropout": dropout, "positions": "rotary" if rotary else "learned"})
    graph = model_graph(model, batch)
    before: dict[str, tuple[int, int]] = {}
    for parts in (2, 4, 8):
        found = parted(graph, {"attention": parts, "feed forward": parts})
        assert found is not None and co_shard_faults(graph, found) == []
        for segment in found.segments:
            peaks = part_peaks(graph, segment, parts)
            known = before.setdefault(segment.family, peaks)
            assert all(now <= then for now, then in zip(peaks, known, strict=True))
            before[segment.family] = peaks


LONG = """
name: long
model: {{family: gpt, layers: 4, hidden: 512, heads: 8, vocabulary: 8192, sequence: 2048}}
costs: v100
cluster: {{gpus: 2, memory: {memory}, reserve: 0, device: v100, bandwidth: 12 GB/s, latency: 20 us,
          gpus_per_machine: 1}}
training: {{micro_batches: 8, recompute: {recompute}}}
placement: {{co_shard: {parts}}}
"""


def long(memory: str, parts: str = "[2, 4]", recompute: str = "false") -> Spec:
    return parse_spec(LONG.format(memory=memory, parts=parts, recompute=recompute))


def test_parts_in_turn_are_tried_only_where_activations_are_tight() -> None:
    found = {memory: together(long(memory)) for memory in ("32 GiB", "1000 MiB")}
    chosen = {memory: [part.co_shard for candidate in entry[1] for part in candidate.parts if part.co_shard]
              for memory, entry in found.items() if entry is not None}
    assert not chosen["32 GiB"] and chosen["1000 MiB"]
    without = together(long("1000 MiB", "[]"))
    assert without is not None and not any(part.co_shard for candidate in without[1] for part in candidate.parts)
    for candidate in (found["1000 MiB"] or (None, [], []))[1]:
        validate(baseline("greedy", candidate.problem, 8))
        if any(part.co_shard for part in candidate.parts):
            assert "parts" in candidate.title


@pytest.mark.parametrize("change, message", [
    (("[2, 4]", "[3]"), "placement.co_shard has 3, but no attention or feed-forward part of this model divides"),
    (("gpus: 2", "gpus: 1"), "several GPUs of one kind and of equal memory; give those or leave it out"),
])
def test_parts_that_cannot_be_are_refused(change: tuple[str, str], message: str) -> None:
    text = LONG.format(memory="32 GiB", parts="[2, 4]", recompute="false").replace(", gpus_per_machine", "")
    with pytest.raises(SpecError, match=message):
        together(parse_spec(text.replace(*change)))


def test_what_fits_in_no_other_way_on_one_gpu_a_stage_fits_in_parts() -> None:
    """No stage of one GPU has room for a whole layer's scores; for a part's it has, and the answer says the cost."""
    cluster = "placement: {co_shard: [2, 4], shapes: [chain, groups, tensor]}"
    spec = parse_spec(LONG.format(memory="420 MiB", recompute="true", parts="[]").replace(
        "placement: {co_shard: []}", cluster))
    schedule = valid(weft.solve(spec, effort=0.2))
    assert schedule.solver["placement"].startswith("chain, 2 stages on 1 GPU each, with attention in 2 parts, ")
    assert {parts["parts"] for parts in schedule.solver["co_shard"]} == {"attention in 2 parts"}
    assert all(parts["seconds_more"] > 0 and parts["workspace_less"] > 0 and parts["kept_less"] == 0
               for parts in schedule.solver["co_shard"])  # with recomputation only inputs are kept anyway
    assert "attention in 2 parts, run in turn: " in "\n".join(choice_lines(schedule))
    without = weft.solve(parse_spec(LONG.format(memory="420 MiB", recompute="true", parts="[]").replace(
        "placement: {co_shard: []}", cluster.replace("[2, 4]", "[]"))), effort=0.2)
    assert without.solver["placement"].startswith("tensor parallel") and without.makespan > schedule.makespan
    assert choice_lines(without) and "run in turn" not in "\n".join(choice_lines(without))


def test_stages_in_parts_are_cut_as_all_ways_to_cut_say() -> None:
    """Every number of stages against every choice of cuts and of how each stage is computed."""
    found = together(long("1000 MiB"))
    assert found is not None
    space = found[0]
    count = len(space.layers)
    ways = [(degree, "", Stages(space.costs[degree])) for degree in space.degrees]
    ways += [(1, name, Stages(costs)) for name, costs in space.co_sharded.items()]
    for room in (500 * 1024**2, 800 * 1024**2, 2 * 1024**3):
        chain = LayerChain(space.costs, 0, count, frozenset(), room, space.bytes_per_parameter, 8, "full",
                  space.co_sharded)
        splits = {len(split): max(stage.cost.load for stage in split) for split in split_onto_groups(chain, 2)}
        for number in (1, 2):
            loads = []
            for cuts in itertools.combinations(range(1, count), number - 1):
                for chosen in itertools.product(ways, repeat=number):
                    pieces = [stages.stage(i, j) for (_, _, stages), i, j in zip(chosen, (0, *cuts), (*cuts, count),
                                                                                strict=True)]
                    if sum(degree for degree, _, _ in chosen) == 2 and all(
                            static_bytes([piece], chain.bytes_per_parameter) + (number - s) * piece.activation
                            + max(piece.workspace_forward, piece.workspace_backward) <= room
                            for s, piece in enumerate(pieces)):
                        loads.append(max(piece.load for piece in pieces))
            assert splits.get(number) == min(loads, default=None)
