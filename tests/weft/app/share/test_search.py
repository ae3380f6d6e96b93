"""Jobs that share GPUs: periods that can be worked out by hand, limits, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import weft
from tests.support import refusal, shows, slow
from tests.support.shared_periods import compared
from tests.support.sharing import one_gpu, random_jobs
from weft.app.share import search
from weft.app.share.result import RatioTried, Sharing, Timed
from weft.app.share.search import Question, _SharingSearch, share_jobs
from weft.cli.main import main
from weft.models.share.job import Job, SharingError, job_of
from weft.runtime.plan.lanes import collective_rows
from weft.runtime.plan.plan import plan_of
from weft.solver import Block, BlockKind, Dependency, Device, Infeasible, NoneFound, Problem, load_schedule
from weft.solver.control.stopping import STOP
from weft.solver.judge.collective_order import collective_order_faults


def options() -> weft.SearchOptions:
    """Their time counts from now on."""
    return weft.SearchOptions(time_limit=3000, effort=0.5)


EVEN = Question("1:1")


def shared(pairs: list[tuple[float, float]], question: Question = EVEN) -> Sharing:
    return share_jobs([one_gpu(name, *pair) for name, pair in zip("ab", pairs, strict=True)], question, options())


@pytest.mark.parametrize(("pairs", "turn", "period"), [
    ([(8, 2), (8, 2)], 20, 16), ([(6, 4), (6, 4)], 20, 12), ([(5, 5), (5, 5)], 20, 10), ([(4, 6), (8, 2)], 20, 12),
    ([(6, 4), (9, 3)], 22, 15)])
def test_periods_that_are_known(pairs: list[tuple[float, float]], turn: float, period: float) -> None:
    found = shared(pairs)
    assert found.round.period == found.round.bound == period and found.proven
    assert found.speedup == found.speedup_bare == pytest.approx(turn / period)
    assert [job.slowdown for job in found.jobs] == pytest.approx([period / sum(pair) for pair in pairs])
    assert [job.in_turn for job in found.jobs] == [turn, turn]


@pytest.mark.slow
def test_periods_of_random_jobs_are_those_of_trying_every_start() -> None:
    counts: Counter[str] = Counter()
    assert not [fault for number in range(9) for fault in compared(number, 2.0, counts)]
    assert counts["compared"] > 4 and counts["do not fit"] and counts["limits refused"] == counts["compared"]
    assert counts["with memory"] > 1


def test_the_best_small_ratio_is_taken() -> None:
    devices = (Device("gpu"), Device("net", lane_of="gpu"))
    pair = [job_of(name, Problem(name, devices, (Block("C", BlockKind.OTHER, (0,), compute),
                                                 Block("S", BlockKind.COLLECTIVE, (1,), network))))
            for name, compute, network in (("a", 1, 2), ("b", 4, 1))]
    found = share_jobs(pair, Question(), options())
    assert found.ratio == (3, 1) and found.round.period == 7 and found.proven
    assert found.speedup == pytest.approx(10 / 7)
    assert {entry.ratio for entry in found.tried if entry.found is not None} >= {(1, 1), (2, 1), (3, 1)}


def test_own_overlap_is_part_of_what_a_job_does_alone() -> None:
    blocks = (Block("C", BlockKind.OTHER, (0,), 3), Block("S", BlockKind.COLLECTIVE, (1,), 2))
    pair = [job_of(name, Problem(name, (Device("gpu"), Device("net", lane_of="gpu")), blocks)) for name in "ab"]
    found = share_jobs(pair, Question("1:1"), options())
    assert [(job.own.period, job.bare.period) for job in found.jobs] == [(3, 5)] * 2
    assert found.speedup == 1 and found.speedup_bare == pytest.approx(10 / 6)


@pytest.mark.slow
def test_steps_that_repeat_together_may_take_less_than_one_by_one() -> None:
    devices = (Device("gpu", 4), Device("net", lane_of="gpu"))
    slow = Problem("a", devices, (
        Block("load", BlockKind.OTHER, (1,), 1, memory=(2,)),
        Block("C", BlockKind.OTHER, (0,), 2, after=(Dependency("load"),)),
        Block("D", BlockKind.OTHER, (0,), 1, memory=(-2,), after=(Dependency("C", lag=2),))))
    other = Problem("b", devices, (Block("C", BlockKind.OTHER, (0,), 0.001),))
    pair = [job_of("a", slow), job_of("b", other)]
    found = {steps: share_jobs(pair, Question([steps, 1]), options()).jobs[0] for steps in (1, 2, 3)}
    assert {steps: job.own.period * steps for steps, job in found.items()} == pytest.approx({1: 4, 2: 7, 3: 11})
    assert all(job.slowdown >= 1 - 1e-9 and job.own.bound <= job.own.period for job in found.values())


@pytest.mark.parametrize(("memory", "period"), [(12, 10), (11, 20)])
def test_memory_is_that_of_all_together(memory: float, period: float) -> None:
    devices = (Device("gpu", memory), Device("net", lane_of="gpu"))
    blocks = (Block("C", BlockKind.OTHER, (0,), 5, memory=(6,), after=(Dependency("S", distance=1),)),
              Block("S", BlockKind.COLLECTIVE, (1,), 5, memory=(-6,), after=(Dependency("C"),)))
    pair = [job_of(name, Problem(name, devices, blocks)) for name in "ab"]
    found = share_jobs(pair, EVEN, options())
    assert found.round.period == period and max(found.schedule.peak_memory) <= memory


def test_no_job_gets_slower_than_allowed() -> None:
    found = shared([(6, 4), (9, 3)], Question(max_slowdown={"b": 1.25}))
    assert found.jobs[1].slowdown <= 1.25
    with pytest.raises(Infeasible, match=r"1:1: a takes 1\.500 times as long as alone, more than 1\.4"):
        shared([(6, 4), (9, 3)], Question("1:1", max_slowdown=1.4))


def test_a_refusal_is_proven_only_where_every_ratio_is() -> None:
    jobs = [one_gpu("a", 6, 4), one_gpu("b", 9, 3)]
    asked = _SharingSearch(jobs, Question(max_slowdown=1.1), options(), lambda _: None)
    slow = RatioTried((1, 1), Timed(15, 15), 1.4, "a takes 1.500 times as long as alone, more than 1.1")
    ruled_out = RatioTried((1, 2), None, None, "a takes 2.100 times as long as alone, more than 1.1")
    left_open = RatioTried((2, 1), None, None, "no steady state was found in time")
    assert type(asked._refusal([slow, ruled_out])) is Infeasible
    assert type(asked._refusal([slow, left_open])) is NoneFound
    assert type(asked._refusal([ruled_out, left_open])) is NoneFound


def test_jobs_that_meet_on_no_gpu_share_nothing() -> None:
    devices = (Device("g0"), Device("g1"))
    apart = [job_of(name, Problem(name, devices, (Block("C", BlockKind.OTHER, (number,), 1),)))
             for number, name in enumerate("ab")]
    with pytest.raises(SharingError, match=r"no GPU runs two of the jobs \(a on g0; b on g1\): there is nothing"):
        share_jobs(apart, Question("1:1"), options())


def test_a_gpu_with_one_job_only_is_told() -> None:
    devices = (Device("g0"), Device("g1"))

    def job(name: str, where: tuple[int, ...]) -> Job:
        return job_of(name, Problem(name, devices, (Block("C", BlockKind.OTHER, where, 1),)))

    found = share_jobs([job("a", (0, 1)), job("b", (0,))], Question("1:1"), options())
    assert any(note.startswith("g1 runs a alone") for note in found.notes) and found.round.period == 2


@pytest.mark.parametrize("seed", [0, slow(1), slow(2)])
def test_every_rank_sees_collectives_in_one_order(seed: int) -> None:
    jobs = random_jobs(seed)
    found = share_jobs(jobs, Question([1] * len(jobs)), weft.SearchOptions(time_limit=3000, effort=0.05))
    assert not collective_order_faults(collective_rows(plan_of(found.schedule)))
    assert found.round.bound <= found.round.period


def files(folder: Path) -> list[str]:
    found = []
    for name, (compute, network) in (("a", (6, 4)), ("b", (9, 3))):
        blocks = [{"name": "compute", "kind": "other", "devices": [0], "duration": compute, "memory": 0,
                   "after": [{"block": "sum", "distance": 1}]},
                  {"name": "sum", "kind": "collective", "devices": [1], "duration": network, "memory": 0,
                   "after": ["compute"]}]
        path = folder / f"{name}.json"
        path.write_text(json.dumps({
            "format": "weft.problem/1", "name": f"job {name}", "time_unit": "ms", "memory_unit": "B",
            "devices": [{"name": "gpu", "memory": None}, {"name": "net", "lane_of": "gpu"}], "blocks": blocks}))
        found.append(str(path))
    return found


@pytest.mark.slow
def test_the_command_writes_a_schedule_that_others_read(tmp_path: Path) -> None:
    out = str(tmp_path / "shared.json")
    told = shows("share", *files(tmp_path), "--ratio", "1:1", "--quiet", "--time-limit", "20", "-o", out, "-o",
                  tmp_path / "shared.svg")
    assert "1:1 steps every 15 ms, proven the least" in told and "x 1.467 as fast as in turn" in told
    schedule = load_schedule(out)
    assert schedule.period == 15 and schedule.solver["share"]["ratio"] == [1, 1]
    assert weft.check(schedule) == [] and (tmp_path / "shared.svg").read_text().startswith("<svg")
    weft.draw(out, tmp_path / "again.html")
    assert main(["plan", out, "-o", str(tmp_path / "plan.json")]) == 0


@pytest.mark.parametrize(("arguments", "status", "message"), [
    (["--ratio", "1.5:1"], 2, "never align"), (["--max-slowdown", "1.2"], 1, "no job may get slower than asked"),
    (["--max-slowdown", "=2"], 2, "job=number"), (["-o", "x.yaml"], 2, "a schedule is written as")])
def test_the_command_refuses_in_a_sentence(arguments: list[str], status: int, message: str, tmp_path: Path) -> None:
    assert message in refusal("share", *files(tmp_path), "--quiet", *arguments, status=status)


def test_more_rounds_than_can_be_searched_are_refused() -> None:
    with pytest.raises(SharingError, match="rounds is 100000, for these jobs it can be 5000 at most"):
        shared([(8, 2), (8, 2)], Question("1:1", rounds=100_000))


def test_a_stop_is_not_taken_for_too_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STOP, "requested", False)

    def stopped(*_: object, **__: object) -> None:
        STOP.requested = True
        raise NoneFound("no steady state was found")

    monkeypatch.setattr(search, "solve_run", stopped)
    with pytest.raises(NoneFound, match="a: no steady state was found within the limit"):
        shared([(4, 6), (8, 2)])


def test_without_any_time_there_is_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_IN_ANY_CASE", 30.0)  # on any machine enough
    jobs = [one_gpu(name, 6, 4) for name in "ab"]
    found = share_jobs(jobs, EVEN, weft.SearchOptions(time_limit=0.0))
    assert found.round.period <= 20 and found.round.bound <= found.round.period
