"""The example of docs/PIPELINE.md runs as it stands, and trains as one process does."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support import ROOT, launch_forked, written

PAGE = ROOT / "docs" / "PIPELINE.md"


@pytest.mark.slow
def test_padded_batches_train_as_one_process_does(tmp_path: Path) -> None:
    example, = re.findall(r"## Padded batches\n.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    wide = "import torch\ntorch.set_default_dtype(torch.float64)\n"
    script = written(tmp_path / "padded.py", wide + example)
    first, second = launch_forked(2, [sys.executable, "-m", __name__, str(script)])
    assert first.code == second.code == 0, first.errors + second.errors
    assert "weighs unequally" not in first.errors + second.errors
    found = [float(line) for line in first.output.splitlines()]

    names: dict[str, object] = {}
    try:
        exec(wide + example.split("pipe = ")[0], names)
        model, words, labels = names["model"], names["words"], names["labels"]
        assert isinstance(model, torch.nn.Module) and isinstance(labels, torch.Tensor)
        optimizer, wanted = torch.optim.AdamW(model.parameters(), lr=0.01), []
        for _ in range(3):
            loss = cross_entropy(model(words).flatten(0, 1), labels.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            wanted.append(float(loss.detach()))
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(found) == 3 and max(abs(a - b) for a, b in zip(found, wanted, strict=True)) < 1e-12


if __name__ == "__main__":
    runpy.run_path(sys.argv[1], run_name="__main__")
