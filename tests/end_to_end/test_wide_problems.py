"""Problems with choices, lanes, jobs and classes through the front door: solved, checked, compared, drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from weft.cli.main import main
from weft.solver.io.wide_files import any_problem_to_json
from weft.solver.problem import BlockKind, Device
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem


def chunked() -> WideProblem:
    """1000 of compute, 1000 of an all-reduce on the network, 100 after it, in chunks that cost 20 each to launch."""
    blocks = []
    for count in (1, 4, 8, 16):
        when = {"chunks": str(count)}
        for i in range(count):
            before = (WideDependency(f"compute {i - 1} of {count}"),) if i else ()
            blocks += [
                WideBlock(f"compute {i} of {count}", BlockKind.OTHER, (0,), 1000 / count, after=before, when=when),
                WideBlock(f"reduce {i} of {count}", BlockKind.COLLECTIVE, (1,), 1000 / count + 20,
                          after=(WideDependency(f"compute {i} of {count}"),), when=when),
                WideBlock(f"after {i} of {count}", BlockKind.OTHER, (0,), 100 / count,
                          after=(WideDependency(f"reduce {i} of {count}"),), when=when)]
    return WideProblem("all-reduce", (Device("gpu"), Device("network", lane_of="gpu")), tuple(blocks),
                       choices={"chunks": ("1", "4", "8", "16")})


def two_jobs() -> WideProblem:
    """Two jobs that compute and then talk, each step after the one before."""
    blocks = []
    for job, compute, network in (("train", 4, 6), ("serve", 8, 2)):
        blocks += [WideBlock(f"{job} compute", BlockKind.OTHER, (0,), compute, job=job,
                             after=(WideDependency(f"{job} network", distance=1),)),
                   WideBlock(f"{job} network", BlockKind.OTHER, (1,), network, job=job,
                             after=(WideDependency(f"{job} compute"),))]
    return WideProblem("two jobs", (Device("gpu"), Device("network", lane_of="gpu")), tuple(blocks))


def lengths() -> WideProblem:
    """A pipeline of three GPUs, on which long micro-batches take three times as long."""
    blocks = [WideBlock(f"F{s}", BlockKind.FORWARD, (s,), {"short": 1, "long": 3}, (1,),
                        after=(WideDependency(f"F{s - 1}"),) if s else ()) for s in range(3)]
    blocks += [WideBlock(f"B{s}", BlockKind.BACKWARD, (s,), {"short": 2, "long": 6}, (-1,),
                         after=(WideDependency(f"F{s}"), *((WideDependency(f"B{s + 1}"),) if s < 2 else ())))
               for s in (2, 1, 0)]
    return WideProblem("lengths", tuple(Device(f"gpu{s}", 3) for s in range(3)), tuple(blocks))


@pytest.fixture
def file(tmp_path: Path) -> Callable[[WideProblem], str]:
    def written(problem: WideProblem) -> str:
        path = tmp_path / f"{problem.name}.json"
        path.write_text(json.dumps(any_problem_to_json(problem)))
        return str(path)
    return written


def test_the_number_of_chunks_is_chosen_and_proven() -> None:
    found = weft.solve(chunked(), micro_batches=1, effort=1.0)
    assert (found.makespan, found.gap, dict(found.choices)) == (1297.5, 0, {"chunks": "8"})
    told = {entry["option"]: entry for entry in found.solver["options"]}
    assert told["8"]["taken"] and all(told[option]["bound"] > 1297.5 for option in ("1", "4", "16"))


def test_jobs_share_a_gpu_and_its_network() -> None:
    found = weft.solve(two_jobs(), micro_batches={"train": 6, "serve": 6}, objective="rate", effort=1.0)
    assert found.value == found.value_bound == 12 and found.rounds is not None and found.rounds.run.rounds == 6


@pytest.mark.slow
def test_the_order_of_micro_batches_is_searched_where_it_is_free() -> None:
    run = ["short"] * 4 + ["long"] * 2
    given = weft.solve(lengths(), micro_batches=run, effort=1.0)
    free = weft.solve(lengths(), micro_batches=run, effort=2.0, reorder=True)
    assert (given.makespan, given.gap, free.makespan, free.gap) == (48, 0, 43, 0)
    assert free.rounds is not None and sorted(map(str, free.rounds.run.classes[None])) == sorted(run)


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "asked"), [
    (chunked(), ["-n", "1"]), (two_jobs(), ["-n", "train=4,serve=2"]), (lengths(), ["-n", "4*short,2*long"]),
    (lengths(), ["-n", "2*short,long", "--reorder"]), (lengths(), ["-n", "3", "--any-class"]),
])
def test_commands_take_them(problem: WideProblem, asked: list[str], file: Callable[[WideProblem], str],
                            tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, made = file(problem), str(tmp_path / "schedule.json")
    search = [*asked, "--effort", "0.5", "--quiet"]
    assert main(["solve", source, *search, "-o", made]) == 0
    assert main(["check", made]) == 0
    assert main(["explain", made]) == 0
    assert main(["explain", source, *search]) == 0
    assert main(["compare", source, *search]) == 0
    assert main(["draw", made, "-o", str(tmp_path / "picture.html")]) == 0
    written = json.loads(Path(made).read_text())
    names = {block["name"] for block in written["problem"]["blocks"]}
    assert {operation["block"] for operation in written["operations"]} <= names
    assert "weft" in capsys.readouterr().out


@pytest.mark.parametrize(("problem", "asked", "message"), [
    (two_jobs(), ["-n", "train=4"], "says nothing of the job 'serve'"),
    (two_jobs(), ["-n", "train=4,serve=3", "--ratio", "train=2,serve=2"], "3 is no multiple of 2"),
    (lengths(), ["-n", "5"], "list the class of each"),
    (lengths(), ["-n", "short,huge"], "there is no class 'huge'"),
    (chunked(), ["-n", "2", "--reorder"], "here all are alike"),
    (chunked(), ["-n", "2", "--any-class"], "only where there are several"),
])
def test_what_means_nothing_is_one_sentence(problem: WideProblem, asked: list[str], message: str,
                                            file: Callable[[WideProblem], str],
                                            capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["solve", file(problem), *asked, "--effort", "0.2", "--quiet"])
    told = capsys.readouterr().err
    assert status == 2 and message in told and told.count("\n") == 1
