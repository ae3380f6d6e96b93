"""Placements whose stages have alternatives: under every assignment they are the placements of today."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, islice

import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from weft.models.candidates.alternatives import OpenCandidate, activations_choice, open_candidates
from weft.models.candidates.build import bytes_per_parameter, candidate_of, candidates
from weft.models.candidates.gpu_costs import gpu_costs
from weft.models.candidates.stage_split import NoSplit, split_at
from weft.models.candidates.stages import MemoryRule
from weft.models.layers.cluster import model_cluster
from weft.models.spec.spec import Spec, SpecError, parse_spec
from weft.solver import Block, BlockKind, Problem, Schedule, time_orders, violations

LAYERS = """\
name: small
model:
  layers:
    - {{name: embedding, forward: 1 ms, input_grad: 0, weight_grad: 1 ms, activation_memory: 10, output: 1000}}
    - {{name: block, repeat: 6, forward: 1 ms, input_grad: 2 ms, weight_grad: 1 ms, activation_memory: 3000,
       weight_grad_memory: {held}, parameters: 10, workspace: 7, output: 1000}}
    - {{name: head, forward: 2 ms, input_grad: 1 ms, weight_grad: 1 ms, activation_memory: 1500, parameters: 20}}
cluster: {{gpus: {gpus}, memory: {memory}, reserve: 0, bandwidth: 1 MB/s{host}}}
{run}
placement: {{{placement}}}
"""
TRAINING = "training: {micro_batches: 4}"
AGAIN = "training: {micro_batches: 4, recompute: true}"


def small(placement: str = "", *, run: str = TRAINING, host: str = "", memory: object = 100_000, gpus: int = 2,
          held: int = 400) -> Spec:
    return parse_spec(LAYERS.format(gpus=gpus, memory=memory, held=held, run=run, placement=placement,
                                    host=f", host_bandwidth: {host}" if host else ""))


def with_choices(choices: str, *, activations: str = "", host: str = "", memory: object = 100_000, gpus: int = 2,
                 held: int = 400) -> Spec:
    return small(f"choices: [{choices}]" + (f", activations: [{activations}]" if activations else ""), host=host,
                 memory=memory, gpus=gpus, held=held)


def under(found: OpenCandidate, *, activations: str = "keep", backward: str = "full") -> Problem:
    """Every stage alike, as far as it can be."""
    options = {choice: next((o for o in options if o in (activations, backward)), options[0])
               for choice, options in found.problem.choices.items()}
    return found.problem.under(options).plain()


def unnamed(problem: Problem) -> dict[str, Block]:
    """The blocks by name, an input gradient by the name that a whole backward has, whatever the order of the file."""
    def name(text: str) -> str:
        return f"B{text[1:]}" if text[0] == "I" else text

    return {name(block.name): replace(block, name=name(block.name), after=tuple(
        replace(wait, block=name(wait.block)) for wait in block.after)) for block in problem.blocks}


@pytest.mark.parametrize("backward", ["full", "split"])
@pytest.mark.parametrize(("way", "run"), [("keep", TRAINING), ("recompute", AGAIN)])
def test_all_stages_alike_are_the_placement_of_today(way: str, run: str, backward: str) -> None:
    compared = 0
    today = {(c.shape, c.backward, c.layers_of_stage): c for c in candidates(small(run=run))}
    for found in open_candidates(with_choices("activations")):
        same = today.get((found.plain.shape, found.plain.backward, found.plain.layers_of_stage))
        if same is None or found.plain.backward != backward:
            continue
        plain = under(found, activations=way)
        assert plain.blocks == same.problem.blocks
        assert plain.devices == same.problem.devices and plain.model == same.problem.model
        compared += 1
    assert compared


@for_all(st.integers(2, 3), st.sampled_from([400, 4000]), st.data(), tries=25)
def test_every_assignment_is_what_its_stages_make(gpus: int, held: int, data: st.DataObject) -> None:
    """Stages that keep and stages that recompute in one split, as :func:`candidate_of` puts them together."""
    spec, again = small(gpus=gpus, held=held), small(gpus=gpus, held=held, run=AGAIN)
    found = data.draw(st.sampled_from(open_candidates(with_choices(
        "activations", activations="keep, recompute", gpus=gpus, held=held))))
    choices = found.problem.choices
    options = {choice: data.draw(st.sampled_from(options)) for choice, options in choices.items()}
    cluster = model_cluster(spec.cluster)
    cuts = list(accumulate(map(len, found.plain.layers_of_stage), initial=0))
    rule = MemoryRule(found.plain.backward, bytes_per_parameter(spec), cluster.reserve)
    kept, recomputed = (split_at(found.plain.shape, gpu_costs(one).layers, cuts, cluster.memory, rule=rule)
                        for one in (spec, again))
    stages = tuple(other if options.get(activations_choice(s)) == "recompute" else stage
                   for s, (stage, other) in enumerate(zip(kept.stages, recomputed.stages, strict=True)))
    mixed = candidate_of(spec, replace(kept, stages=stages), found.plain.backward, "least", gpu_costs(spec).layers[0],
                         cluster)
    assert unnamed(found.problem.under(options).plain()) == unnamed(mixed.problem)


@for_all(st.integers(0, 10**6), tries=25)
def test_all_memory_is_given_back(number: int) -> None:
    spec = with_choices("activations, backward", host="1 MB/s")
    for found in open_candidates(spec):
        assignments = list(islice(found.problem.assignments, number % 500, number % 500 + 3))
        for options in assignments:
            plain = found.problem.under(options).plain()
            held = dict.fromkeys(range(len(plain.devices)), 0.0)
            for block in plain.blocks:
                for device, amount in zip(block.devices, block.memory, strict=True):
                    held[plain.pool_of[device]] += amount
            assert set(held.values()) == {0}


def test_what_recomputes_ahead_does_the_same_work_with_the_room_of_what_is_kept() -> None:
    found = next(c for c in open_candidates(with_choices("activations")) if c.plain.shape == "chain"
                 and c.plain.backward == "full")
    together, ahead, kept = (under(found, activations=way) for way in ("recompute", "recompute-ahead", "keep"))
    for s in range(2):
        first, again, last = (ahead.blocks[ahead.index[name]] for name in (f"F{s}", f"R{s}", f"B{s}"))
        assert again.kind == BlockKind.RECOMPUTE and [wait.block for wait in again.after] == [f"F{s}"]
        assert f"R{s}" in [wait.block for wait in last.after]
        assert again.duration + last.duration == pytest.approx(together.blocks[together.index[f"B{s}"]].duration)
        whole = kept.blocks[kept.index[f"F{s}"]]
        assert first.memory[0] + again.memory[0] == whole.memory[0] == -last.memory[0]
        assert first.memory[0] < whole.memory[0]


def test_what_is_offloaded_leaves_and_comes_on_lanes_of_its_gpu() -> None:
    spec = with_choices("activations", activations="keep, offload", host="1 MB/s")
    found = next(c for c in open_candidates(spec) if c.plain.shape == "chain" and c.plain.backward == "full")
    assert [device.lane_of for device in found.problem.devices] == [None, None, "gpu0", "gpu0", "gpu1", "gpu1"]
    plain = under(found, activations="offload")
    for s in range(2):
        out, back = plain.blocks[plain.index[f"F{s} out"]], plain.blocks[plain.index[f"F{s} in"]]
        received = 1000 if s else 0
        size = plain.blocks[plain.index[f"F{s}"]].memory[0] - received
        assert (out.memory, back.memory) == ((-size,), (size,))
        assert out.duration == back.duration == pytest.approx(size / 1e6)
        assert out.devices != back.devices
        assert f"F{s} in" in [wait.block for wait in plain.blocks[plain.index[f"B{s}"]].after]


def test_without_a_host_there_is_no_offloading_and_what_changes_nothing_is_no_option() -> None:
    for found in open_candidates(with_choices("activations")):
        assert all("offload" not in options for options in found.problem.choices.values())
        assert not found.problem.devices[-1].lane_of
    kept = {choice for found in open_candidates(with_choices("backward")) for choice in found.problem.choices}
    assert all(choice.startswith("backward") for choice in kept)


def test_a_cut_that_fits_only_where_some_stages_recompute_is_there() -> None:
    spec = small(memory=10_000)
    with pytest.raises(NoSplit):
        candidates(spec)
    found = open_candidates(with_choices("activations", memory=10_000))
    assert found
    problem = found[0].problem
    assert not _fits(under(found[0])) and _fits(under(found[0], activations="recompute"))
    assert any(_fits(problem.under(options).plain()) for options in problem.assignments
               if len(set(options.values())) > 1 or "recompute" in options.values())


def _fits(problem: Problem) -> bool:
    """Whether one micro-batch alone fits."""
    alone = [[(block, 0) for block in row] for row in problem.blocks_on]
    return not violations(Schedule(problem, 1, time_orders(problem, 1, alone), makespan_bound=0), limit=1)


@pytest.mark.parametrize(("change", "sentence"), [
    ("choices: [activations], shapes: [tensor]", "placement: choices is of one GPU a stage"),
    ("choices: [backward], backward: [full]", "placement: choices has backward, but backward is full"),
    ("activations: [keep, recompute]", "add choices: [activations]"),
    ("choices: [activations], activations: [keep, offload]", "there is no cluster.host_bandwidth"),
    ("choices: [activations], activations: [keep]", "placement.activations"),
    ("choices: [cuts]", "it must be activations or backward")])
def test_choices_that_mean_nothing_are_refused(change: str, sentence: str) -> None:
    with pytest.raises(SpecError, match="spec: ") as error:
        small(change)
    assert sentence in str(error.value)


@pytest.mark.parametrize(("run", "sentence"), [
    ("inference: {micro_batches: 3}", "placement.choices is for training"), (AGAIN, "training.recompute is true")])
def test_choices_of_a_run_that_has_none_are_refused(run: str, sentence: str) -> None:
    with pytest.raises(SpecError) as error:
        small("choices: [activations]", run=run)
    assert sentence in str(error.value)
