"""weft beside a user's own ``models``, ``runtime`` and ``solver``: whatever stands in the working folder is the user's,
and weft finds its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builders import chain, pipeline
from tests.support.paths import ROOT
from weft.runtime.plan.plan import plan_of, save_plan
from weft.solver.baselines import baseline

STAGES = """
import models
import runtime
import solver
import torch
from torch import nn
from weft.runtime.interface.training import Boundary
from weft.runtime.interface.training import Training

assert (models.MINE, runtime.MINE, solver.MINE) == (1, 1, 1)

def data(step, micro_batch):
    return torch.ones(2, models.WIDTH)

def stages(plan, rank):
    module = nn.Linear(models.WIDTH, models.WIDTH)
    return Training({rank: module}, [Boundary((2, models.WIDTH))], data, data, nn.functional.mse_loss,
                    optimizer=torch.optim.SGD(module.parameters(), 0.1))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's project, with all the names that weft's own folders have."""
    for name in ("models", "runtime"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE, WIDTH = 1, 4\n")
    for name in ("models.py", "solver.py"):
        (tmp_path / name).write_text("MINE = 1\n")
    (tmp_path / "mine.py").write_text(STAGES)
    return tmp_path


def ran(folder: Path, *command: str) -> str:
    """What ``command`` prints in ``folder``, whose modules come first."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240,
                            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"})
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_weft_is_imported_beside_them(folder: Path) -> None:
    found = ran(folder, sys.executable, "-c", "import weft, models, runtime, solver, weft.solver.step.search; "
                "print(models.MINE + runtime.MINE + solver.MINE, weft.solver.__file__)")
    assert found.startswith("3 ") and str(folder) not in found


def test_commands_run_beside_them(folder: Path) -> None:
    assert "weft demo" in ran(folder, sys.executable, "-m", "weft", "demo", "--help")


@pytest.mark.slow
def test_a_training_that_imports_them_runs_under_torchrun(folder: Path) -> None:
    save_plan(plan_of(baseline("1f1b", pipeline(chain(2)), 2)), folder / "plan.json")
    told = ran(folder, sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
               "weft", "replay", "plan.json", "--stages", "mine:stages")
    assert "measured makespan" in told and "loss per batch" in told
