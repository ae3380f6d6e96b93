"""Calls of a replay that cannot begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import chain, laned_schedule, pipeline, schedule_of_jobs
from tests.support.checkpoints import a_plan
from weft.runtime.plan.plan import plan_of, save_plan
from weft.runtime.replay.options import ReplayError, ReplayOptions
from weft.runtime.replay.replay import replay, replay_single_rank
from weft.solver.baselines import baseline
from weft.solver.io.entries import FormatError


def plan_file(folder: Path, ranks: int, name: str = "1f1b", micro_batches: int = 4) -> Path:
    save_plan(plan_of(baseline(name, pipeline(chain(ranks)), micro_batches)), folder / "plan.json")
    return folder / "plan.json"


def test_a_plan_for_four_ranks_started_on_two_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ReplayError, match=r"plan\.json: the plan is for 4 ranks, but 2 were started; use torchrun"):
        replay(plan_file(tmp_path, 4), ReplayOptions(emulate=True))
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as caught:
        replay(plan_file(tmp_path, 4), ReplayOptions(emulate=True))
    assert caught.value.code == 2


def test_a_plan_without_torchrun_is_refused_with_the_command_to_use(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ReplayError, match=r"use: torchrun --standalone --nproc-per-node=3 -m weft replay .* --emulate"):
        replay(plan_file(tmp_path, 3), ReplayOptions(emulate=True))


def test_replicas_count_in_the_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ReplayError, match=r"for 4 ranks \(2 replicas\), but 2 were .* torchrun --nproc-per-node=4"):
        replay(plan_file(tmp_path, 2), ReplayOptions(emulate=True, replicas=2))
    with pytest.raises(ReplayError, match="--replicas is 0, it must be at least 1"):
        replay(plan_file(tmp_path, 2), ReplayOptions(emulate=True, replicas=0))


@pytest.mark.parametrize(("options", "message"), [
    ({}, "either --emulate, or --stages"),
    ({"emulate": True, "stages": "a:b"}, "either --emulate, or --stages"),
    ({"emulate": True, "timeout": 0.0}, "--timeout is 0.0"),
    ({"emulate": True, "time_scale": float("nan")}, "--time-scale is nan"),
    ({"emulate": True, "timeline_path": "no/such/folder/t.json"}, "cannot be written, its folder is missing"),
])
def test_a_call_that_means_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                              options: dict[str, object], message: str) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ReplayError, match=message):
        replay(plan_file(tmp_path, 2), ReplayOptions(**options))  # type: ignore[arg-type]


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(FormatError, match=r"plan\.json: is \[\], it must be an object"):
        replay(tmp_path / "plan.json", ReplayOptions(emulate=True))


@pytest.mark.parametrize(("options", "message"), [
    ({"transport": "pigeon"}, "--transport is 'pigeon', it must be gloo, gloo:sockets, nccl, shared, symmetric or "),
    ({"transport": "emulated:1"}, "it must be gloo"),
    ({"transport": "emulated:1,0"}, "it must be gloo"),
    ({"transport": "emulated:-1,1e9"}, "it must be gloo"),
    ({"resume": True}, "need --checkpoint FOLDER"),
    ({"unchecked": True, "checkpoint": "x", "checkpoint_every": 1}, "it needs --resume"),
    ({"checkpoint": "x"}, "--checkpoint needs --checkpoint-every N"),
    ({"allow_unsplit": True, "stages": None, "emulate": True}, "are about stages: they need --stages"),
    ({"checkpoint": "x", "checkpoint_every": -1}, "--checkpoint-every is -1"),
    ({"checkpoint": "x", "checkpoint_every": 1, "stages": None, "emulate": True}, "nothing to save"),
])
def test_options_of_a_checkpoint_that_mean_nothing_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               options: dict[str, object], message: str) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    save_plan(a_plan(), tmp_path / "plan.json")
    with pytest.raises(ValueError, match=message):
        replay(tmp_path / "plan.json", ReplayOptions(**{"stages": "a:b", **options}))  # type: ignore[arg-type]


def test_a_plan_that_no_stages_can_run_is_refused_before_the_others_are_waited_for(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for schedule, why in ((laned_schedule(), "device 'gpu 0 network' is a lane of 'gpu 0'"),
                          (schedule_of_jobs(), "it has the jobs 'chat' and 'search'")):
        save_plan(plan_of(schedule), tmp_path / "plan.json")
        with pytest.raises(ReplayError, match=rf"plan\.json: the problem .* can be emulated, but not run: {why}.*"
                                              "; use --emulate"):
            replay(tmp_path / "plan.json", ReplayOptions(stages="a:b"))
        with pytest.raises(ReplayError, match=f"can be emulated, but not run: {why}"):
            replay_single_rank(tmp_path / "plan.json", stages="a:b")
