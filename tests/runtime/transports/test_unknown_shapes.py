"""Stages whose tensors differ in shape from micro-batch to micro-batch, on ranks and on threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from tests.runtime.transports.test_processes import random_plan
from tests.support import chain, finished, laned_schedule, pipeline
from tests.support.mixed_shapes import Mixed
from tests.support.threads import Tracer, expected, run_in_threads
from tests.support.unknown_ranks import RANKS, STEPS, TRANSPORTS
from weft.runtime import Boundary, SessionError, plan_of
from weft.runtime.execute.executor import Executor, Parcel
from weft.runtime.plan.program import ProgramError, StageWork, Work
from weft.runtime.train.worker import StageWorker
from weft.solver.baselines import baseline


@pytest.mark.slow
def test_lengths_that_differ_train_over_every_transport_as_in_one_process() -> None:
    ended = finished(RANKS, "tests.support.unknown_ranks")
    assert [end.output for end in ended] == [f"{STEPS * (len(TRANSPORTS) + 2) + 2} steps\n"] * RANKS


class Varied(Tracer):
    """Results of as many numbers as the micro-batch and the step say; rank 1 hands on the very tensors it was given."""

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        return {"": Boundary((None, 2), torch.int64)}

    def message(self, what: Work, target: int) -> Callable[[Parcel], Parcel]:
        return lambda result: result

    def compute(self, work: Work, results: Mapping[Work, Parcel]) -> Parcel:
        found = super().compute(work, results)
        if self.rank == 1:
            return {"": results[self.reads(work)[0]][""]}
        count = 1 + (7 * work.micro_batch + 5 * self.step) % 11
        if self.rank == 2:
            assert results[self.reads(work)[0]][""].shape == (count, 2)
        return {"": found[""].expand(count, 2)}


def test_what_a_stage_hands_on_is_not_lost_when_its_growing_slot_is_needed_again() -> None:
    plan = plan_of(baseline("gpipe", pipeline(chain(3), backward=None), 6))
    tracers = [Varied(plan, rank) for rank in range(3)]

    def between(step: int, executor: object) -> None:
        for tracer in tracers:
            tracer.step = step

    seen: list[list[int]] = []
    run_in_threads(plan, lambda rank: tracers[rank], 1, between)
    seen.append([tracers[2].found[StageWork(2, "F", m)] for m in range(6)])
    assert len(set(seen[0])) == 6


@pytest.mark.parametrize("seed", range(6))
def test_random_schedules_run_right_with_shapes_known_and_unknown(seed: int) -> None:
    """On ranks that run one after another what they do, and on ranks with lanes."""
    plan = plan_of(laned_schedule()) if seed == 5 else random_plan(seed)
    tracers = [Mixed(plan, rank) for rank in range(len(plan.program.ranks))]

    def between(step: int, executor: Executor) -> None:
        tracer = tracers[executor.session.rank]
        tracer.step = step
        tracer.found.clear()

    run_in_threads(plan, lambda rank: tracers[rank], 3, between)
    wanted = expected(plan, 2)
    for rank, tracer in enumerate(tracers):
        assert tracer.found == {work: wanted[work] for work in plan.program.works(rank)}


def test_a_rank_that_thinks_a_shape_is_known_is_refused() -> None:
    plan = plan_of(baseline("gpipe", pipeline(chain(2), backward=None), 2))

    class Certain(Varied):
        def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
            return {"": Boundary((3, 2), torch.int64)}

    with pytest.raises((SessionError, ProgramError), match=r"\[None, 2\] of int64 on rank 0 and \[3, 2\] of int64"):
        run_in_threads(plan, lambda rank: (Varied, Certain)[rank](plan, rank))


@pytest.mark.parametrize(("shape", "given", "is_gradient", "sees"), [
    ((3, 4), (3, 5), False, r"gives \(3, 5\) of torch.float32, but port says \(3, 4\) of torch.float32"),
    ((None, 4), (3, 5), False, r"gives \(3, 5\) of torch.float32, but port says \(None, 4\)"),
    ((None, 4), (3, 4, 1), False, r"gives \(3, 4, 1\)"), ((None, 4), None, False, "gives nothing"),
    ((None, 4), (9, 4), True, ""), ((3, 4), None, True, "")])
def test_what_is_declared_is_held_against_what_comes(shape: tuple[int | None, ...], given: tuple[int, ...] | None,
                                                     is_gradient: bool, sees: str) -> None:
    class Chain:
        is_chain = True

    worker = StageWorker.__new__(StageWorker)
    worker.__dict__.update(wiring=Chain(), device=torch.device("cpu"))
    found = None if given is None else torch.ones(given)
    check = StageWork(0, "F", 0), "port", Boundary(shape), found, is_gradient
    if sees:
        with pytest.raises(SessionError, match=sees):
            worker._checked(*check)
    else:
        assert worker._checked(*check).shape == (shape if given is None else given)
