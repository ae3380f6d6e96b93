"""Placements in which GPUs compute together: which exist, what they hold, and which one a solve picks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, cast

import pytest

import weft
from tests.support.builders import valid
from weft.app.lib.case import case_of
from weft.app.lib.verdicts import choice_lines
from weft.models import Spec, SpecError, parse_spec
from weft.models.candidates.gpu_costs import family_costs
from weft.models.candidates.stages import Stages, static_bytes
from weft.models.tensor_parallel import shapes
from weft.models.tensor_parallel.group_chains import NoShape
from weft.models.tensor_parallel.group_rows import Chunks, chunked
from weft.models.tensor_parallel.group_split import GroupStage, LayerChain, split_onto_groups
from weft.models.tensor_parallel.parts import stage_cost
from weft.models.tensor_parallel.shapes import ShapeCandidate, shape_candidates
from weft.models.tensor_parallel.space import Space, space_of
from weft.solver import BlockKind, Problem, baseline
from weft.solver.step.search import Infeasible, Search

GPT = "{family: gpt, layers: 4, hidden: 512, heads: 8, vocabulary: 262144, sequence: 512}"
T5 = ("{family: t5, encoder_layers: 4, decoder_layers: 4, hidden: 256, heads: 8, feed_forward: 1024, "
      "vocabulary: 262144, sequence: 256, positions: learned}")
FLAVA = "{family: flava, text_layers: 4, image_layers: 4, fusion_layers: 4, hidden: 512, heads: 8, sequence: 128}"
ALL = ("groups", "tensor", "m", "nn", "k", "x")
TRAINING = "training: {micro_batches: 8, recompute: true, optimizer_bytes_per_parameter: 4}"
INFERENCE = "inference: {micro_batches: 8, micro_batch_size: 4}"


def spec_of(model: str, gpus: int = 4, memory: str = "32 GiB", run: str = TRAINING, more: str = "",
            cluster: str = "") -> Spec:
    return parse_spec(f"name: test\nmodel: {model}\ncosts: roofline\ncluster: {{gpus: {gpus}, memory: {memory}, "
                      f"reserve: 0, device: v100, bandwidth: 150 GB/s, latency: 20 us{cluster}}}\n{run}\n{more}")


def found_of(spec: Spec, shapes: tuple[str, ...] = ALL) -> tuple[Space, dict[str, list[ShapeCandidate]],
                                                                dict[str, str]]:
    space = space_of(spec, family_costs(spec))
    assert space is not None
    found, refused = shape_candidates(space, shapes, ("full", "split"))
    by_shape = {shape: [candidate for candidate in found if candidate.shape == shape] for shape in shapes}
    return space, by_shape, {entry.shape: entry.reason for entry in refused}


def test_a_vocabulary_at_both_ends_is_m_and_one_inside_is_nn() -> None:
    _, gpt, why = found_of(spec_of(GPT))
    assert gpt["m"] and not gpt["nn"] and not gpt["k"]
    assert "that is m" in why["nn"] and "no towers" in why["k"]
    _, t5, why = found_of(spec_of(T5))
    assert t5["nn"] and not t5["m"] and "that is nn" in why["m"]
    spread = [names for part, names in zip(t5["nn"][0].parts, t5["nn"][0].layers_of_part, strict=True)
              if part.degree == 4]
    assert spread == [("embedding",), ("bridge",), ("head",)]


def test_towers_are_k_and_what_joins_them_is_on_all_gpus() -> None:
    space, flava, _ = found_of(spec_of(FLAVA, run=INFERENCE))
    assert [len(tower) for tower in space.towers] == [5, 5]
    best = flava["k"][0]
    first, last = best.layers_of_part[0][0], best.layers_of_part[-1]
    assert first == "text.embedding" and last[0] == "join" and last[-1] == "head"
    assert best.parts[-1].gpus == (0, 1, 2, 3)
    towers = [{gpu for part, names in zip(best.parts, best.layers_of_part, strict=True)
               if names[0].startswith(tower) for gpu in part.gpus} for tower in ("text", "image")]
    assert not towers[0] & towers[1] and towers[0] | towers[1] == {0, 1, 2, 3}
    heads = [block for block in best.problem.blocks if not block.after]
    assert len(heads) == 2 and all(block.kind == BlockKind.FORWARD for block in best.problem.blocks)


@pytest.mark.slow
@pytest.mark.parametrize("model, run", [(GPT, TRAINING), (T5, TRAINING), (FLAVA, TRAINING), (FLAVA, INFERENCE)])
def test_every_candidate_places_every_layer_and_runs(model: str, run: str) -> None:
    """Each replica has each layer once; on each GPU a greedy schedule is valid, no faster than the bound on any
    placement."""
    space, found, _ = found_of(spec_of(model, run=run))
    candidates = list(itertools.chain(*found.values()))
    assert len(candidates) >= 3
    for candidate in candidates:
        for replica in range(candidate.replicas):
            placed = [name for part, names in zip(candidate.parts, candidate.layers_of_part, strict=True)
                      if part.replica == replica for name in names]
            assert sorted(placed) == sorted(space.layers)
        assert sorted(itertools.chain(*candidate.gpus)) == [0, 1, 2, 3]
        schedule = valid(baseline("greedy", candidate.problem, 8 // candidate.replicas))
        assert schedule.makespan >= replace(space, both_ways=candidate.replicas > 1).least_makespan(8) * (1 - 1e-9)


def test_weights_are_divided_and_shared_ones_count_once() -> None:
    space, found, _ = found_of(spec_of(GPT))
    (tensor, *_) = found["tensor"]
    per_gpu = space.sharded[4].graph.parameter_count() * space.bytes_per_parameter
    assert tensor.static_memory == (per_gpu,)
    evenly = space.graph.parameter_count() * space.bytes_per_parameter / space.gpus
    assert per_gpu < 1.01 * evenly + 1e6
    embedding, head = space.costs[4][0], space.costs[4][-1]
    m = next(c for c in found["m"] if len(c.gpus) == 4)
    stage = max(part.cost.parameters for part in m.parts if part.degree == 1) * space.bytes_per_parameter
    both = (embedding.parameters + head.parameters) * space.bytes_per_parameter
    assert max(m.static_memory) < both + stage  # the tied table is there once


def test_a_shared_table_that_cannot_be_divided_stays_whole_on_every_gpu() -> None:
    """A vocabulary like GPT-2's, 50257, is odd; a hidden state can be divided, but the head divides by rows."""
    spec = spec_of("{family: gpt, layers: 2, hidden: 256, heads: 4, vocabulary: 50257, sequence: 64}")
    space = space_of(spec, family_costs(spec))
    assert space is not None
    for degree in (2, 4):
        held = space.sharded[degree].graph.parameters
        assert held["embedding.tokens.weight"].count == 50257 * 256
        assert held["layer0.mlp.up.weight"].count == 4 * 256 * 256 // degree


def test_groups_of_gpus_are_cut_as_all_ways_to_cut_say() -> None:
    """Every number of stages against every assignment of layers and degrees."""
    spec = spec_of("{family: gpt, layers: 3, hidden: 512, heads: 8, vocabulary: 32768, sequence: 512}")
    space = space_of(spec, family_costs(spec))
    assert space is not None
    count = len(space.layers)
    stages = {degree: Stages(space.costs[degree]) for degree in space.degrees}
    for room in (32 * 1024**3, 220 * 1024**2, 150 * 1024**2):
        chain = LayerChain(space.costs, 0, count, frozenset(), room, space.bytes_per_parameter, 8, "full")
        found = {len(split): max(stage.cost.load for stage in split) for split in split_onto_groups(chain, 4)}
        for number in range(1, 5):
            best = None
            for cuts in itertools.combinations(range(1, count), number - 1):
                for degrees in itertools.product(space.degrees, repeat=number):
                    if sum(degrees) != 4:
                        continue
                    pieces = [GroupStage(stages[d].stage(i, j), d)
                              for d, i, j in zip(degrees, (0, *cuts), (*cuts, count), strict=True)]
                    if all(static_bytes([p.cost], chain.bytes_per_parameter) + (number - s) * p.cost.activation
                           + max(p.cost.workspace_forward, p.cost.workspace_backward) <= room
                           for s, p in enumerate(pieces)):
                        load = max(p.cost.load for p in pieces)
                        best = load if best is None else min(best, load)
            assert found.get(number) == best


@pytest.mark.parametrize("chunks", ["v", "loop"])
@pytest.mark.parametrize("model, shape", [(GPT, "m"), (T5, "nn")])
def test_two_chunks_a_group_between_what_all_gpus_compute(model: str, shape: str, chunks: Chunks) -> None:
    """Down the groups and back up, or twice down; no chunk on both sides of the layer that all compute; it runs."""
    space = space_of(spec_of(model), family_costs(spec_of(model)))
    assert space is not None
    found, _ = shape_candidates(space, (shape,), ("full", "split"), (chunks,))
    made = [candidate for candidate in found if candidate.chunks == chunks]
    assert {candidate.backward for candidate in made} == {"full", "split"}
    for candidate in made:
        assert f"{'V' if chunks == 'v' else 'loop'} of 2 chunks" in candidate.title
        row = [part for part in candidate.parts if part.degree < space.gpus]
        groups = list(dict.fromkeys(part.gpus for part in row))
        assert [part.gpus for part in row] == groups + (groups[::-1] if chunks == "v" else groups)
        assert sorted(itertools.chain(*groups)) == [0, 1, 2, 3]
        assert all(part.layers == tuple(range(part.layers[0], part.layers[-1] + 1)) for part in candidate.parts)
        assert sorted(itertools.chain(*(part.layers for part in candidate.parts))) == list(range(len(space.layers)))
        schedule = valid(baseline("greedy", candidate.problem, 8))
        assert schedule.makespan >= space.least_makespan(8) * (1 - 1e-9)


def test_chunks_are_cut_as_all_ways_to_cut_say() -> None:
    """The least load of a GPU over all cuts that keep to the layer inside, and none where no cut fits."""
    spec = spec_of("{family: t5, encoder_layers: 3, decoder_layers: 4, hidden: 256, heads: 8, feed_forward: 1024, "
                   "vocabulary: 32768, sequence: 256, positions: learned}", gpus=2)
    space = space_of(spec, family_costs(spec))
    assert space is not None
    layers = [i for i in range(len(space.layers)) if i not in space.vocabulary_layers]
    runs = [tuple(layers[i:j]) for i, j in itertools.combinations(range(len(layers) + 1), 2)]
    stages = {run: stage_cost(space.costs[1], run) for run in runs if run[-1] - run[0] == len(run) - 1}
    for chunks, pairs in (("v", ((0, 3), (1, 2))), ("loop", ((0, 2), (1, 3)))):
        loads = []
        for cuts in itertools.combinations(range(1, len(layers)), 3):
            runs = [tuple(layers[i:j]) for i, j in zip((0, *cuts), (*cuts, len(layers)), strict=True)]
            if all(run in stages for run in runs):
                loads.append(max(stages[runs[a]].load + stages[runs[b]].load for a, b in pairs))
        found = list(chunked(space, layers, cast(Chunks, chunks), "full", 32 * 1024**3))
        assert len({part.gpus for part in found[0]}) == 2
        assert max(found[0][a].cost.load + found[0][b].cost.load for a, b in pairs) == min(loads)
        assert not list(chunked(space, layers, cast(Chunks, chunks), "full", 1024**2))


def test_too_few_layers_or_gpus_make_no_chunks() -> None:
    space = space_of(spec_of(GPT), family_costs(spec_of(GPT)))
    assert space is not None
    assert {part.degree for part in next(chunked(space, range(1, 5), "v", "full", 2**36))} == {2}  # 4 layers: 2 groups
    assert not list(chunked(space, range(1, 4), "v", "full", 2**36))


def test_too_little_memory_is_said_with_what_is_missing() -> None:
    _, found, why = found_of(spec_of(GPT, memory="100 MiB"))
    assert not any(found.values())
    assert "a GPU needs at least" in why["tensor"] and "100 MiB" in why["tensor"]


def test_another_machine_is_farther_away() -> None:
    """A collective and a transfer between machines take longer than within one."""
    near, _, _ = found_of(spec_of(GPT), ("tensor",))
    far, found, _ = found_of(spec_of(GPT, cluster=", gpus_per_machine: 2"), ("tensor", "m"))
    assert far.costs[4][1].forward > near.costs[4][1].forward
    assert far.costs[2][1].forward == near.costs[2][1].forward
    assert far.network.seconds(10**6, (0,), (3,)) > far.network.seconds(10**6, (0,), (1,))
    assert far.network.seconds(10**6, (0, 1), (1,)) == 0.0
    assert found["tensor"] and found["m"]


@pytest.mark.slow
def test_solve_picks_the_shape_and_says_what_the_others_cost() -> None:
    """The table fits on no GPU alone; the answer is judged on every GPU."""
    spec = spec_of(GPT, memory="1300 MiB", more="placement: {backward: [full]}")
    schedule = valid(weft.solve(spec, effort=0.5))
    assert len(schedule.problem.devices) == 4
    assert schedule.solver["placement"].startswith("M, ")
    verdicts = {entry["placement"]: entry["verdict"] for entry in schedule.solver["alternatives"]}
    assert verdicts[schedule.solver["placement"]] == "chosen" and verdicts["tensor parallel, B"] in ("bound", "worse")
    assert verdicts["chain"] == "none" and verdicts["nn"] == "none"
    assert schedule.solver["bound_over_any_placement"] <= schedule.solver["bound_over_placements"]
    text = "\n".join(choice_lines(schedule))
    assert "optimizer state" in text and "activations and workspace" in text
    assert "embedding on all 4 GPUs: 1 all-reduce a micro-batch" in text and "does not fit" not in text
    assert "fits: gpu" in text  # why the chain is none


@pytest.mark.slow
def test_placements_of_one_name_are_told_apart() -> None:
    """A V is cut for one micro-batch in flight, and otherwise for as many as 1F1B holds."""
    listed = """
name: listed
model:
  layers:
    - {name: a, forward: 1 ms, input_grad: 1 ms, weight_grad: 2 ms, activation_memory: 50 MiB, parameters: 100000000}
    - {name: b, repeat: 24, forward: 6 ms, input_grad: 6 ms, weight_grad: 5 ms, activation_memory: 700 MiB,
       parameters: 50000000}
    - {name: c, forward: 9 ms, input_grad: 10 ms, weight_grad: 10 ms, activation_memory: 400 MiB,
       parameters: 100000000}
cluster: {gpus: 4, memory: 24 GiB, bandwidth: 36 GB/s}
training: {micro_batches: 8}
placement: {shapes: [v], backward: [split]}
"""
    schedule = weft.solve(parse_spec(listed), effort=0.2)
    placements = [entry["placement"] for entry in schedule.solver["alternatives"]]
    assert set(placements) == {"V, 2 chunks, I+W"} and len(placements) >= 2
    assert {line.partition(":")[0] for line in choice_lines(schedule) if line.startswith("V, ")} == {
        "V, 2 chunks, I+W, cut otherwise"}


def test_only_shapes_that_cannot_be_are_refused() -> None:
    with pytest.raises(Infeasible, match="no towers"):
        case_of(spec_of(GPT, more="placement: {shapes: [k]}"))
    listed = """
name: listed
model: {layers: [{name: a, forward: 1 ms, backward: 2 ms, repeat: 4}]}
cluster: {gpus: 2, memory: 1 GiB, bandwidth: 1 GB/s}
training: {micro_batches: 4}
placement: {shapes: [tensor]}
"""
    with pytest.raises(SpecError, match="shapes is tensor"):
        case_of(parse_spec(listed))


def test_a_shape_that_fits_in_one_mode_is_not_refused_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A split backward needs more workspace; what has no room for it may still be there with a whole one."""
    space = space_of(spec_of(GPT), family_costs(spec_of(GPT)))
    assert space is not None
    whole_only = shapes._of_shape

    def no_room_when_split(space: Space, shape: Any, backward: Any) -> list[ShapeCandidate]:
        if backward == "split":
            raise NoShape("no room")
        return whole_only(space, shape, backward)

    monkeypatch.setattr(shapes, "_of_shape", no_room_when_split)
    found, refused = shape_candidates(space, ("m", "tensor"), ("full", "split"))
    assert {(entry.shape, entry.backward) for entry in found} == {("m", "full"), ("tensor", "full")} and not refused
    found, refused = shape_candidates(space, ("m", "tensor"), ("split",), ("v",))
    assert {(entry.shape, entry.chunks) for entry in found} == {("m", "v")}
    assert [(entry.shape, entry.reason) for entry in refused] == [("tensor", "no room")]


def test_what_its_devices_work_alone_rules_out_gets_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor parallelism across slow links: its bound stands in the answer, no search was begun for it."""
    spec = spec_of(GPT, cluster=", gpus_per_machine: 1", more="placement: {shapes: [tensor, m], backward: [full]}")
    begun: list[str] = []

    class Counted(Search):
        def __init__(self, problem: Problem, *arguments: Any, **options: Any) -> None:
            begun.append(problem.name)
            super().__init__(problem, *arguments, **options)

    monkeypatch.setattr("weft.solver.portfolio.Search", Counted)
    schedule = weft.solve(spec, effort=0.2)
    assert schedule.solver["placement"].startswith("M, ")
    assert begun and not any("(tensor" in name for name in begun)
    entry = next(e for e in schedule.solver["alternatives"] if e["placement"] == "tensor parallel, B")
    assert entry["verdict"] == "bound" and entry["makespan"] is None
    assert schedule.makespan <= entry["bound"]
    assert schedule.solver["placements"] > len(begun)
