"""What becomes of results that lie in a message's slot."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tests.support.builders import chain, pipeline
from tests.support.threads import Tracer, run_in_threads
from weft.runtime import Boundary, plan_of
from weft.runtime.execute.executor import Parcel
from weft.runtime.plan.program import StageWork, Work
from weft.solver.baselines import baseline


def test_what_a_stage_hands_on_unchanged_is_not_lost_when_its_slot_is_needed_again() -> None:
    """Worker results that are the received tensors themselves, sent on from the middle rank."""
    plan = plan_of(baseline("gpipe", pipeline(chain(3), backward=None), 6))

    class Passing(Tracer):
        def compute(self, work: Work, results: Mapping[Work, Parcel]) -> Parcel:
            found = super().compute(work, results)
            if self.rank == 1:
                return dict(results[self.reads(work)[0]])
            if self.rank == 2:
                seen.append(int(results[self.reads(work)[0]][""].max()))
            return found

        def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
            return {"": Boundary((1, 2), torch.int64)}

    seen: list[int] = []
    tracers = [Passing(plan, rank) for rank in range(3)]
    run_in_threads(plan, lambda rank: tracers[rank], 1)
    assert seen == [tracers[0].found[StageWork(0, "F", m)] for m in range(6)]
