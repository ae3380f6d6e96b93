"""``weft train``: ranks are started, train, and say what they refuse."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.paths import ROOT
from weft.app.train.examples import EXAMPLES
from weft.app.train.setup import Setup, example_setup, setup_of
from weft.cli.main import main
from weft.runtime.captured.captured import CaptureError
from weft.runtime.ranks.launch import run_ranks

SCRIPT = """
import torch
from torch import nn

def setup():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    x, y = torch.randn(8, 6), torch.randn(8, 2)
    return {"module": model, "args": (x,), "loss": nn.functional.mse_loss, "target": y, "data": [(x, y)],
            "optimizer": lambda parameters: torch.optim.SGD(parameters, 0.1), "micro_batches": 2,
            "options": {"clip_norm": 5.0}}

def endless():
    found = setup()
    torch.manual_seed(2)
    found["data"] = [(torch.randn(8, 6), torch.randn(8, 2)) for _ in range(7)]
    return found

def folding():
    from weft.runtime import AdamA
    return {**setup(), "optimizer": AdamA}

def wrong():
    return {"module": nn.Linear(2, 2), "batches": 3}

def fails():
    return {"module": nn.Linear(2, 2)}["model"]

def misled():
    return {"module": nn.Linear(2, 2), "options": {"memory": 3}}
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT)
    return str(path)


def trained(*arguments: str) -> subprocess.CompletedProcess[str]:
    """How ``weft train`` with ``arguments`` ended, well."""
    ended = subprocess.run(
        [sys.executable, "-m", "weft", "train", *arguments], capture_output=True, text=True, timeout=250,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.mark.slow
def test_a_setup_trains_on_two_ranks_and_the_loss_falls(script: str, tmp_path: Path) -> None:
    ended = trained(f"{script}:setup", "--steps", "3", "--schedule", "1f1b", "--draw", str(tmp_path / "run.html"))
    losses = [float(line.split()[-1]) for line in ended.stdout.splitlines() if re.match(r"step \d", line)]
    assert len(losses) == 3 and losses[0] > losses[1] > losses[2]
    assert "stage 1 on rank 1" in ended.stdout and re.search(r"planned +measured +ratio\nstep +", ended.stdout)
    assert (tmp_path / "run.html").stat().st_size > 1000


@pytest.mark.slow
def test_an_optimizer_that_would_train_nothing_is_refused_before_the_first_step(script: str) -> None:
    ended = weft_train(f"{script}:folding", "--steps", "1", "--schedule", "1f1b")
    out, errors = ended.communicate(timeout=200)
    assert ended.returncode == 2 and "setup: AdamA would train nothing here" in errors and "loss" not in out, errors


@pytest.mark.slow
def test_a_model_of_transformers_trains_and_is_told_as_json() -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'weft[models]'")
    ended = trained("--example", "gpt2", "--steps", "3", "--time-limit", "1", "--json")
    found = json.loads(ended.stdout)
    assert len(found["losses"]) == 3 and found["losses"][0] > found["losses"][2]
    assert found["report"]["measured"] > 0 and len(found["report"]["stages"]) == 2


def test_every_example_is_made_where_it_can_be() -> None:
    for name in EXAMPLES:
        if name != "gpt" and find_spec("transformers") is None:
            with pytest.raises(CaptureError, match=f"--example {name} needs transformers: pip install transformers"):
                example_setup(name)
            continue
        made = example_setup(name)
        output = made.module(*made.args, **made.kwargs)
        loss = output.loss if made.loss is None else made.loss(output, made.target)
        assert isinstance(loss, torch.Tensor) and loss.isfinite()


def test_what_a_setup_gives_is_looked_at(script: str) -> None:
    found = setup_of(f"{script}:setup")
    assert isinstance(found, Setup) and isinstance(found.module, nn.Sequential) and found.micro_batches == 2
    with pytest.raises(CaptureError, match=r"gives 'batches', it may give args, data, kwargs, loss"):
        setup_of(f"{script}:wrong")
    with pytest.raises(CaptureError, match=r"^setup .*mine\.py:other: module .* has no attribute 'other'"):
        setup_of(f"{script}:other")
    with pytest.raises(CaptureError, match=r"options of setup gives 'memory', it may give allow_unread, .*batch_dims"):
        setup_of(f"{script}:misled")
    with pytest.raises(CaptureError, match=r"setup .*:fails failed: KeyError: 'model', at mine.py:\d+ \(return"):
        setup_of(f"{script}:fails")
    with pytest.raises(CaptureError, match="--example is 'cat', it must be gpt, or with transformers installed one of "
                                           "gpt2, llama, bert, t5, vit, mixtral"):
        example_setup("cat")
    gpt = example_setup("gpt")
    assert gpt.module(*gpt.args).shape == torch.Size((16, 32, 97))


def test_ranks_end_with_the_worst_exit_code() -> None:
    ranks = "import os, sys; sys.exit(int(os.environ['RANK']) * 2)"
    assert run_ranks(2, [sys.executable, "-c", ranks]) == 2
    assert run_ranks(2, [sys.executable, "-c", "pass"]) == 0


def test_the_command_needs_one_thing_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 2 and "either FILE.py:FUNCTION, or --example NAME" in capsys.readouterr().err
    assert main(["train", "x.py:y", "--example", "gpt"]) == 2


def weft_train(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "weft", "train", *words], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_a_signal_ends_training_with_a_checkpoint_from_which_it_goes_on(script: str, tmp_path: Path) -> None:
    words = [f"{script}:endless", "--checkpoint", str(tmp_path / "saved"), "--schedule", "1f1b"]
    first = weft_train(*words, "--steps", "1000000", "--every", "2")
    assert first.stdout is not None
    lines = []
    for line in first.stdout:
        lines.append(line)
        if line.startswith("step 3 "):
            first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 128 + signal.SIGTERM, first.stderr and first.stderr.read()
    said, = [line for line in lines if line.startswith("stopped by SIGTERM")]
    done = int(said.split("after step ")[1].split(":")[0])
    assert said.endswith(f"step-{done:09d}\n") and len(list((tmp_path / "saved").glob("step-*"))) == 2
    second = weft_train(*words, "--steps", str(done + 3))
    out, errors = second.communicate(timeout=100)
    assert second.returncode == 0 and f"goes on after step {done}, from" in out, errors
    losses = [float(line.split()[-1]) for line in (*lines, *out.splitlines()) if re.match(r"step \d", line)]
    setup = setup_of(f"{script}:endless")
    assert setup.data is not None and not callable(setup.data)
    optimizer, wanted = setup.optimizer(setup.module.parameters()), []
    for x, y in itertools.islice(itertools.cycle(setup.data), done + 3):
        loss = nn.functional.mse_loss(setup.module(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        wanted.append(loss.item())
    assert losses == pytest.approx(wanted, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("saves", [False, True])
def test_training_ends_where_nobody_reads_its_output_any_more(script: str, tmp_path: Path, saves: bool) -> None:
    """As ``weft train ... 2>&1 | head -2``; what was trained is saved where there is a folder for it."""
    words = ["--checkpoint", str(tmp_path / "saved")] if saves else []
    command = [sys.executable, "-m", "weft", "train", f"{script}:endless", "--schedule", "1f1b", "--steps", "1000000",
               *words]
    running = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    assert running.stdout is not None
    assert next(line for line in running.stdout if line.startswith("step 2 "))
    running.stdout.close()
    assert running.wait(120) == 128 + signal.SIGPIPE
    assert len(list((tmp_path / "saved").glob("step-*"))) == int(saves)
