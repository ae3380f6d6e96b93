"""A job by itself: what it holds, where it runs, and what it is without overlap of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.sharing import one_gpu
from weft.models.share.job import Job, SharingError, composed, in_one_unit, in_units, job_of, one_at_a_time
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem, per_class


def test_without_overlap_a_gpu_and_its_lanes_are_one() -> None:
    found = one_at_a_time(one_gpu("a", 8, 2).problem)
    assert [device.name for device in found.devices] == ["gpu"]
    assert [block.devices for block in found.blocks] == [(0,), (0,)]


def test_what_a_block_takes_on_a_gpu_and_its_lane_adds_up() -> None:
    devices = (Device("g0"), Device("net", lane_of="g0"), Device("g1"))
    problem = job_of("a", Problem("a", devices, (
        Block("C", BlockKind.OTHER, (1, 2, 0), 1, memory=(1, 2, 4), workspace=(8, 16, 32)),))).problem
    block = one_at_a_time(problem).blocks[0]
    assert (block.devices, block.memory, block.workspace) == ((0, 1), (5, 2), (40, 16))


def test_which_gpus_it_is_on() -> None:
    devices = (Device("g0"), Device("g1"), Device("net", lane_of="g1"))
    alone = job_of("a", Problem("a", devices, (Block("C", BlockKind.OTHER, (2,), 1),)))
    assert alone.gpus == {1}
    both = job_of("a", Problem("a", devices, (Block("C", BlockKind.OTHER, (0, 2), 1),)))
    assert both.gpus == {0, 1}


def test_what_everything_has_and_what_is_held() -> None:
    job = one_gpu("a", 1, 1, memory=10, static=6)
    assert job.capacity == (16,) and job.held == (6,)


@pytest.mark.parametrize(("blocks", "message"), [
    ([Block("C", BlockKind.OTHER, (0,), 1, job="x"), Block("D", BlockKind.OTHER, (0,), 1, job="y")],
     "has the jobs 'x', 'y' already"),
    ([Block("C", BlockKind.OTHER, (0,), **per_class(duration={"long": 2, "short": 1}))],
     "has micro-batches that differ"),
])
def test_jobs_and_classes_are_not_one_job(blocks: list[Block], message: str) -> None:
    with pytest.raises(SharingError, match=message):
        job_of("a", Problem("several", (Device("gpu"),), tuple(blocks)))


def test_nothing_changes_in_the_same_units() -> None:
    problem = one_gpu("a", 8, 2).problem
    assert in_units(problem, "s", "B") == problem


def test_every_class_of_a_cost_is_converted() -> None:
    problem = Problem("p", (Device("gpu", 4),), (
        Block("C", BlockKind.OTHER, (0,), **per_class(duration={"x": 0.1, "y": 3}, memory={"x": (1,), "y": (2,)})),
        Block("D", BlockKind.OTHER, (0,), 1, after=(Dependency("C", **per_class(lag={"x": 0.3, "y": 0})),))),
        time_unit="s", memory_unit="GiB")
    found = in_units(problem, "ms", "MiB")
    assert found.blocks[0].by_class == {"duration": {"x": 100, "y": 3000}, "memory": {"x": (1024,), "y": (2048,)}}
    assert found.blocks[1].after[0].by_class == {"lag": {"x": 300, "y": 0}} and found.devices[0].memory == 4096


def test_unknown_units_cannot_be_converted() -> None:
    with pytest.raises(SharingError, match="memory_unit is 'activations', and that of another job is 'B'"):
        in_units(replace(one_gpu("a", 1, 1).problem, memory_unit="activations"), "s", "B")


def test_blocks_keep_to_their_job_and_devices_are_the_same_ones() -> None:
    found = composed([one_gpu("a", 8, 2), one_gpu("b", 4, 6)])
    assert [device.name for device in found.devices] == ["gpu", "network"]
    assert [(block.name, block.job, block.devices) for block in found.blocks] == [
        ("a/compute", "a", (0,)), ("a/sum", "a", (1,)), ("b/compute", "b", (0,)), ("b/sum", "b", (1,))]
    assert [(wait.block, wait.distance) for wait in found.blocks[2].after] == [("b/sum", 1)]


def test_memory_is_what_all_leave() -> None:
    found = composed([one_gpu("a", 1, 1, memory=10, static=6), one_gpu("b", 1, 1, memory=13, static=3)])
    assert (found.devices[0].memory, found.devices[0].static) == (7, 9)


def test_lanes_of_one_gpu_stand_behind_it_whichever_job_has_them() -> None:
    plain = job_of("c", Problem("c", (Device("gpu"),), (Block("C", BlockKind.OTHER, (0,), 1),)))
    found = composed([plain, one_gpu("a", 1, 1)])
    assert [(device.name, device.lane_of) for device in found.devices] == [("gpu", None), ("network", "gpu")]
    assert found.blocks[2].devices == (1,)


def test_choices_are_those_of_their_job() -> None:
    devices = (Device("gpu"),)
    open_one = Problem("a", devices, tuple(Block("C", BlockKind.OTHER, (0,), d, when={"way": way})
                                               for way, d in (("fast", 1), ("slow", 2))),
                           choices={"way": ("fast", "slow")})
    found = composed([job_of("a", open_one), job_of("b", open_one)])
    assert found.choices == {"a/way": ("fast", "slow"), "b/way": ("fast", "slow")}
    assert found.blocks[3].when == {"b/way": "slow"}


def test_units_become_those_of_the_first_job() -> None:
    first = one_gpu("a", 1, 1, memory=8)
    other = one_gpu("b", 2.5, 0.1, memory=8192, static=0, takes=512)
    seconds = replace(first, problem=replace(first.problem, time_unit="s", memory_unit="GiB"))
    small = replace(other, problem=replace(other.problem, time_unit="ms", memory_unit="MiB"))
    _, found = in_one_unit([seconds, small])
    assert [block.duration for block in found.problem.blocks] == [0.0025, 0.0001]
    assert (found.problem.devices[0].memory, found.problem.blocks[0].workspace) == (8, (0.5,))


def _other_units(job: Job) -> Job:
    return replace(job, problem=replace(job.problem, time_unit="steps"))


@pytest.mark.parametrize(("jobs", "message"), [
    ([one_gpu("a", 1, 1), job_of("b", Problem("b", (Device("gpu 7"),), (Block("C", BlockKind.OTHER, (0,), 1),)))],
     "b is on the GPUs gpu 7, and a on gpu"),
    ([one_gpu("a", 1, 1, memory=8), one_gpu("b", 1, 1, memory=9)], "gpu has 8 B for a, and 9 B for b"),
    ([one_gpu("a", 1, 1), one_gpu("b", 1, 1, memory=9)], "gpu has unlimited memory for a, and 9 B for b"),
    ([one_gpu("a", 1, 1), _other_units(one_gpu("b", 1, 1))], "time_unit is 'steps', and that of another job is 's'"),
    ([one_gpu("a", 1, 1, memory=1, static=9), one_gpu("b", 1, 1, memory=2, static=8)], r"hold 17 B .*, 7 B more than"),
    ([one_gpu("a", 1, 1, memory=7516192768), one_gpu("b", 1, 1, memory=2**33)],
     r"gpu has 7\.0 GiB for a, and 8\.0 GiB"),
    ([one_gpu("a", 1, 1, memory=2**30), one_gpu("b", 1, 1, memory=2**30 + 1)],
     "gpu has 1073741824 B for a, and 1073741825 B for b"),
    ([one_gpu("a", 1, 1, memory=2**30, static=9 * 2**30), one_gpu("b", 1, 1, memory=2**31, static=2**33)],
     r"hold 17\.0 GiB all the time \(a 9\.0 GiB, b 8\.0 GiB\), 7\.0 GiB more than"),
])
def test_what_cannot_be_shared_is_a_sentence(jobs: list[Job], message: str) -> None:
    with pytest.raises(SharingError, match=message):
        composed(in_one_unit(jobs))


def test_one_name_for_two_links_or_lanes_is_refused() -> None:
    devices = (Device("g0"), Device("g1"))
    blocks = (Block("C", BlockKind.OTHER, (0,), 1), Block("D", BlockKind.OTHER, (1,), 1, after=(
        Dependency("C", 1, "wire"),)))
    back = (Block("C", BlockKind.OTHER, (1,), 1), Block("D", BlockKind.OTHER, (0,), 1, after=(
        Dependency("C", 1, "wire"),)))
    one = job_of("a", Problem("a", devices, blocks, (Link("wire", 0, 1),)))
    other = job_of("b", Problem("b", devices, back, (Link("wire", 1, 0),)))
    with pytest.raises(SharingError, match="link 'wire' does not join the devices that it joins for a"):
        composed([one, other])
    lanes = [job_of(name, Problem(name, (*devices, Device("net", lane_of=owner)), (
        Block("C", BlockKind.OTHER, (2,), 1),))) for name, owner in (("a", "g0"), ("b", "g1"))]
    with pytest.raises(SharingError, match="device 'net' is a lane of 'g1', and for another job of 'g0'"):
        composed(lanes)
