"""A plan with jobs, taken apart: what each job runs on its ranks by itself, and where in the common order it stands.

A job with blocks on lanes alone sums gradients there and is trained *data parallel*
(:mod:`weft.runtime.share.data_parallel_plan`): a plan of one rank, in a replica on each of its ranks. Any other is a
graph of *stages* (:mod:`weft.runtime.share.stages_plan`): its own blocks, in the order that the plan has them in, all
micro-batches of one lap of the plan being one batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import BlockWork, ProgramError, Reduce, Work

__all__ = ["JobPlan", "Key", "Sum", "keys_of", "orders_of"]

#: A block in the common order: its job, its name, and which of the job's micro-batches it is of.
Key = tuple[str, str, int]


@dataclass(frozen=True)
class Sum:
    """A block ``name`` that sums gradients: behind ``needs``, the blocks that compute before it."""

    name: str
    needs: frozenset[str]


@dataclass(frozen=True)
class JobPlan:
    """A job's part: ``plan`` is one batch of it, in ``replicas`` copies on ``ranks`` of the plan with jobs.

    ``blocks``: what the plan with jobs calls each pass, a name and which of a batch's micro-batches; ``opens`` and
    ``closes`` are the passes with which a block begins and ends there. ``sums``: in their order in a batch. A lap of
    the plan with jobs has ``batches`` of it, of ``size`` micro-batches as that plan counts. ``durations``: of its
    blocks by name, in the plan's time unit.
    """

    name: str
    plan: Plan
    ranks: tuple[int, ...]
    replicas: int
    blocks: Mapping[Work, tuple[str, int]]
    opens: frozenset[Work]
    closes: frozenset[Work]
    sums: tuple[Sum, ...]
    batches: int
    size: int
    durations: Mapping[str, float]

    @property
    def data_parallel(self) -> bool:
        """Whether each of its ranks has all of it, and gradients are summed in blocks of their own."""
        return bool(self.sums)

    @property
    def trains(self) -> bool:
        """Whether it has a backward, and so losses."""
        graph = self.plan.vocabulary.graph
        return graph is not None and graph.has_backward

    def reduces(self, plan: Plan) -> dict[str, list[Reduce]]:
        """By name of a sum, the REDUCEs of ``plan`` (this job's, with its parameters known) that it makes.

        Raises :class:`~weft.runtime.plan.program.ProgramError` for gradients that no block sums.
        """
        found: dict[str, list[Reduce]] = {entry.name: [] for entry in self.sums}
        graph = plan.vocabulary.graph
        assert graph is not None
        for instruction in plan.program.ranks[0]:
            if not isinstance(instruction, Reduce):
                continue
            behind = {plan.problem.blocks[block].name for block in graph.contributions(instruction.stages)}
            home = next((entry.name for entry in self.sums if behind <= entry.needs), None)
            if home is None:
                raise ProgramError(f"job {self.name!r}: no block of the plan sums the gradients of "
                                   f"{' and '.join(sorted(behind))}: one on the lanes of all ranks must wait for them")
            found[home].append(instruction)
        return found


def orders_of(plan: Plan, rank: int) -> dict[int, list[Key]]:
    """Per device and lane of ``rank``, its blocks in the common order."""
    found: dict[int, list[Key]] = {}
    for work, key in keys_of(plan, rank):
        block = plan.vocabulary.block(work)
        assert block is not None  # the plan's program has been checked
        for device in plan.vocabulary.ranks.held(rank, block):
            found.setdefault(device, []).append(key)
    return found


def keys_of(plan: Plan, rank: int) -> Sequence[tuple[BlockWork, Key]]:
    """What ``rank`` runs of all jobs, in its order."""
    found = []
    assert plan.rounds is not None
    for work in plan.program.works(rank):
        assert isinstance(work, BlockWork)
        job = plan.rounds.wide.blocks[plan.rounds.number[work.block]].job
        assert job is not None
        found.append((work, (job, work.block, work.micro_batch)))
    return found
