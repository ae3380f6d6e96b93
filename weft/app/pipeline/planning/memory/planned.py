"""Decides which activations are kept, recomputed or offloaded: as the user requests, or by a plan if nothing else fits.

The decisions are part of the plan (``solver.operator_memory``): all ranks, the plan's digest and its file have them, so
that a plan given again runs the same.

A memory plan counts the saved activations of operators, but not the temporary memory of passes nor messages, and it
counts some tensors twice. Therefore plans are measured in rounds: the budget of the next plan is corrected by the
difference between the measured and the planned bytes of the last one, until the measured bytes fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.split import Model
from weft.app.pipeline.planning.machine import Machine
from weft.app.pipeline.planning.measuring import Ranks
from weft.app.pipeline.planning.memory.chain import Chain, chain_of, copy_bandwidth
from weft.app.pipeline.planning.problems import resident_bytes
from weft.app.pipeline.planning.row import rank_of
from weft.runtime.backends.stages import STAGE_BACKENDS, stages_by
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.inputs.batch_dims import Dims
from weft.runtime.captured.memory.decisions import MODES, Decisions, decisions_from_json
from weft.runtime.captured.memory.treatment import Treatment, treated
from weft.runtime.captured.purity import Purity, first_weight
from weft.runtime.measure.stage_costs import StageCosts
from weft.runtime.plan.plan import Plan
from weft.solver.placement.memory.plan import MemoryPlan, Mode
from weft.solver.placement.memory.plan_memory import NoMemoryPlan, plan_memory

#: Key of the decisions in a plan's solver record.
OPERATOR_MEMORY = "operator_memory"
#: Key of the first operators of all stages but the first.
CUTS = "cuts"
#: Relative gap of a memory plan to its bound, and the share of the time limit for its search.
GAP, SHARE = 1e-2, 0.2
#: If no schedule fits, at least this share of the memory is missing.
UNSEEN = 0.01

#: Costs of the stages, and whether a schedule of them ran.
Attempt: TypeAlias = tuple[Sequence[StageCosts], bool]


def require_memory_plan(options: PipelineOptions) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` for invalid options."""
    given = options.memory_plan
    if not isinstance(given, Mapping) and given not in ("auto", *MODES):
        raise CaptureError(f"memory_plan is {given!r:.60}, it must be 'auto', one of {', '.join(MODES)}, or a mapping "
                           "of modules' paths to these")
    if options.co_shard is not None and not isinstance(options.co_shard, Mapping):
        raise CaptureError(f"co_shard is {options.co_shard!r:.60}, it must be a mapping of modules' paths to numbers "
                           "of shares")


def requested_decisions(captured: Model, purity: Purity | None, options: PipelineOptions,
                        given: Plan | None) -> Decisions:
    """The decisions that the user's options or plan make.

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    if not isinstance(captured, Captured) or purity is None:
        if given is not None and given.solver.get(OPERATOR_MEMORY):
            raise CaptureError("the plan decides on the memory of operators, which are unknown with split: leave "
                               "split out")
        return Decisions()
    found = Decisions() if given is None else decisions_from_json(given.solver.get(OPERATOR_MEMORY), captured)
    plain = not options.compile and options.backends is None and options.memory is None
    if given is None and plain and options.memory_plan == "auto":
        found = Decisions.of_model(captured, purity)
    elif isinstance(options.memory_plan, Mapping):
        found = Decisions.by_path(captured, purity, options.memory_plan)
    elif options.memory_plan in MODES:
        mode: Mode = next(mode for mode in MODES if mode == options.memory_plan)
        found = Decisions.made(captured, purity, dict.fromkeys((node.name for node in captured.calls), mode))
    if options.compile and found:
        raise CaptureError("the plan decides on the memory of operators, which compiled stages do not run one by one: "
                           "leave compile out")
    return found if options.co_shard is None else replace(found, shards=dict(options.co_shard))


def treated_as_planned(captured: Model, plan: Plan, leaves: Sequence[Any], dims: Dims) -> Model:
    """``captured`` with the decisions on memory and the backends of ``plan``. ``leaves``: inputs of one micro-batch,
    with batch dimensions ``dims``."""
    if not isinstance(captured, Captured):
        return captured
    if (names := plan.solver.get(STAGE_BACKENDS)) is not None:
        return stages_by(captured, names)
    return treated(captured, decisions_from_json(plan.solver.get(OPERATOR_MEMORY), captured), leaves, dims)


def plan_with(plan: Plan, captured: Model, places: Sequence[int]) -> Plan:
    """``plan`` with the cuts of ``captured`` and the decisions on its operators in its solver record."""
    entries = {CUTS: list(places), **_memory_entry(captured)} if isinstance(captured, Captured) else {}
    kept = {key: value for key, value in plan.solver.items() if key not in (OPERATOR_MEMORY, CUTS)}
    return replace(plan, solver={**kept, **entries})


def cuts_of(plan: Plan) -> tuple[int, ...] | None:
    """The cuts recorded in ``plan``, if any.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for invalid cuts.
    """
    found = plan.solver.get(CUTS)
    if found is not None and not (isinstance(found, list | tuple) and all(type(place) is int for place in found)):
        raise CaptureError(f"the plan has {found!r:.60} as cuts, they must be numbers of operators")
    return None if found is None else tuple(found)


def memory_notes(captured: Model) -> list[str]:
    """Sentences on the decisions on memory."""
    if not isinstance(captured, Captured):
        return []
    decisions = captured.treatment.decisions if isinstance(captured.treatment, Treatment) else Decisions()
    counts = [f"{count} are {verb}" for mode, verb in (("recompute", "recomputed"), ("offload", "offloaded"))
              if (count := sum(own == mode for own in decisions.modes.values()))]
    shards = [f"{path or 'the model'} in {count} shares" for path, count in decisions.shards.items()]
    return [*([f"of {len(captured.calls)} operators {' and '.join(counts)}"] if counts else []),
            *_checkpoint_notes(captured, decisions),
            *([f"computed one after another: {', '.join(shards)}"] if shards else [])]


def _checkpoint_notes(captured: Captured, decisions: Decisions) -> list[str]:
    """Sentences on the model's own activation checkpoints, where the plan differs from them."""
    if not captured.checkpoints:
        return []
    own = captured.checkpointed
    calls = f"torch.utils.checkpoint is called {len(captured.checkpoints)} times in the model"
    if not own:
        return [f"{calls}, but torch {torch.__version__} does not record on which operators: none is recomputed; name "
                "modules in memory_plan"]
    again = sum(decisions.of(name) == "recompute" for name in own)
    why = ("" if again == len(own) else ", as memory, memory_plan, compile or the plan overrides it"
           if not decisions.calls else "; the others follow memory_plan, or write in place into tensors that are read")
    notes = [f"{calls}: of its {len(own)} operators {again} are recomputed{why}"]
    if any(captured.checkpoints) and again:
        notes.append("a policy of selective checkpoints (context_fn) is ignored: all of its operators are recomputed")
    return notes


def plans_memory(ranks: Ranks, machine: Machine, counts: Sequence[int]) -> bool:
    """Whether memory is planned by operators if no cut fits otherwise: this needs a memory limit, one stage per rank,
    and a captured model whose operators run one by one."""
    return (ranks.options.memory_plan == "auto" and machine.ranks in counts and ranks.materials is None
            and not ranks.options.compile and ranks.options.backends is None and isinstance(ranks.captured, Captured)
            and any(amount is not None for amount in machine.memory))


def memory_planned(ranks: Ranks, machine: Machine, attempt: Callable[[Ranks, tuple[int, ...]], Attempt],
                   best: Callable[[], int]) -> Ranks:
    """Plan cuts and the memory of operators in rounds until the measured memory fits. Collective.

    ``attempt`` measures a plan: it returns the costs of the stages and, on rank 0, whether a schedule of them fits and
    ran. ``best`` is called on rank 0 and returns the number of the best attempt. Returns the ranks with the decisions
    of this attempt.
    """
    options, (captured, purity) = ranks.options, ranks.graph
    limits = [amount for amount in machine.memory if amount is not None]
    rounds: list[MemoryRounds] = []
    chains: list[Chain] = []

    def next_plan() -> tuple[tuple[int, ...], dict[str, Any]] | None:
        if not rounds:
            chains.append(_chain(ranks))
            rounds.append(MemoryRounds(_planner(ranks, chains[0], machine), min(limits)))
        found = rounds[0].next_plan()
        if found is None:
            return None
        modes = chains[0].modes(found.modes)
        shards = captured.treatment.decisions.shards if isinstance(captured.treatment, Treatment) else {}
        decisions = Decisions.made(captured, purity, modes, shards)
        return chains[0].cuts(found.cuts), decisions.to_json()

    tried: list[Ranks] = []
    while (planned := ranks.broadcast(next_plan, "planning memory")) is not None:
        places, decided = planned
        own = ranks.deciding(decisions_from_json(decided, captured))
        tried.append(own)
        costs, ran = attempt(own, places)
        if rounds:
            rounds[0].learn(fullest(stage_peaks(costs, machine.ranks, options.micro_batches), machine.memory, ran))
    return tried[ranks.broadcast(lambda: _chosen(rounds[0], best), "choosing a memory plan")]


def fullest(peaks: Sequence[int], memory: Sequence[int | None], ran: bool) -> int:
    """The peak of the fullest rank in bytes, on a machine whose ranks all have the least ``memory``. If no schedule
    ``ran``, it exceeds the memory even if 1F1B's ``peaks`` do not."""
    least = min(amount for amount in memory if amount is not None)
    over = max(peak - amount for peak, amount in zip(peaks, memory, strict=True) if amount is not None)
    return least + (over if ran else max(over, int(UNSEEN * least), 1))


def stage_peaks(costs: Sequence[StageCosts], ranks: int, micro_batches: int) -> list[int]:
    """Peak bytes of each rank under 1F1B with full backwards, by the measured costs of the stages."""
    peaks = resident_bytes(costs, ranks, micro_batches)
    needed = [0] * ranks
    for cost in costs:
        rank = rank_of(cost.stage, len(costs), ranks)
        forward, backward = (cost.passes["full"][letter].memory for letter in "FB")
        change = max(0, forward.change)
        peaks[rank] += min(micro_batches, len(costs) - cost.stage) * change
        needed[rank] = max(needed[rank], forward.peak - change, backward.peak)
    return [peak + need for peak, need in zip(peaks, needed, strict=True)]


def _chosen(rounds: MemoryRounds, best: Callable[[], int]) -> int:
    if not rounds.tried and rounds.reason is not None:
        raise CaptureError(f"no cut leaves a schedule that fits, and {rounds.reason}") from rounds.reason
    return best()


def _chain(ranks: Ranks) -> Chain:
    captured, purity = ranks.graph
    first = first_weight(captured)
    return chain_of(captured, purity, ranks.example.leaves, ranks.loss, first=first + 1,
                    cuts=ranks.options.cuts or ())


def _planner(ranks: Ranks, chain: Chain, machine: Machine) -> Callable[[int], MemoryPlan]:
    options, bandwidth = ranks.options, copy_bandwidth(ranks.session.device)

    def plan(memory: int) -> MemoryPlan:
        problem = chain.problem(machine.ranks, memory, bandwidth, micro_batches=options.micro_batches,
                                cuts=options.cuts)
        return plan_memory(problem, gap=GAP, time_limit=SHARE * options.time_limit)

    return plan


def _memory_entry(captured: Model) -> dict[str, Any]:
    treatment = captured.treatment if isinstance(captured, Captured) else None
    return {OPERATOR_MEMORY: treatment.decisions.to_json()} if isinstance(treatment, Treatment) else {}


#: Most plans that are tried; the share of memory that may stay free; and the factor on the budget if no plan exists, as
#: plans count some tensors twice.
ROUNDS, SPARE, MORE = 5, 0.04, 1.2


class MemoryRounds:
    """Rounds of memory plans. ``plan`` makes a plan for a budget in bytes; ``memory``: bytes available. Call
    :meth:`next_plan`, measure it, and pass the peak of its fullest stage to :meth:`learn`. ``reason``: why no plan
    exists."""

    def __init__(self, plan: Callable[[int], MemoryPlan], memory: int) -> None:
        self.plan, self.memory, self.budget = plan, memory, memory
        self.reason: NoMemoryPlan | None = None
        self.tried: list[tuple[tuple[int, ...], tuple[Mode, ...]]] = []
        self._made, self._needs, self._fits, self._done = 0, 0, False, False

    def next_plan(self) -> MemoryPlan | None:
        """The next plan to measure; ``None`` if the last one is good enough or none exists."""
        while self._made < ROUNDS and not self._done and self.budget > 0:
            self._made += 1
            try:
                found = self.plan(self.budget)
            except NoMemoryPlan as error:
                self.reason = self.reason or error
                if self.tried:
                    return None
                self.budget = int(self.budget * MORE)
                continue
            if (found.cuts, found.modes) in self.tried:
                if self._fits:
                    return None
                self.budget = min(self.budget, self._needs) - max(1, self.memory // 50)
                continue
            self.tried.append((found.cuts, found.modes))
            self._needs = max(stage.memory for stage in found.stages)
            return found
        return None

    def learn(self, peak: int) -> None:
        """Record the measured ``peak`` of the last plan's fullest stage, in bytes."""
        free = self.memory - peak
        if free >= 0:
            self._fits = True
            self._done = free <= SPARE * self.memory or all(mode == "keep" for mode in self.tried[-1][1])
        self.budget = self._needs + free - self.memory // 200
