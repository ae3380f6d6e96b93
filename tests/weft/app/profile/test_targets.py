"""What is profiled, named by a user: a function in a file or a module, and a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stage_files import TRAINING
from weft.app.profile.targets import ProfileFault, device_of, load_stages


def test_stages_come_from_a_file_or_a_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TRAINING)
    assert list(load_stages(f"{tmp_path}/mine.py:stages").stages) == [0]
    for stages, message in (
            ("mine", r"--stages is 'mine', it must be FILE\.py:FUNCTION or MODULE:FUNCTION"),
            (f"{tmp_path}/none.py:f", r"there is no file .*none\.py"),
            (f"{tmp_path}/mine.py:ghost", "has no attribute 'ghost'"),
            (f"{tmp_path}/mine.py:other", r"gave int, it must give a weft\.runtime\.Training"),
            (f"{tmp_path}/mine.py:broken", "broken: KeyError: 'weights'")):
        with pytest.raises(ProfileFault, match=message):
            load_stages(stages)


def test_a_device_that_is_not_there_is_named() -> None:
    assert device_of("cpu").type == "cpu" and device_of(None).type in ("cpu", "cuda")
    for name in ("tpu", "mps"):
        with pytest.raises(ProfileFault, match=f"--device is '{name}'"):
            device_of(name)
