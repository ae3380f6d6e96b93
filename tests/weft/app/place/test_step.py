"""Graph, sizes and order of a step from specs and operator graphs: what is written, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import weft
from tests.support.commands import refusal, shows
from weft.app.place.step import SizesAsked, parse_sizes, step_schedule
from weft.models import model_graph, save_graph
from weft.models.spec.families import UnoModel
from weft.runtime.plan.plan import plan_of
from weft.runtime.plan.stage_graph import NotAStageGraph, StageGraph
from weft.solver import Schedule, load_problem, load_schedule
from weft.solver.placement.joint.answer import PlacedStep
from weft.solver.placement.joint.candidates import candidate_of
from weft.solver.placement.problem import PlacementError

_SPEC = """
name: branches
model: {family: mmt, branches: 2, layers: 2, hidden: 512, heads: 8, feed_forward: 2048, sequence: 128}
cluster: {gpus: 4, memory: 1400 MiB, device: v100, links: nvlink-v100}
training: {micro_batches: 8, micro_batch_size: 4, parameter_bytes: 4, gradient_bytes: 4}
"""
_GPUS = {"v100": (4, None)}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "branches.yaml"
    path.write_text(_SPEC)
    return path


@pytest.fixture
def graphs(tmp_path: Path) -> dict[int, Path]:
    """An operator graph, captured as it were at three sizes."""
    found = {}
    for size in (4, 8, 16):
        found[size] = tmp_path / f"towers{size}.json"
        save_graph(model_graph(UnoModel(family="uno", features=(256,) * 3, tower=(512, 512), joint=(64,)), size,
                               dtype="float32"), found[size])
    return found


def test_what_place_writes_of_a_step_is_checked_explained_drawn_and_planned(
        spec: Path, tmp_path: Path) -> None:
    answer, problem, schedule, plan = (str(tmp_path / name) for name in ("a.json", "p.json", "s.json", "l.json"))
    told = shows("place", spec, "--stage-graph", "--micro-batch-sizes", "1,2,4,8", "--effort", "2", "--quiet", "-o",
                  answer, "--problem", problem, "--schedule", schedule)
    assert "samples: " in told
    found = json.loads(Path(answer).read_text())
    assert found["mini_batch"] == 32
    pytest.importorskip("jsonschema").validate(found, weft.schema("placed_step"))
    step = load_schedule(schedule)
    assert step.problem == load_problem(problem) and step.makespan == found["makespan"]
    assert step.problem.model is not None
    assert [stage.micro_batch for stage in step.problem.model.stages] == [
        stage["micro_batch"] for stage in found["stages"]]
    assert step.solver["bound_over_placements"] == found["makespan_bound"]
    for command in (["check", schedule], ["explain", schedule], ["draw", schedule, "-o", str(tmp_path / "s.svg")],
                    ["plan", schedule, "-o", plan]):
        shows(*command)


def test_a_plan_of_different_sizes_is_emulated_and_never_run(spec: Path) -> None:
    found = weft.place_step(spec, micro_batch_sizes=(1, 2, 4), effort=1.0)
    schedule = _at(found, (1, *(2 for _ in found.sizes[1:])))
    with pytest.raises(NotAStageGraph, match="run micro-batches of 1 and 2 samples, and the executor runs one size for "
                                             "all stages"):
        StageGraph.of(schedule.problem)
    plan = plan_of(schedule)
    assert plan.stage_groups is None
    assert "one size for all stages" in str(plan.vocabulary.why_no_stages)
    assert StageGraph.of(_at(found, (2,) * len(found.sizes)).problem).stages


def _at(found: PlacedStep, sizes: tuple[int, ...]) -> Schedule:
    """1F1B on the same stages at other sizes."""
    start = candidate_of(found.cut, sizes, 0.0).start
    assert start is not None
    return step_schedule(dataclasses.replace(found, sizes=sizes, schedule=start))


def test_operator_graphs_have_a_file_for_each_size_or_an_overhead(graphs: dict[int, Path]) -> None:
    measured = weft.place_step(graphs[4], micro_batch_sizes={4: None, 8: graphs[8], 16: graphs[16]}, devices=_GPUS,
                               mini_batch=64, effort=1.0)
    assert measured.sized.sizes == (4, 8, 16)
    by_law = weft.place_step(graphs[4], micro_batch_sizes=(4, 8), overhead=1e-5, devices=_GPUS, mini_batch=64,
                             effort=1.0)
    for four, eight in zip(by_law.sized.by_size[4].nodes, by_law.sized.by_size[8].nodes, strict=True):
        assert eight.times[0] == pytest.approx(2 * (four.times[0] or 0) - 1e-5)
    assert measured.sized.any.nodes[0].times == by_law.sized.any.nodes[0].times
    one = weft.place_step(graphs[4], devices=_GPUS, mini_batch=8, effort=1.0)
    assert one.sizes == (1,) * len(one.sizes) and one.schedule.micro_batches == 8


def test_costs_that_nobody_has_given_are_refused(graphs: dict[int, Path], spec: Path, tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match=r"costs of one size of micro-batch, which counts as the first, 4; give a "
                                             r"file with the costs at 8 \(8=FILE\), or .* \(--overhead TIME\)"):
        weft.place_step(graphs[4], micro_batch_sizes=(4, 8), devices=_GPUS, mini_batch=64)
    with pytest.raises(PlacementError, match=r"does not say how many samples a step has: give them \(--mini-batch N\)"):
        weft.place_step(graphs[4], micro_batch_sizes=(4,), devices=_GPUS)
    with pytest.raises(PlacementError, match="the spec says how many samples a step has"):
        weft.place_step(spec, mini_batch=64)
    with pytest.raises(PlacementError, match="costs are modelled at every size"):
        weft.place_step(spec, micro_batch_sizes=(2, 4), overhead=1e-5)
    with pytest.raises(PlacementError, match="3 does not divide the mini-batch of 32 samples"):
        weft.place_step(spec, micro_batch_sizes=(3,))
    own = tmp_path / "own.yaml"
    own.write_text(f"name: own\nmodel: {{graph: {graphs[4].name}}}\n"
                   "cluster: {gpus: 4, memory: 4 GiB, device: v100, links: nvlink-v100}\n"
                   "training: {micro_batches: 8, parameter_bytes: 4, gradient_bytes: 4}\n")
    with pytest.raises(PlacementError, match=r"own.yaml: model.graph \(towers4.json\) is of micro-batches of 1; give"):
        weft.place_step(own, micro_batch_sizes=(1, 2))
    found = weft.place_step(own, micro_batch_sizes={1: None, 2: graphs[8]}, effort=1.0)
    assert found.sized.mini_batch == 8 and found.sized.by_size[2].nodes[0].per_micro_batch == pytest.approx(
        2 * found.sized.by_size[1].nodes[0].per_micro_batch, rel=0.2)


@pytest.mark.parametrize(("options", "what"), [
    (["--micro-batch-sizes", "2"], "add --stage-graph"),
    (["--stage-graph", "--mini-batch", "8"], "add --micro-batch-sizes or --schedule"),
    (["--stage-graph", "--micro-batch-sizes", "2", "--slack", "0.1"], "--slack is for a placement without an order"),
    (["--stage-graph", "--micro-batch-sizes", "2,2"], "it must be like 1,2,4 or 1,2=FILE,4=FILE, each size once"),
    (["--stage-graph", "--micro-batch-sizes", "2", "--schedule", "x.txt"], "a schedule is written as .json"),
    (["--memory", "--micro-batch-sizes", "2"], "leave out --micro-batch-sizes"),
])
def test_wishes_that_mean_nothing_are_one_sentence(options: list[str], what: str, spec: Path) -> None:
    assert what in refusal("place", spec, *options)


def test_sizes_are_read_from_text() -> None:
    assert parse_sizes("1,2, 4=g.json") == {1: None, 2: None, 4: "g.json"}
    for text in ("", "0", "1,1", "x", "2=", "-1", "²"):
        with pytest.raises(ValueError, match="it must be like 1,2,4"):
            parse_sizes(text)
    with pytest.raises(PlacementError, match="leave one out"):
        SizesAsked((1, 2), {2: "x"}, 0.5).require_meaning()
