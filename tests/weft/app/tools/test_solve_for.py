"""What one tool can run, and somebody's plan beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import weft
from weft.app.export import run_lines
from weft.app.lib.arguments import TOOL_NAMES
from weft.cli.main import main
from weft.runtime.export.tools import TOOLS
from weft.solver import NoneFound, load_schedule, violations
from weft.solver.control.stopping import STOP

SPEC = """
model: {family: gpt, layers: 6, hidden: 512, heads: 8, vocabulary: 8192, sequence: 512}
cluster: {gpus: 2, device: v100}
training: {micro_batches: 4}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "s.yaml").write_text(SPEC)
    return tmp_path / "s.yaml"


def test_the_names_of_the_option_are_those_of_the_tools() -> None:
    assert tuple(TOOLS) == TOOL_NAMES


@pytest.mark.parametrize("tool", ["megatron", "deepspeed"])
def test_an_answer_for_a_tool_is_what_it_runs(spec: Path, tool: str) -> None:
    found = weft.solve(spec, tool=tool, effort=0.2)
    assert TOOLS[tool].run(found).schedule.makespan == pytest.approx(found.makespan)
    assert found.solver["tool"]["name"] == tool


def test_no_time_at_all_is_said(spec: Path) -> None:
    with pytest.raises(NoneFound, match="no time to see what Megatron-LM can run"):
        weft.solve(spec, tool="megatron", time_limit=1e-9)
    found = weft.compare_plan(spec, layout="Et|t*5L", time_limit=1e-9)
    assert "time" in found.left_out["Megatron-LM's best cut"]


def test_a_plan_of_few_layers_is_compared_with_as_many_chunks_as_they_fill(spec: Path) -> None:
    spec.write_text(SPEC.replace("layers: 6", "layers: 2"))
    assert weft.compare_plan(spec, layout="Et|tL", effort=0.1).plan.fits


def test_a_plan_is_judged_beside_the_best(spec: Path) -> None:
    found = weft.compare_plan(spec, layout="Et|t*5L", effort=0.2)
    assert found.plan.layout == "Et|t*5L" and found.best.step <= found.plan.step
    assert "rank 1 works" in found.why()[0]
    with pytest.raises(ValueError, match="layout has 5 layers"):
        weft.compare_plan(spec, layout="Et|t*4L")


@pytest.mark.parametrize(("arguments", "said"), [
    ("--num-layers 5", "--num-layers is 5, but the model of s.yaml has 6"),
    ("--mtp-num-layers 1", "--mtp-num-layers is 1, but the model of s.yaml has 0"),
    ("--seq-length 4096", "--seq-length is 4096, but the model of s.yaml has 512"),
])
def test_arguments_of_another_model_are_refused(spec: Path, monkeypatch: pytest.MonkeyPatch, arguments: str,
                                                said: str) -> None:
    monkeypatch.chdir(spec.parent)
    with pytest.raises(ValueError, match=re.escape(said)):
        weft.compare_plan("s.yaml", megatron=f"--pipeline-model-parallel-size 2 {arguments}")


GRID = """
model: {family: gpt, layers: 6, hidden: 512, heads: 8, vocabulary: 8192, sequence: 512}
cluster: {gpus: 8, device: a100}
training: {global_batch_size: 16}
"""


def test_a_plan_for_open_degrees_stands_beside_the_best_grid(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"{GRID}parallel: {{recompute: none, micro_batch: 1}}\n")
    layout = weft.compare_plan(tmp_path / "s.yaml", layout="Et*3|t*3L", effort=0.5, time_limit=3000)
    assert "PP2" in layout.degrees and layout.best.step <= layout.plan.step
    # With no time at all degrees are those of the first grid found.
    at_once = weft.compare_plan(tmp_path / "s.yaml", layout="Et*3|t*3L", time_limit=0.05)
    assert at_once.plan.layout == "Et*3|t*3L" and at_once.best.step <= at_once.plan.step
    degrees = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"
    given = weft.compare_plan(tmp_path / "s.yaml", megatron=degrees, effort=0.5, time_limit=3000)
    grid = next(row for row in given.rows if row.name == "grid")
    assert given.best is grid and grid.bound is not None and grid.bound <= grid.step < given.plan.step
    assert grid.title in str(given).replace("\n", " ") or "weft's best grid" in str(given)
    assert layout.plan.step <= given.plan.step  # the degrees that serve the layout best


def test_a_stop_before_degrees_are_known_blames_no_degrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.yaml").write_text(f"{GRID}parallel: auto\n")
    monkeypatch.setattr(STOP, "requested", True)
    with pytest.raises(NoneFound, match="no time to see which degrees serve the layout best"):
        weft.compare_plan(tmp_path / "s.yaml", layout="Et*3|t*3L")


@pytest.mark.parametrize(("tool", "zero"), [("megatron", (0, 1, 2, 3)), ("deepspeed", (0, 1)),
                                            ("torchtitan", (0, 2, 3))])
def test_open_degrees_are_searched_for_what_a_tool_can_run(tmp_path: Path, tool: str, zero: tuple[int, ...]) -> None:
    (tmp_path / "s.yaml").write_text(f"{GRID}parallel: {{pipeline: 2}}\n")
    found = weft.solve(tmp_path / "s.yaml", tool=tool, effort=0.2, time_limit=3000)
    grid = found.solver["grid"]
    assert grid["pipeline"] == 2 and grid["gpus"] == 8 and grid["zero"] in zero
    assert grid["step"] == found.makespan + grid["end"]["seconds"]
    assert TOOLS[tool].run(found).schedule.makespan == pytest.approx(found.makespan)
    if tool == "deepspeed":
        assert grid["context"] == grid["expert"] == grid["virtual"] == 1


def test_degrees_that_a_tool_has_not_are_refused_by_name(tmp_path: Path) -> None:
    for parallel, said in (("zero: 3", "DeepSpeed cannot run ZeRO-3 beside a pipeline"),
                           ("context: 2", "DeepSpeed cannot run context parallelism beside a pipeline")):
        (tmp_path / "s.yaml").write_text(f"{GRID}parallel: {{pipeline: 2, {parallel}}}\n")
        with pytest.raises(ValueError, match=said):
            weft.solve(tmp_path / "s.yaml", tool="deepspeed", effort=0.1)


@pytest.mark.parametrize(("tool", "ending"), [("megatron", ".txt"), ("deepspeed", ".py"), ("torchtitan", ".toml")])
def test_what_is_exported_for_a_tool_is_read_and_judged_as_the_same_plan(spec: Path, tool: str, ending: str) -> None:
    found, file = weft.solve(spec, tool=tool, effort=0.2), spec.with_name(f"plan{ending}")
    weft.export_schedule(found, file, format=tool)
    read = weft.import_schedule(file, problem=spec)
    assert read.makespan == pytest.approx(TOOLS[tool].run(found).schedule.makespan)
    assert read.solver["layers_of_stage"] == found.solver["layers_of_stage"]
    judged = weft.compare_plan(spec, plan=file, effort=0.2)
    assert judged.plan.step == pytest.approx(read.makespan) and judged.best.step <= judged.plan.step


@pytest.mark.parametrize(("tool", "ending", "said"), [
    ("deepspeed", ".py", []), ("megatron", ".txt", []), ("torchtitan", ".toml", [
        "torchtitan has no ZeRO-1 beside a pipeline: its step is another one"])])
def test_what_is_exported_of_a_grid_is_read_on_the_same_degrees(tmp_path: Path, tool: str, ending: str,
                                                                said: list[str]) -> None:
    spec, file = tmp_path / "s.yaml", tmp_path / f"plan{ending}"
    spec.write_text(f"{GRID}parallel: {{tensor: 2, pipeline: 2, virtual: 1, data: 2, expert: 1, context: 1, zero: 1, "
                    "recompute: none, micro_batch: 1}\n")
    found = weft.solve(spec, effort=0.2)
    weft.export_schedule(found, file, format=tool)
    assert run_lines(found, file, tool)[-1:] == said or not said
    read = weft.import_schedule(file, problem=spec)
    assert not violations(read) and read.micro_batches == found.micro_batches
    assert read.makespan == pytest.approx(TOOLS[tool].run(found).schedule.makespan, rel=0.01)


LLAMA_70B = """
model: {family: gpt, vocabulary: 128256, sequence: 8192, kv_heads: 8, norm: rms_norm, positions: rotary,
  activation: swiglu, bias: false, attention: fused, dropout: false, tied: false, layers: 80, hidden: 8192, heads: 64,
  feed_forward: 28672}
cluster: {gpus: 64, device: h100, gpus_per_machine: 8}
training: {global_batch_size: 128}
"""


@pytest.mark.parametrize(("tool", "ending", "pipeline"), [
    ("megatron", "txt", "virtual: 5, zero: 1"), ("torchtitan", "toml", "virtual: 5, zero: 2")])
def test_the_published_plan_of_llama_3_70b_comes_back_from_the_command_line(
        tmp_path: Path, tool: str, ending: str, pipeline: str) -> None:
    layout, degrees = "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", f"{{tensor: 4, pipeline: 8, {pipeline}, data: 2, expert: 1, "
    (tmp_path / "s.yaml").write_text(f"{LLAMA_70B}placement: {{layout: '{layout}', backward: [full]}}\nparallel: "
                                     f"{degrees}context: 1, recompute: none, micro_batch: 1, precision: fp8}}\n")
    theirs, back = str(tmp_path / f"plan.{ending}"), str(tmp_path / "back.json")
    own_file = str(tmp_path / "own.json")
    assert main(["solve", str(tmp_path / "s.yaml"), "--for", tool, "--effort", "1e-6", "-o", own_file]) == 0
    assert main(["export", own_file, "-o", theirs, "--format", tool]) == 0
    (tmp_path / "s.yaml").write_text(f"{LLAMA_70B}parallel: {{precision: fp8}}\n")  # the degrees are the plan's
    assert main(["import", theirs, "--problem", str(tmp_path / "s.yaml"), "-o", back]) == 0
    own, read = load_schedule(own_file), load_schedule(back)
    assert read.makespan == pytest.approx(own.makespan) and read.micro_batches == own.micro_batches == 64
    assert [*map(len, read.solver["layers_of_stage"])] == [3, *[2] * 34, 3, *[2] * 3, 2]
    assert tool != "megatron" or layout.replace(",", "") in Path(theirs).read_text()


def test_plans_that_are_none_of_the_model_are_refused(spec: Path) -> None:
    with pytest.raises(ValueError, match=r"s\.yaml: there are no arguments of Megatron-LM"):
        weft.compare_plan(spec, plan=spec)
    file = spec.with_name("parts.py")
    file.write_text("PARTS = [0, 2, 5]")
    with pytest.raises(ValueError, match="PARTS are of 5 layers, but the model has 8"):
        weft.import_schedule(file, problem=spec)
    with pytest.raises(ValueError, match="name the model's spec beside it"):
        weft.import_schedule(file)
    with pytest.raises(ValueError, match="the plan is given twice"):
        weft.compare_plan(spec, plan=file, layout="Et|t*5L")
    toml = spec.with_name("t.toml")
    toml.write_text("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'LoopedBFS'\n"
                    "module_fqns_per_model_part = [['tok_embeddings', 'layers.0', 'layers.1'], "
                    "['layers.2', 'layers.3', 'layers.4', 'layers.5', 'norm', 'output']]\n")
    with pytest.raises(ValueError, match="weft has no schedule called LoopedBFS"):
        weft.import_schedule(toml, problem=spec)
