"""What a replay found on all ranks, gathered on the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.runtime.execute.pacing import Latencies, latencies
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.timeline import Comparison, Measured, Timeline, compare

if TYPE_CHECKING:
    from weft.runtime.ranks.session import Session

__all__ = ["Replay", "gather_replay"]


@dataclass(frozen=True)
class Replay:
    """What a replay found: the timeline of its last batch, that held against the plan (``None`` if the problem's time
    unit says nothing in seconds), and for each batch its mean loss (none if no stage gives one) and the norm of its
    gradient before clipping (none without clipping). With replicas of a plan, the timeline is the first one's.
    ``latencies`` are those of its micro-batches, where they were paced."""

    timeline: Timeline
    comparison: Comparison | None
    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    latencies: Latencies | None = None

    def __str__(self) -> str:
        if not self.timeline.operations:
            return "nothing was left to run: the checkpoint has all batches behind it"
        lines = [f"measured makespan  {self.timeline.makespan:.6g} s"]
        if self.comparison is not None:
            lines.append(f"predicted          {self.comparison.predicted:.6g} s")
            lines.append(f"ratio              {self.comparison.ratio:.4f}")
        if self.latencies is not None:
            lines.append(str(self.latencies))
        if self.losses:
            lines.append("loss per batch     " + " ".join(f"{loss:.6g}" for loss in self.losses))
        return "\n".join(lines)


def gather_replay(plan: Plan, session: Session, seconds_per_unit: float | None, measured: Sequence[Measured],
                  losses: Sequence[float] = (), norms: Sequence[float] = (), paced: bool = False) -> Replay | None:
    """What all ranks found, on process 0; ``None`` elsewhere. All ranks of all replicas must call it together.

    ``measured`` are this rank's blocks in the last batch, ``losses`` its parts of each batch's mean loss.
    ``seconds_per_unit``: what one of the plan's time units lasts; ``None`` if that is not known.
    """
    found = session.gather((measured, losses))
    if found is None:
        return None
    timeline = Timeline.of(plan, seconds_per_unit or 1.0, [o for blocks, _ in found[:session.world] for o in blocks])
    comparison = None if seconds_per_unit is None or not timeline.operations else compare(timeline, plan)
    by_batch = zip(*(parts for _, parts in found), strict=True)
    return Replay(timeline, comparison, tuple(sum(parts) / session.replicas for parts in by_batch), tuple(norms),
                  latencies(timeline, plan) if paced and timeline.operations else None)
