"""torchtitan's settings, written and read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.support.builders import chain, pipeline
from weft.runtime.export.tools.torchtitan import TorchtitanSettings, read_torchtitan, save_torchtitan
from weft.solver.baselines import baseline
from weft.solver.io.entries import FormatError


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_the_degrees_of_a_grid_are_written_and_read(tmp_path: Path, zero: int) -> None:
    grid = {"tensor": 4, "context": 2, "expert": 2, "data": 8, "zero": zero, "micro_batch": 2}
    schedule = baseline("1f1b", pipeline(chain(2)), 4).with_solver(
        layers_of_stage=[["embedding", "layer0"], ["layer1", "head"]], grid=grid)
    save_torchtitan(schedule, tmp_path / "t.toml")
    found = read_torchtitan(tmp_path / "t.toml")
    assert {name: getattr(found, name) for name in grid} == grid


def test_settings_without_a_csv_are_of_the_schedule_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("""
[parallelism]
pipeline_parallel_degree = 2
tensor_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
module_fqns_per_model_part = [["tok_embeddings", "layers.0"], ["layers.1"], ["layers.2"], ["norm", "output"]]
""")
    assert read_torchtitan(tmp_path / "t.toml") == TorchtitanSettings(
        2, ("Et", "t", "t", "L"), "loop", "Interleaved1F1B", None, None, 4)


@pytest.mark.parametrize(("text", "said"), [
    ("[", "is no TOML"), ("[model]\n", "has no \\[parallelism\\] table"),
    ("[parallelism]\npipeline_parallel_degree = 0\n", "pipeline_parallel_degree is 0, it must be a whole number"),
    ("[parallelism]\npipeline_parallel_schedule = 'Zigzag'\n", "is 'Zigzag', it must be one of 1F1B"),
    ("[parallelism]\n", "module_fqns_per_model_part must list"),
    ("[parallelism]\nmodule_fqns_per_model_part = [['conv']]\n", "names 'conv', which is none of"),
    ("[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = [['norm']]\n", "1 stages, no multiple"),
])
def test_what_is_no_table_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(FormatError, match=said):
        read_torchtitan(tmp_path / "t.toml")


def test_torchtitans_own_settings_have_these_entries(tmp_path: Path) -> None:
    """Where it is installed (0.3.0 has all but the number of micro-batches, as the file says)."""
    configs = pytest.importorskip("torchtitan.config.configs")
    schedule = baseline("1f1b", pipeline(chain(2)), 4).with_solver(layers_of_stage=[["embedding", "layer0"],
                                                                                    ["layer1", "head"]])
    save_torchtitan(schedule, tmp_path / "plan.toml")
    table = tomllib.loads((tmp_path / "plan.toml").read_text())["parallelism"]
    del table["num_pp_microbatches"]
    found = configs.ParallelismConfig(**table)
    assert found.module_fqns_per_model_part == [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]
