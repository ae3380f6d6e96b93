"""What runs is what was planned: another cut, a forgotten tie and a backward that cannot be split are refused.

Run as a program (``python -m tests.runtime.train.test_agreement PLAN``), this file is one rank of what its tests
launch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

import weft
from tests.support import chain, for_all, launch_forked, pipeline
from tests.support.agreements import CPU, WIDTH, a_plan, layers, measured, sign, training_of
from tests.support.exported_models import MODELS, Tied
from weft.cli.main import main
from weft.models import parse_spec, save_graph
from weft.models.candidates.build import candidates
from weft.runtime import Boundary, MeasuredStages, Ports, SessionError, Training, measured_problem
from weft.runtime.checkpoint.signature import SignatureError, signed
from weft.runtime.measure.measure_stages import measure_stages, measured_ties
from weft.runtime.measure.stage_costs import stage_costs_from_json, stage_costs_to_json
from weft.runtime.plan.plan import Plan, load_plan, plan_from_json, plan_of, plan_to_json, save_plan
from weft.runtime.replay.replay import replay_single_rank
from weft.runtime.train.agreement import Allowed, differences, facts_of, require_allowed
from weft.solver import Problem, baseline
from weft.solver.io.entries import FormatError
from weft.solver.io.problem_files import problem_from_json, problem_to_json
from weft.solver.model_facts import ModelFacts, StageFacts

# -- another model -----------------------------------------------------------------------------------------------------


def test_another_cut_than_the_plan_s_is_refused() -> None:
    plan = measured([layers(2), layers(3)])
    assert sign(plan, layers(2), layers(3))[1] == []
    with pytest.raises(SignatureError, match=r"^stage 0 has 126 parameters, but the plan is for a stage of 84: cut the "
                                             r"model as the plan does, .*--allow-other-model$"):
        sign(plan, layers(3), layers(2))
    told = sign(plan, layers(3), layers(2), allowed=Allowed(model=True))[1]
    assert len(told) == 4  # numbers and bytes of both stages
    facts = [facts_of(plan, training_of([layers(3), layers(2)], [0, 1], rank)) for rank in (0, 1)]
    with pytest.raises(SessionError, match=r"cut the model as the plan does[^-]*$"):  # where there are no flags
        require_allowed(plan, facts, None, told.append)


@for_all(st.lists(st.integers(1, 3), min_size=2, max_size=7), st.data(),
         tries=int(os.environ.get("WEFT_CUTS", "60")))
def test_only_the_stages_that_were_planned_are_accepted(sizes: list[int], data: st.DataObject) -> None:
    """Layers of several widths, cut at random: nothing is said if and only if each stage has what it was planned with
    (a cut elsewhere may put as many parameters into each)."""
    planned, there = (data.draw(st.integers(1, len(sizes) - 1)) for _ in range(2))

    def cut(at: int) -> list[nn.Module]:
        made = [nn.Sequential(*(nn.Linear(1, 2 * size, bias=False) for _ in range(size))) for size in sizes]
        return [nn.Sequential(*made[:at]), nn.Sequential(*made[at:])]

    costs = [sum(p.numel() for p in module.parameters()) for module in cut(planned)]
    plan = a_plan(split=None)
    plan = replace(plan, problem=replace(plan.problem, model=facts(costs)))
    told = [text for rank in (0, 1) for text, _ in differences(plan, [
        facts_of(plan, training_of(cut(there), [0, 1], rank))])]
    counts = [sum(p.numel() for p in module.parameters()) for module in cut(there)]
    assert len(told) == sum(one != other for one, other in zip(costs, counts, strict=True))


def facts(parameters: Sequence[int], **more: Any) -> ModelFacts:
    return ModelFacts(tuple(StageFacts(f"f{s}", parameters=count) for s, count in enumerate(parameters)), **more)


def test_layers_that_are_named_must_be_those_of_the_plan() -> None:
    """Layers alike, and those without parameters, are told apart by nothing else."""
    plan = a_plan(split=None)
    stages = (StageFacts("f0", ("one", "two")), StageFacts("f1", ("three",)))
    plan = replace(plan, problem=replace(plan.problem, model=ModelFacts(stages)))
    part = training_of([layers(2), layers(1)], [0, 1], 0)
    for names, said in ((["one", "two"], []), ((), []), (["two", "one"], ["two to one, 2 layers"]), (["one"], ["one"])):
        part.layers = {0: names}
        told = [text for text, _ in differences(plan, [facts_of(plan, part)])]
        assert told == [f"stage 0 holds {what}, but the plan is for a stage of one to two, 2 layers: cut the model as "
                        "the plan does, or plan for this one" for what in said]


def test_what_a_stage_hands_on_must_be_what_was_planned() -> None:
    plan = measured([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
    wide = training_of([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)], [0, 1], 0, width=WIDTH)
    wide.boundaries = [Boundary((3, WIDTH))]
    (said, flag), = differences(plan, [facts_of(plan, wide)])
    assert said.startswith("stage 0 has 72 bytes to hand on, but the plan is for a stage of 48") and flag == "model"
    wide.boundaries = [Boundary((2, WIDTH), torch.bfloat16)]
    (said, _), = differences(plan, [facts_of(plan, wide)])
    assert said.startswith("stage 0 has 24 bytes to hand on")


def test_a_model_of_a_family_may_differ_a_little() -> None:
    plan = a_plan(split=None)
    plan = replace(plan, problem=replace(plan.problem, model=facts([100, 42], tolerance=0.6)))
    assert not list(differences(plan, [facts_of(plan, training_of([layers(1), layers(1)], [0, 1], 0))]))
    plan = replace(plan, problem=replace(plan.problem, model=facts([100, 42], tolerance=0.5)))
    (said, _), = differences(plan, [facts_of(plan, training_of([layers(1), layers(1)], [0, 1], 0))])
    assert said.startswith("stage 0 has 42 parameters, but the plan is for a stage of 100")


@pytest.mark.parametrize(("stages", "boundaries", "says"), [
    ({0: 1}, 1, r"rank 1 runs the stages \[1\], but was handed the modules of \[0\]"),
    (None, 2, "boundaries has 2 entries, but 2 stages have 1 between them"),
])
def test_other_numbers_of_stages_are_refused_when_the_plan_is_made(
        stages: dict[int, int] | None, boundaries: int, says: str) -> None:
    def factory(plan: Plan, rank: int) -> Training:
        made = training_of([layers(1), layers(1)], [0, 1], 0 if stages else rank)
        made.boundaries = [Boundary((2, WIDTH))] * boundaries
        return made

    with pytest.raises(SignatureError, match=says):
        signed(a_plan(split=None), factory)


# -- ties --------------------------------------------------------------------------------------------------------------


def tied(devices: Sequence[int], *, say: bool) -> list[nn.Module]:
    torch.manual_seed(1)
    made: list[nn.Module] = [nn.Linear(WIDTH, WIDTH) for _ in devices]
    with torch.no_grad():
        made[-1].weight.copy_(made[0].weight)  # type: ignore[arg-type, operator]
    return made


def test_a_tie_that_was_measured_and_is_forgotten_is_refused() -> None:
    tie = [{0: "weight", 1: "weight"}]
    plan = measured(tied([0, 0], say=True), ties=tie)
    assert sign(plan, *tied([0, 1], say=True), ties=tie)[0].shared == ((0, 1),)
    with pytest.raises(SignatureError, match=r"^'weight' is one parameter in the stages 0, 1, but their modules do not "
                                             r"share it and no tie names it, so each stage would train its own"):
        sign(plan, *tied([0, 1], say=False))
    assert len(sign(plan, *tied([0, 1], say=False), allowed=Allowed(model=True))[1]) == 1


def test_a_shared_object_is_a_tie_too() -> None:
    one = nn.Linear(WIDTH, WIDTH)
    whole = training_of([one, nn.Linear(WIDTH, WIDTH), one], [0, 0, 0], 0)
    assert measured_ties(whole) == (("weight", (0, 2)), ("bias", (0, 2)))
    costs = measure_stages(whole, device=CPU, repeats=1)
    made = measured_problem(costs, ties=measured_ties(whole))
    again = MeasuredStages("cpu", "2", tuple(costs), measured_ties(whole))
    assert stage_costs_from_json(json.loads(json.dumps(stage_costs_to_json(again)))) == again
    on_one = replace(made, devices=made.devices[:1], blocks=tuple(replace(b, devices=(0,)) for b in made.blocks))
    plan = plan_of(baseline("greedy", on_one, 2))
    assert sign(plan, one, nn.Linear(WIDTH, WIDTH), one)[0].shared == ((0, 2),)
    with pytest.raises(SignatureError, match="is one parameter in the stages 0, 2"):
        sign(plan, *(nn.Linear(WIDTH, WIDTH) for _ in range(3)))


def test_a_tie_that_was_signed_and_is_forgotten_is_refused() -> None:
    tie = [{0: "weight", 1: "weight"}]
    plan = sign(a_plan(split=None), *tied([0, 1], say=True), ties=tie)[0]
    found = [facts_of(plan, training_of(tied([0, 1], say=False), [0, 1], rank)) for rank in (0, 1)]
    (said, flag), = differences(plan, found)
    assert said.startswith("what stages 0 and 1 shared when the plan was signed is one parameter") and flag == "model"


def test_what_capture_knows_of_a_tie_reaches_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the model through a graph, a spec and a plan to another script's stages, which forget it."""
    monkeypatch.chdir(tmp_path)
    model, example = Tied(2), MODELS["tied"][1]()
    torch.export.save(torch.export.export(model, example), "tied.pt2")
    save_graph(weft.capture("tied.pt2"), "tied.json")
    spec = """
name: tied
model: {graph: tied.json}
costs: v100
cluster: {gpus: 2, memory: 4 GiB, device: v100, bandwidth: 30 GB/s}
training: {micro_batches: 2, micro_batch_size: 1, parameter_bytes: 4, gradient_bytes: 4}
placement: {shapes: [chain], backward: [full]}
"""
    Path("spec.yaml").write_text(spec)
    for made in (candidates(parse_spec(spec, folder=tmp_path))[0].problem, placed()):
        plan = plan_of(baseline("1f1b", made, 2))
        assert made.model is not None and [tie.stages for tie in made.model.ties] == [("F0", "F1")]
        names = [stage.layers for stage in made.model.stages]
        head = nn.Linear(16, 32, bias=False)
        head.weight = nn.Parameter(model.table.weight.detach().clone())
        parts: dict[str, nn.Module] = {"table": model.table, **{f"blocks.{i}": b for i, b in enumerate(model.blocks)},
                                       "head": head}
        modules = [nn.ModuleDict({name.replace(".", "_"): parts[name] for name in own if name in parts})
                   for own in names]
        first, last = (next(s for s, own in enumerate(names) if name in own) for name in ("table", "head"))
        ties = [{first: "table.weight", last: "head.weight"}]

        def stages(plan: Plan, rank: int, ties: Any = ties, modules: Any = modules) -> Training:
            part = training_of(modules, [0, 1], rank, ties=ties)
            part.boundaries = [Boundary((2, 12, 16))]
            return part

        assert signed(plan, stages).shared == ((0, 1),)
        with pytest.raises(SignatureError, match=r"'(head|table)\.weight' is one parameter in the stages 0, 1"):
            signed(plan, lambda plan, rank, stages=stages: stages(plan, rank, ()))  # type: ignore[misc]


def placed() -> Problem:
    """The graph cut by ``weft place``."""
    assert main(["place", "tied.json", "--devices", "v100=2", "--stage-graph", "--problem", "problem.json", "--quiet",
                 "--effort", "2"]) == 0
    return problem_from_json(json.loads(Path("problem.json").read_text()))


# -- files -------------------------------------------------------------------------------------------------------------


def test_plans_say_what_their_stages_are_and_older_ones_load() -> None:
    plan = measured([layers(2), layers(3)], "split")
    value = json.loads(json.dumps(plan_to_json(plan)))
    assert plan_from_json(value) == plan and plan.problem.model is not None
    del value["problem"]["model"]
    older = plan_from_json(value)
    assert older.problem.model is None and sign(older, layers(1), layers(1))[1] == []


@pytest.mark.parametrize(("model", "says"), [
    ({"stages": [{"forward": "f9"}]}, 'there is no block named "f9"'),
    ({"stages": [{"forward": "f0"}, {"forward": "f0"}]}, "names a forward block twice"),
    ({"stages": [{"forward": "f0", "parameters": -1}]}, "parameters is -1"),
    ({"stages": [{"forward": "f0", "layers": "x"}]}, 'layers is "x", it must be a list of texts'),
    ({"stages": [], "ties": [{"parameter": "w", "stages": ["f0", 1]}]}, "it must be a list of texts"),
    ({"stages": [], "tolerance": 2}, "tolerance is 2"),
    ({"stages": [], "more": 2}, "more"),
    ({}, "stages"),
    ([], "it must be an object"),
])
def test_a_model_entry_that_means_nothing_is_refused(model: object, says: str) -> None:
    value = {**problem_to_json(pipeline(chain(2))), "model": model}
    with pytest.raises(FormatError, match=f"problem: model.*{says}"):
        problem_from_json(value)


# -- real ranks --------------------------------------------------------------------------------------------------------


def forgetful(plan: Plan, rank: int) -> Training:
    """What a script gives that does not know of the tie."""
    return training_of(tied([0, 1], say=False), [0, 1], rank)


def faithful(plan: Plan, rank: int) -> Training:
    return training_of(tied([0, 1], say=True), [0, 1], rank, ties=[{0: "weight", 1: "weight"}])


@pytest.mark.slow
def test_all_ranks_say_what_differs_before_the_first_step(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(measured(tied([0, 0], say=True), ties=[{0: "weight", 1: "weight"}]), path)
    command = [sys.executable, "-m", "tests.runtime.train.test_agreement", str(path)]
    for allowed, codes in (((), [2, 2]), (("--allow-other-model",), [0, 0])):
        ends = launch_forked(2, [*command, "forgetful", *allowed])
        assert [end.code for end in ends] == codes, ends
        told = [line for end in ends for line in end.errors.splitlines() if "'weight' is one parameter" in line]
        assert len(told) == (1 if allowed else 2), ends
        if codes == [2, 2]:
            assert not any("Traceback" in end.errors for end in ends)


def test_a_rank_alone_says_it_too(tmp_path: Path) -> None:
    save_plan(measured(tied([0, 0], say=True), ties=[{0: "weight", 1: "weight"}]), tmp_path / "plan.json")
    with pytest.raises(SessionError, match="'weight' is one parameter in the stages 0, 1"):
        replay_single_rank(tmp_path / "plan.json", stages=f"{__name__}:forgetful", device="cpu", repeats=1)
    replay_single_rank(tmp_path / "plan.json", stages="tests.runtime.train.test_agreement:faithful", device="cpu",
                       repeats=1)
    replay_single_rank(tmp_path / "plan.json", [1], stages=f"{__name__}:forgetful", device="cpu", repeats=1,
                       allow_other_model=True)
    assert load_plan(tmp_path / "plan.json").problem.model is not None


def test_in_a_graph_values_that_stay_on_a_rank_need_no_size() -> None:
    plan = a_plan(split=None)
    part = training_of([layers(1), layers(1)], [0, 1], 0)
    part.ports = {0: Ports(("x",), ("y",)), 1: Ports(("y",), ("loss",))}
    part.boundaries = {"y": Boundary((2, WIDTH))}
    assert facts_of(plan, part).outputs == {0: 8 * WIDTH}


if __name__ == "__main__":
    module = "tests.runtime.train.test_agreement"
    sys.exit(main(["replay", sys.argv[1], "--stages", f"{module}:{sys.argv[2]}", "--timeout", "20",
                   *sys.argv[3:]]))
