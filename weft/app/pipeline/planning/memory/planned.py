"""The memory of operators as part of what is decided: asked for, or planned where nothing else fits.

What is decided stands in the plan (``solver.operator_memory``), so that it is on all ranks, in the plan's digest, and
in its file: who gives that plan again runs the same.

Memory plans of a chain, one after another, until what stages are measured to hold fits.

A plan counts what operators keep, but not what passes need meanwhile, nor messages, and some things twice: so the next
one is made for as many bytes less than there are, or more, as the last one was measured to hold beyond what it says.
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
from weft.app.pipeline.planning.problems import held_bytes
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

#: Where decisions stand among what a plan says of itself.
OPERATOR_MEMORY = "operator_memory"
#: Where the operators stand that begin the second stage and those after.
CUTS = "cuts"
#: How far a memory plan may be from the best, and the share of the time limit that one is searched for.
GAP, SHARE = 1e-2, 0.2
#: By what share of the memory stages are at least over it of which no schedule fits.
UNSEEN = 0.01

#: What stages cost, and whether a schedule of them ran.
Attempt: TypeAlias = tuple[Sequence[StageCosts], bool]


def require_memory_plan(options: PipelineOptions) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` for options that say nothing."""
    said = options.memory_plan
    if not isinstance(said, Mapping) and said not in ("auto", *MODES):
        raise CaptureError(f"memory_plan is {said!r:.60}, it must be 'auto', one of {', '.join(MODES)}, or a mapping "
                           "of modules' paths to these")
    if options.co_shard is not None and not isinstance(options.co_shard, Mapping):
        raise CaptureError(f"co_shard is {options.co_shard!r:.60}, it must be a mapping of modules' paths to numbers "
                           "of shares")


def asked_decisions(captured: Model, purity: Purity | None, options: PipelineOptions,
                    given: Plan | None) -> Decisions:
    """What the user has decided, or the plan that he gives.

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    if not isinstance(captured, Captured) or purity is None:
        if given is not None and given.solver.get(OPERATOR_MEMORY):
            raise CaptureError("the plan decides the memory of operators, which split does without: leave split out")
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
        raise CaptureError("the plan decides the memory of operators, which compiled stages do not run one by one: "
                           "leave compile out")
    return found if options.co_shard is None else replace(found, shards=dict(options.co_shard))


def treated_as_planned(captured: Model, plan: Plan, leaves: Sequence[Any], dims: Dims) -> Model:
    """``captured``, whose stages do what ``plan`` says of their memory and backends; ``leaves``: inputs of one
    micro-batch, which are cut along ``dims``."""
    if not isinstance(captured, Captured):
        return captured
    if (names := plan.solver.get(STAGE_BACKENDS)) is not None:
        return stages_by(captured, names)
    return treated(captured, decisions_from_json(plan.solver.get(OPERATOR_MEMORY), captured), leaves, dims)


def plan_with(plan: Plan, captured: Model, places: Sequence[int]) -> Plan:
    """``plan``, which says where ``captured`` is cut, and what is done to its stages."""
    told = {CUTS: list(places), **_told(captured)} if isinstance(captured, Captured) else {}
    kept = {key: value for key, value in plan.solver.items() if key not in (OPERATOR_MEMORY, CUTS)}
    return replace(plan, solver={**kept, **told})


def cuts_of(plan: Plan) -> tuple[int, ...] | None:
    """Where ``plan`` says that the model is cut; ``None``: nowhere.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for what are no places.
    """
    found = plan.solver.get(CUTS)
    if found is not None and not (isinstance(found, list | tuple) and all(type(place) is int for place in found)):
        raise CaptureError(f"the plan has {found!r:.60} as cuts, they must be numbers of operators")
    return None if found is None else tuple(found)


def memory_notes(captured: Model) -> list[str]:
    """What was decided of memory, a sentence."""
    if not isinstance(captured, Captured):
        return []
    decisions = captured.treatment.decisions if isinstance(captured.treatment, Treatment) else Decisions()
    counts = [f"{count} are {said}" for mode, said in (("recompute", "recomputed"), ("offload", "offloaded"))
              if (count := sum(own == mode for own in decisions.modes.values()))]
    shards = [f"{path or 'the model'} in {count} shares" for path, count in decisions.shards.items()]
    return [*([f"of {len(captured.calls)} operators {' and '.join(counts)}"] if counts else []),
            *_checkpoint_notes(captured, decisions),
            *([f"computed one after another: {', '.join(shards)}"] if shards else [])]


def _checkpoint_notes(captured: Captured, decisions: Decisions) -> list[str]:
    """What becomes of the model's own checkpoints, a sentence for each thing that a user may not expect."""
    if not captured.checkpoints:
        return []
    own = captured.checkpointed
    told = f"torch.utils.checkpoint is called {len(captured.checkpoints)} times in the model"
    if not own:
        return [f"{told}, of what torch {torch.__version__} does not say: nothing is recomputed for it; name modules "
                "in memory_plan"]
    again = sum(decisions.of(name) == "recompute" for name in own)
    why = ("" if again == len(own) else ", as memory, memory_plan, compile or the plan says instead"
           if not decisions.calls else "; the others are as memory_plan says, or write into what is read")
    notes = [f"{told}: of its {len(own)} operators {again} are recomputed{why}"]
    if any(captured.checkpoints) and again:
        notes.append("a policy of selective checkpoints (context_fn) is not followed: all of them is recomputed")
    return notes


def plans_memory(ranks: Ranks, machine: Machine, counts: Sequence[int]) -> bool:
    """Whether memory is planned by operators where no cut fits otherwise: with a limit, a stage on each rank, and a
    model whose operators can be run as it stands."""
    return (ranks.options.memory_plan == "auto" and machine.ranks in counts and ranks.materials is None
            and not ranks.options.compile and ranks.options.backends is None and isinstance(ranks.captured, Captured)
            and any(amount is not None for amount in machine.memory))


def memory_planned(ranks: Ranks, machine: Machine, attempt: Callable[[Ranks, tuple[int, ...]], Attempt],
                   best: Callable[[], int]) -> Ranks:
    """Plan cuts and what becomes of each operator's memory, and ``attempt`` it, until what is measured fits; all ranks
    call it together. An attempt gives what its stages cost and, on rank 0, whether a schedule of them fitted and ran.
    ``best``: which of the attempts was best, asked on rank 0. The ranks with what was decided there are returned.
    """
    options, (captured, purity) = ranks.options, ranks.graph
    limits = [amount for amount in machine.memory if amount is not None]
    rounds: list[MemoryRounds] = []
    chains: list[Chain] = []

    def following() -> tuple[tuple[int, ...], dict[str, Any]] | None:
        if not rounds:
            chains.append(_chain(ranks))
            rounds.append(MemoryRounds(_planner(ranks, chains[0], machine), min(limits)))
        found = rounds[0].following()
        if found is None:
            return None
        modes = chains[0].modes(found.modes)
        shards = captured.treatment.decisions.shards if isinstance(captured.treatment, Treatment) else {}
        decisions = Decisions.made(captured, purity, modes, shards)
        return chains[0].cuts(found.cuts), decisions.to_json()

    tried: list[Ranks] = []
    while (told := ranks.told(following, "planning memory")) is not None:
        places, decided = told
        own = ranks.deciding(decisions_from_json(decided, captured))
        tried.append(own)
        costs, ran = attempt(own, places)
        if rounds:
            rounds[0].learn(fullest(stage_peaks(costs, machine.ranks, options.micro_batches), machine.memory, ran))
    return tried[ranks.told(lambda: _chosen(rounds[0], best), "choosing a memory plan")]


def fullest(peaks: Sequence[int], memory: Sequence[int | None], ran: bool) -> int:
    """The bytes that the fullest rank holds, for a machine whose ranks all have the least ``memory``. Where no schedule
    ``ran``, what is held is more than there is, whatever 1F1B's ``peaks`` say: another order may hold more."""
    least = min(amount for amount in memory if amount is not None)
    over = max(peak - amount for peak, amount in zip(peaks, memory, strict=True) if amount is not None)
    return least + (over if ran else max(over, int(UNSEEN * least), 1))


def stage_peaks(costs: Sequence[StageCosts], ranks: int, micro_batches: int) -> list[int]:
    """The bytes that each rank holds at most under 1F1B with whole backwards, by what was measured of its stages."""
    peaks = held_bytes(costs, ranks, micro_batches)
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


def _told(captured: Model) -> dict[str, Any]:
    treatment = captured.treatment if isinstance(captured, Captured) else None
    return {OPERATOR_MEMORY: treatment.decisions.to_json()} if isinstance(treatment, Treatment) else {}


#: Plans that are tried at most; the share of memory that may stay free; and how much more a plan is made for where
#: there is none, as plans count some things twice.
ROUNDS, SPARE, MORE = 5, 0.04, 1.2


class MemoryRounds:
    """``plan`` makes a memory plan for so many bytes, ``memory`` is what there is. :meth:`following` is the next plan
    to measure, then :meth:`learn` hears the bytes that its fullest stage held; ``reason`` is why there is none."""

    def __init__(self, plan: Callable[[int], MemoryPlan], memory: int) -> None:
        self.plan, self.memory, self.budget = plan, memory, memory
        self.reason: NoMemoryPlan | None = None
        self.tried: list[tuple[tuple[int, ...], tuple[Mode, ...]]] = []
        self._made, self._needs, self._fits, self._done = 0, 0, False, False

    def following(self) -> MemoryPlan | None:
        """The next plan; ``None`` if that is enough, or there is none."""
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
        """The fullest stage of the last plan held ``peak`` bytes."""
        free = self.memory - peak
        if free >= 0:
            self._fits = True
            self._done = free <= SPARE * self.memory or all(mode == "keep" for mode in self.tried[-1][1])
        self.budget = self._needs + free - self.memory // 200
