"""Stages measured by several processes at once, and by processes that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.support.commands import refusal
from tests.support.stage_files import TRAINING
from weft.app.profile.targets import ProfileFault
from weft.cli.main import main
from weft.runtime import Training, load_stage_costs


@pytest.mark.slow
def test_stages_are_measured_by_several_ranks_at_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TRAINING)
    stages = ["profile", "--repeats", "2", "--ranks", "2", "--stages"]
    assert main([*stages, f"{tmp_path}/mine.py:stages", "-o", f"{tmp_path}/costs.json"]) == 0
    found, = load_stage_costs(tmp_path / "costs.json").stages
    assert found.parameter_bytes == 40 and found.passes["full"]["F"].time.repeats == 16
    assert ", 2 at once" in load_stage_costs(tmp_path / "costs.json").device
    (tmp_path / "mine.py").write_text("def stages():\n    return 1\n")
    said = refusal(*stages, f"{tmp_path}/mine.py:stages")
    assert said == (f"weft: --stages {tmp_path}/mine.py:stages gave int, it must give a "
                                       "weft.runtime.Training with all stages\n")
    (tmp_path / "mine.py").write_text("import os\ndef stages():\n    if os.environ['RANK'] == '1': os._exit(3)\n"
                                      "    import time; time.sleep(60)\n")
    with pytest.raises(ProfileFault, match="rank 1 failed while measuring: it ended with code 3"):
        weft.profile_stages(f"{tmp_path}/mine.py:stages", ranks=2)
    with pytest.raises(ProfileFault, match=r"name the stages as FILE\.py:FUNCTION"):
        weft.profile_stages(Training({}, [], lambda step, m: None), ranks=2)
