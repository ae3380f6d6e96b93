"""``weft profile --stages``: what is written of stages measured one by one."""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import refusal
from tests.support.stage_files import TRAINING
from weft.cli.main import main
from weft.runtime.measure.stage_costs import load_stage_costs
from weft.solver.io.problem_files import load_problem


def test_profile_of_stages_writes_what_to_solve(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TRAINING)
    stages = ["profile", "--stages", f"{tmp_path}/mine.py:stages", "--repeats", "1"]
    assert main([*stages, "-o", f"{tmp_path}/costs.json", "--problem", f"{tmp_path}/p.json", "--memory", "1MiB"]) == 0
    problem = load_problem(tmp_path / "p.json")
    assert [block.name for block in problem.blocks] == ["F0", "B0"]
    assert problem.devices[0].memory == 2**20 - 4 * (4 * 2 + 2) * 4
    assert load_stage_costs(tmp_path / "costs.json").stages[0].parameter_bytes == 40
    said = refusal(*stages, "--problem", f"{tmp_path}/p.json", "--memory", "100 B")
    assert "stage 0 needs 160 bytes for weights" in said
    for wrong, message in ((["profile"], "say what to time"), ([*stages, "a.pt2"], "say what to time"),
                           (["profile", "a.pt2", "--problem", f"{tmp_path}/p.json"], "--problem needs --stages"),
                           ([*stages, "--device", "tpu"], "--device is 'tpu'")):
        assert message in refusal(*wrong)
