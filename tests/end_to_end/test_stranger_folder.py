"""weft in a user's folder, whose modules are called as rooms of weft are: nothing is imported from the wrong one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import ROOT, chain, pipeline
from weft.runtime import plan_of, save_plan
from weft.solver.baselines import baseline

#: What stands in the folder: where both a package and a module are called ``models``, Python takes the package.
FILES = {
    "models/__init__.py": "from models.tiny import WIDTH, layer\n",
    "models/tiny.py": "from torch import nn\n\nWIDTH = 3\n\n\ndef layer():\n    return nn.Linear(WIDTH, WIDTH)\n",
    "models.py": "raise ImportError('the package comes first')\n",
    "runtime/__init__.py": "STEPS = 2\n",
    "solver.py": "import torch\n\n\ndef optimizer(parameters):\n    return torch.optim.SGD(parameters, lr=0.1)\n",
    "train.py": """
import torch
from models import WIDTH, layer
from runtime import STEPS
from solver import optimizer
from torch import nn

from weft.runtime import Boundary, Training


def make(plan, rank):
    torch.manual_seed(rank)
    stage = layer()
    return Training({rank: stage}, [Boundary((2, WIDTH))], lambda step, m: torch.ones(2, WIDTH),
                    lambda step, m: torch.zeros(2, WIDTH), nn.functional.mse_loss, optimizer(stage.parameters()), STEPS)
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder, with a plan of two stages on two ranks."""
    made = tmp_path_factory.mktemp("stranger")
    for name, text in FILES.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(text)
    save_plan(plan_of(baseline("1f1b", pipeline(chain(2)), 2)), made / "plan.json")
    return made


def started(folder: Path, command: Sequence[str]) -> str:
    """What Python prints when it is started with ``command`` in ``folder``, and ends with 0."""
    ended = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=600,
                           env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_room_is_imported_from_weft(folder: Path) -> None:
    program = ("import weft, weft.models, weft.runtime, weft.solver, models, runtime, solver; "
               "print(runtime.STEPS, models.WIDTH, weft.runtime.Plan.__name__, weft.solver.__file__)")
    said = started(folder, ["-c", program]).split()
    assert said[:3] == ["2", "3", "Plan"]
    assert Path(said[3]).is_relative_to(ROOT)


def test_a_command_says_how_it_is_used(folder: Path) -> None:
    assert "usage: weft demo" in started(folder, ["-m", "weft", "demo", "--help"])


@pytest.mark.slow
def test_a_training_that_imports_the_folders_own_models_runs_under_torchrun(folder: Path) -> None:
    said = started(folder, ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "weft", "replay",
                            "plan.json", "--stages", "train:make", "--timeline", "measured.json"])
    assert "measured makespan" in said
    losses = [float(text) for text in said.partition("loss per batch")[2].split()]
    assert len(losses) == 2 and 0 < losses[1] < losses[0]
    assert len(json.loads((folder / "measured.json").read_text())["operations"]) == 8


@pytest.mark.slow
@pytest.mark.parametrize("stages", ["train:make", "train.py:make"])
def test_one_rank_of_it_runs_by_the_installed_command(folder: Path, stages: str) -> None:
    """The console script's own folder comes first in its path, not the folder where it is started."""
    script = "import sys; sys.path[0] = '/nowhere'; from weft.cli.main import main; sys.exit(main())"
    said = started(folder, ["-c", script, "replay", "plan.json", "--stages", stages, "--rank-alone", "0", "--json"])
    assert [row["rank"] for row in json.loads(said)["rows"]] == [0]
