"""``weft.pipeline`` on ranks: it trains as one process does, and says on all ranks what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import weft
from tests.support import ROOT, launch_forked, made
from tests.support.pipeline_ranks import SIZE, one_process, parts
from weft.runtime.captured.captured import CaptureError
from weft.runtime.ranks.launch import Ended, launch_local


def launch(ranks: int, *arguments: str, **environment: str) -> list[Ended]:
    # What runs at the end of a Python, as what tells the others of it, does not in a rank that was forked.
    start = launch_local if "early" in arguments else launch_forked
    return start(ranks, [sys.executable, "-m", "tests.support.pipeline_ranks", *arguments], timeout=200,
                 environment={"PYTHONPATH": str(ROOT), **environment})


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "name", "schedule"), [
    (3, "gpt", "1f1b"), (3, "skip", "1f1b"), (2, "masked", "zb-h1"), (2, "gpt", "zb-v"),
    (3, "towers", "search"), (2, "branches", "1f1b")])
def test_two_steps_of_adamw_are_those_of_one_process(ranks: int, name: str, schedule: str, tmp_path: Path) -> None:
    asked = {"towers": {"WEFT_CUTS": "4 8"},  # between the towers, and before they are joined
             "branches": {"WEFT_SPLIT": "layers.2"}}.get(name, {})
    if name == "skip":
        asked["WEFT_SPEC"] = str(tmp_path / "machine.yaml")
        (tmp_path / "machine.yaml").write_text("cluster: {memory: 64 MiB, bandwidth: 1 GB/s, latency: 1 ms}\n")
    ended = launch(ranks, str(tmp_path), name, schedule, **asked)
    assert [end.code for end in ended] == [0] * ranks, ended
    losses, gradients, state = one_process(name, 2)
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(ranks)]
    for step in (0, 1):
        together = {parameter: gradient for each in found for parameter, gradient in each["gradients"][step].items()}
        assert set(together) == set(gradients[step])
        # What is zero but for rounding, as the gradient of a bias on attention's keys, has no digits to compare.
        rounding = 1e-3 * max(float(wanted.norm()) for wanted in gradients[step].values())
        for parameter, wanted in gradients[step].items():
            assert float((together[parameter] - wanted).norm()) <= 1e-12 * max(float(wanted.norm()), rounding)
    for each in found:
        assert each["losses"] == pytest.approx(losses, rel=1e-12) and each["evaluated"] == found[0]["evaluated"]
        assert set(each["state"]) == set(state)
        for key, value in state.items():
            assert torch.allclose(each["state"][key], value, rtol=1e-12, atol=1e-14)
        stages = 2 * ranks if schedule == "zb-v" else ranks
        report = each["report"]
        assert report["measured"] > 0 and len(report["ranks"]) == stages
        if name == "gpt":
            # Within a host what is sent is planned to be let go at once; where its slot is not free yet, it waits.
            assert all(0.85 * planned <= held <= 1.15 * planned + other["under_way"] for planned, held, other in zip(
                report["peaks"], report["measured_peaks"], found, strict=True)), report
        notes = "\n".join(report["notes"])
        assert ("transfer times are the spec" if name == "skip" else "links were measured") in notes
    case = made(name, SIZE)
    case.model.load_state_dict(found[0]["state"])
    if case.loss is not None:  # what comes out in evaluation, on the rank of the last stage
        results, = (each["results"] for each in found if each["results"] is not None)
        plain = [case.model.eval()(*args, **kwargs) for args, kwargs, _ in parts(case)]
        wanted = torch.cat([r["y"] if isinstance(r, dict) else r for r in plain])
        assert torch.allclose(torch.cat([r["y"] if isinstance(r, dict) else r for r in results]), wanted, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "said"), [
    ("seed", "the model's values differ on rank 1 from those on rank 0: call torch.manual_seed with one number"),
    ("target", "target has 6 entries along dimension 0, but the batch has 8: give one for each sample"),
    ("loss", "target is NoneType, but the pipeline was made for one tensor: give target=TENSOR"),
    ("early", "rank 1's script has ended, at its last line or by sys.exit, where rank 0 calls step, as call 1 of the"),
    ("no_grad", "a step has no gradients under torch.no_grad(): call it outside, or eval_step"),
    ("untrained", "the optimizer has parameters that are not trained: make it of pipe.parameters()"),
    ("adama", "AdamA would train nothing here"),
    ("memory", "memory is '16 GiB', it must be a number of bytes"),
    ("scalar", "it must be one floating-point number: take the mean over the micro-batch"),
    ("unread", "no operator reads the parameters idle: freeze them with requires_grad_(False)")])
def test_what_is_refused_is_said_on_all_ranks_in_one_sentence(fault: str, said: str, tmp_path: Path) -> None:
    for end in launch(2, str(tmp_path), "gpt", "1f1b", fault):
        assert end.code == 2 and not end.late
        line, = [line for line in end.errors.splitlines() if line.startswith("weft:")]
        assert said in line and "Traceback" not in end.errors


def test_a_call_outside_torchrun_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    case = made("gpt", SIZE)
    with pytest.raises(CaptureError, match="runs under torchrun, one process a rank; use: torchrun --standalone"):
        weft.pipeline(case.model, case.args, loss=case.loss, micro_batches=2)


#: What a rank runs: the model is captured, or taken from disk; then measured, planned and run, without what compiles.
AGAIN = """
import sys
from tests.support.captured_models import made
import weft

case = made("gpt", 8)
with weft.pipeline(case.model, case.args, loss=case.loss, target=case.target, micro_batches=4, remeasure=True) as pipe:
    pipe.step(*case.args, target=case.target)
    print("torch._dynamo" in sys.modules or "sympy" in sys.modules)
"""


@pytest.mark.slow
def test_what_was_captured_before_needs_nothing_that_compiles(tmp_path: Path) -> None:
    said = []
    for _ in range(2):
        ended = launch_local(2, [sys.executable, "-c", AGAIN], timeout=200,
                             environment={"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)})
        assert [end.code for end in ended] == [0, 0], ended
        said.append([end.output.strip() for end in ended])
    assert said == [["True"] * 2, ["False"] * 2]
