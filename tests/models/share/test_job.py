"""A job by itself: what it holds, where it runs, and what it is without overlap of its own."""

from __future__ import annotations

import pytest

from tests.support.sharing import one_gpu
from weft.models.share.job import SharingError, job_of, one_at_a_time
from weft.solver.problem import Block, BlockKind, Device, Problem
from weft.solver.wide.block import WideBlock
from weft.solver.wide.problem import WideProblem


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
    ([WideBlock("C", BlockKind.OTHER, (0,), 1, job="x"), WideBlock("D", BlockKind.OTHER, (0,), 1, job="y")],
     "has the jobs 'x', 'y' already"),
    ([WideBlock("C", BlockKind.OTHER, (0,), {"long": 2, "short": 1})], "has micro-batches that differ"),
])
def test_jobs_and_classes_are_not_one_job(blocks: list[WideBlock], message: str) -> None:
    with pytest.raises(SharingError, match=message):
        job_of("a", WideProblem("several", (Device("gpu"),), tuple(blocks)))
