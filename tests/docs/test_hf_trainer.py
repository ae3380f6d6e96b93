"""The Trainer of examples/hf_trainer.py trains a pipeline as the plain Trainer trains the model in one process."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

from tests.support import ROOT, finished

LAST = "checkpoint-6"


def numbers(ranks: int, folder: Path, *options: str) -> list[float]:
    """All that the example prints, of both epochs."""
    told = "".join(end.output for end in finished(ranks, __name__, str(folder), *options)).splitlines()
    lines = [line.split() for line in told if line.startswith("step ")]
    assert [line[1] for line in lines] == ["1", "2", "3", "3", "4", "5", "6", "6"]
    return [float(word) for line in lines for word in line[3::2]]


@pytest.mark.slow
def test_a_trainer_of_a_pipeline_trains_as_in_one_process_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate, as a Trainer does")
    llama = pytest.importorskip("transformers", reason="needs transformers").LlamaForCausalLM
    wanted = numbers(1, tmp_path / "plain")
    assert numbers(2, tmp_path / "pipe") == pytest.approx(wanted, abs=3e-4)
    found = llama.from_pretrained(next((tmp_path / "pipe" / LAST).glob("step-*"))).state_dict()
    for folder in (tmp_path / "plain" / LAST, tmp_path / "pipe" / "trained"):
        for name, value in llama.from_pretrained(folder).state_dict().items():
            assert float((found[name] - value).abs().max()) < 1e-5, (folder, name)
    shutil.rmtree(tmp_path / "pipe" / LAST)
    assert numbers(2, tmp_path / "pipe", "--resume") == pytest.approx(wanted, abs=3e-4)


if __name__ == "__main__":
    runpy.run_path(str(ROOT / "examples" / "hf_trainer.py"), run_name="__main__")
