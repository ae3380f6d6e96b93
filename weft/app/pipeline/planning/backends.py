"""Chooses the backend of each stage: each rank measures its stages by every backend, and each is an option of a choice
in the schedule's problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from torch import nn

from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.planning.machine import Machine
from weft.app.pipeline.planning.measuring import REPEATS, Ranks
from weft.app.pipeline.planning.row import rank_of
from weft.runtime.backends.registry import EAGER, BackendError, backends_named
from weft.runtime.backends.stages import STAGE_BACKENDS, StageBackends, numerical_mismatch
from weft.runtime.captured.captured import Captured, CaptureError, is_on_meta
from weft.runtime.captured.metadata_reads import preserved_state
from weft.runtime.measure.measure_stages import measure_stages
from weft.runtime.measure.stage_costs import MODES, StageCosts
from weft.runtime.measure.stage_feeds import feeds_of
from weft.solver.choices.solve import solve_run
from weft.solver.problem import Block, Problem
from weft.solver.schedule import Schedule

#: Costs by stage and by the name of a backend other than eager.
BackendCosts: TypeAlias = Mapping[int, Mapping[str, StageCosts]]


def require_backends(module: nn.Module, options: PipelineOptions) -> None:
    """Refuse backends that are unknown or not available.

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    if options.backends is None:
        return
    try:
        backends_named(options.backends, "cpu", True)
    except (BackendError, TypeError) as error:
        raise CaptureError(str(error) if isinstance(error, BackendError) else
                           f"backends is {options.backends!r:.60}, it must be 'auto' or names") from None
    if is_on_meta(module):
        raise CaptureError("backends are measured with the model's weights, but it is on the meta device: build it "
                           "with weights, or leave backends out")


def measured_backends(ranks: Ranks, machine: Machine, places: Sequence[int], skipped: list[str]) -> BackendCosts:
    """Costs of the stages of the cut at ``places`` by backend. Collective: all ranks get the same. A sentence for each
    backend that fails or has wrong results is added to ``skipped``."""
    device, count = ranks.session.device, len(places) + 1
    usable, notes = backends_named(ranks.options.backends or (), device.type, trains=True)
    found: dict[int, dict[str, StageCosts]] = {}
    own = [s for s in range(count) if rank_of(s, count, machine.ranks) == ranks.session.rank]
    for backend in usable:
        if backend.name == EAGER:
            continue
        ranks.session.barrier(f"to measure stages by {backend.name}")
        measured: list[tuple[int, StageCosts | str]] = []
        for s in own:
            try:
                cost = _measured(ranks, places, s, backend.name)
            except Exception as error:  # of many types: of dynamo, of a compiler, of a backend
                cost = f"raised {type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]:.200}"
            if cost is not None:
                measured.append((s, cost))
        for s, cost in (pair for each in ranks.session.exchange(measured, "measuring backends") for pair in each):
            if isinstance(cost, str):
                notes.append(f"{backend.name}: {cost} as stage {s}: not used there")
            else:
                found.setdefault(s, {})[backend.name] = cost
    skipped += [note for note in notes if note not in skipped]
    return found


def _measured(ranks: Ranks, places: Sequence[int], s: int, name: str) -> StageCosts | str | None:
    """Costs of stage ``s`` by the backend ``name``, or why it is not used; ``None`` if it computes no part of it."""
    captured, device = ranks.captured, ranks.session.device
    assert isinstance(captured, Captured) and isinstance(captured.treatment, StageBackends)
    if captured.treatment.stage(places, s, name) is None:
        return None
    plain = ranks.training(places)
    training = ranks.computed_by([name if stage == s else EAGER for stage in range(len(places) + 1)]).training(places)
    with preserved_state(captured.model, ranks.goal.loss):
        feeds = feeds_of(plain, device)
        for before in range(s):
            feeds.record_outputs(before, plain.stages[before])
        feed = feeds.feed(s, plain.stages[s])
        if feed.trains and (wrong := numerical_mismatch(feed, plain.stages[s], training.stages[s])) is not None:
            return wrong
        cost, = measure_stages(training, device=device, repeats=REPEATS, only=[s], slots=True,
                               modes={"full": MODES["full"]})
    return cost


def by_backends(costs: Sequence[StageCosts], others: BackendCosts,
                problem_of: Callable[[Sequence[StageCosts]], Problem], micro_batches: int,
                time_limit: float) -> Schedule:
    """The best schedule over the stages' backends.

    Raises :class:`~weft.solver.feasibility.infeasible.Infeasible`.
    """
    names = {s: (EAGER, *own) for s, own in others.items()}
    eager = problem_of(costs)
    of = {name: problem_of([others.get(cost.stage, {}).get(name, cost) for cost in costs])
          for name in dict.fromkeys(name for own in others.values() for name in own)}
    blocks: list[Block] = []
    for i, block in enumerate(eager.blocks):
        stage = int(block.name[1:])
        for name in names.get(stage, (EAGER,)):
            own = (of[name] if name != EAGER else eager).blocks[i]
            blocks.append(replace(own, when={f"stage {stage}": name} if stage in names else {}))
    wide = replace(eager, blocks=tuple(blocks), choices={f"stage {s}": own for s, own in sorted(names.items())})
    found = solve_run(wide, micro_batches, time_limit=time_limit)
    return found.with_solver(**{STAGE_BACKENDS: [found.choices.get(f"stage {s}", EAGER) for s in range(len(costs))]})


def backend_record(schedule: Schedule) -> dict[str, Any]:
    """The backends in the record of ``schedule``'s solver."""
    return {key: value for key, value in schedule.solver.items() if key == STAGE_BACKENDS}


def backends_notes(schedule: Schedule, skipped: Sequence[str]) -> list[str]:
    """Sentences on the stages' backends and on backends that are not used."""
    names = schedule.solver.get(STAGE_BACKENDS)
    return [*([f"stages are computed by {', '.join(names)}"] if names else []), *skipped]
