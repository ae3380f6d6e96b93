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

from tests.support import ROOT, launch_forked, refusal, written
from weft.app.train.setup import EXAMPLES, Setup, example_setup, setup_of
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

def taking_turns():
    import os
    from pathlib import Path
    found = endless()

    def data(needs):  # the same batches, of which one kills who takes it
        for number in range(9):
            if str(number) == os.environ.get("KILLED_AT"):
                os.kill(os.getpid(), 9)
            yield found["data"][number % 7]

    return {**found, "data": data, "follow": {"plans": sorted(Path(os.environ["PLANS"]).glob("*.json")),
                                              "switches": [(0, 0), (2, 1), (5, 0)]}}

def planless():
    return {**setup(), "follow": {"plans": [], "borders": [2.0]}}

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
    path = written(tmp_path / "mine.py", SCRIPT)
    return str(path)


def trained(*arguments: str, code: int = 0, **environment: str) -> tuple[str, str]:
    """What two ranks of ``weft train`` with ``arguments`` printed, and their errors; a test further down starts them by
    the command itself. With -9 as ``code``, one of them was killed, and the other has ended for it."""
    ended = launch_forked(2, [sys.executable, "-m", "weft", "train", *arguments], environment=environment)
    errors, codes = "".join(end.errors for end in ended), [end.code for end in ended]
    assert codes == [code] * 2 if code >= 0 else code in codes and all(codes), errors
    return "".join(end.output for end in ended), errors


@pytest.mark.slow
def test_a_setup_trains_on_two_ranks_and_the_loss_falls(script: str, tmp_path: Path) -> None:
    out, _ = trained(f"{script}:setup", "--steps", "3", "--schedule", "1f1b", "--draw", str(tmp_path / "run.html"))
    losses = [float(line.split()[-1]) for line in out.splitlines() if re.match(r"step \d", line)]
    assert len(losses) == 3 and losses[0] > losses[1] > losses[2]
    assert "stage 1 on rank 1" in out and re.search(r"planned +measured +ratio\nstep +", out)
    assert (tmp_path / "run.html").stat().st_size > 1000


@pytest.mark.slow
def test_an_optimizer_that_would_train_nothing_is_refused_before_the_first_step(script: str) -> None:
    out, errors = trained(f"{script}:folding", "--steps", "1", "--schedule", "1f1b", code=2)
    assert "setup: AdamA would train nothing here" in errors and "loss" not in out, errors


@pytest.mark.slow
def test_a_model_of_transformers_trains_and_is_told_as_json() -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'weft[models]'")
    found = json.loads(trained("--example", "gpt2", "--steps", "3", "--time-limit", "1", "--json")[0])
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


@pytest.mark.parametrize(("name", "said"), [
    ("wrong", r"gives 'batches', it may give args, data, follow, kwargs"),
    ("other", r"^setup .*mine\.py:other: module .* has no attribute 'other'"),
    ("misled", r"options of setup gives 'memory', it may give allow_unread, .*batch_dims"),
    ("planless", r"follow of setup must have plans, at least one, and switches"),
    ("fails", r"setup .*:fails failed: KeyError: 'model', at mine.py:\d+ \(return")])
def test_what_a_setup_gives_is_looked_at(script: str, name: str, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        setup_of(f"{script}:{name}")


def test_setups_and_examples_are_found(script: str) -> None:
    found = setup_of(f"{script}:setup")
    assert isinstance(found, Setup) and isinstance(found.module, nn.Sequential) and found.micro_batches == 2
    with pytest.raises(CaptureError, match="--example is 'cat', it must be gpt, or with transformers installed one of "
                                           "gpt2, llama, bert, t5, vit, mixtral"):
        example_setup("cat")
    gpt = example_setup("gpt")
    assert gpt.module(*gpt.args).shape == torch.Size((16, 32, 97))


def test_ranks_end_with_the_worst_exit_code() -> None:
    ranks = "import os, sys; sys.exit(int(os.environ['RANK']) * 2)"
    assert run_ranks(2, [sys.executable, "-c", ranks]) == 2
    assert run_ranks(2, [sys.executable, "-c", "pass"]) == 0


def test_the_command_needs_one_thing_to_train() -> None:
    for words in ([], ["x.py:y", "--example", "gpt"]):
        assert "either FILE.py:FUNCTION, or --example NAME" in refusal("train", *words)


def weft_train(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "weft", "train", *words], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})


def alone(name: str, steps: int) -> list[float]:
    """Losses of one process."""
    setup = setup_of(name)
    assert setup.data is not None and not callable(setup.data)
    optimizer, found = setup.optimizer(setup.module.parameters()), []
    for x, y in itertools.islice(itertools.cycle(setup.data), steps):
        loss = nn.functional.mse_loss(setup.module(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(loss.item())
    return found


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
    assert first.wait(600) == 128 + signal.SIGTERM, first.stderr and first.stderr.read()
    said, = [line for line in lines if line.startswith("stopped by SIGTERM")]
    done = int(said.split("after step ")[1].split(":")[0])
    assert said.endswith(f"step-{done:09d}\n") and len(list((tmp_path / "saved").glob("step-*"))) == 2
    out, errors = trained(*words, "--steps", str(done + 3))
    assert f"goes on after step {done}, from" in out, errors
    losses = [float(line.split()[-1]) for line in (*lines, *out.splitlines()) if re.match(r"step \d", line)]
    assert losses == pytest.approx(alone(f"{script}:endless", done + 3), rel=1e-4)


@pytest.mark.slow
def test_plans_take_turns_also_where_ranks_are_killed_between(script: str, tmp_path: Path) -> None:
    plans = tmp_path / "plans"
    plans.mkdir()
    made = launch_forked(2, [sys.executable, "-m", "tests.support.two_plans", f"{script}:endless", str(plans)])
    assert [end.code for end in made] == [0, 0] and len(list(plans.iterdir())) == 2, made
    words = [f"{script}:taking_turns", "--checkpoint", str(tmp_path / "saved"), "--every", "1", "--steps", "8"]
    for killed_at in (3, 6):  # in the second plan's turn, and when the first one's has come again
        trained(*words, code=-9, PLANS=str(plans), KILLED_AT=str(killed_at))
    out, errors = trained(*words, PLANS=str(plans))
    losses = [float(line.split()[-1]) for line in out.splitlines() if re.match(r"step \d", line)]
    assert re.search(r"goes on after step \d", out) and len(losses) >= 2, errors
    assert losses == pytest.approx(alone(f"{script}:endless", 8)[-len(losses):], rel=1e-4)


@pytest.mark.slow
def test_training_ends_where_nobody_reads_its_output_any_more(script: str, tmp_path: Path) -> None:
    """As ``weft train ... 2>&1 | head -2``; what was trained is saved where there is a folder for it."""
    command = [sys.executable, "-m", "weft", "train", f"{script}:endless", "--schedule", "1f1b", "--steps", "1000000",
               "--checkpoint", str(tmp_path / "saved")]
    running = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    assert running.stdout is not None
    assert next(line for line in running.stdout if line.startswith("step 2 "))
    running.stdout.close()
    assert running.wait(600) == 128 + signal.SIGPIPE
    assert len(list((tmp_path / "saved").glob("step-*"))) == 1
