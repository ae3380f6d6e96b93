"""How does a schedule become a run on real devices, and how long did the run take?

In: a schedule (:mod:`weft.solver`) and, for a real run, one rank's :class:`Training`: stage modules, data, loss and
optimizer. Out: a :class:`Plan`, one proven list of instructions a rank; a run of it on all ranks, or on one rank by
itself; the measured timeline; measured costs of stages; and schedules in the formats of other tools. The executor
replays each rank's order and decides nothing.

Rooms, lower ones first: ``plan`` (programs, their proof, buffers), ``ranks`` (processes, their clock and watchdog),
``interface`` (a user's training), ``transports``, ``communication`` (collectives beside computation), ``execute`` (one
rank's instructions), ``train`` (stages, gradients), ``by_hand`` (hand-written plans), ``captured`` (models cut into
stages), ``checkpoint``, ``measure``, ``replay`` (what ``weft replay`` does), and ``export``.

The names here are for a user's training module and script. Each is loaded at its first use, so that planning needs no
torch::

    from weft.runtime import Boundary, Training
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.solver.public_names import lazily

if TYPE_CHECKING:
    from weft.runtime.interface.counting import counted
    from weft.runtime.interface.optim import AdamA
    from weft.runtime.interface.precision import MasterWeights
    from weft.runtime.interface.training import Boundary, Ports, Training
    from weft.runtime.measure.measure_stages import measure_stages
    from weft.runtime.measure.stage_costs import (
        MeasuredStages,
        StageCosts,
        load_stage_costs,
        measured_problem,
        save_stage_costs,
    )
    from weft.runtime.plan.plan import Plan, load_plan, plan_of, save_plan
    from weft.runtime.plan.program import Program, ProgramError
    from weft.runtime.plan.stage_graph import StageGraph
    from weft.runtime.plan.timeline import Timeline, load_timeline
    from weft.runtime.ranks.session import Session, SessionError
    from weft.runtime.replay.options import ReplayError, ReplayOptions
    from weft.runtime.replay.run import Replay
    from weft.runtime.train.deferred import Formula
    from weft.runtime.train.deferring import register_deferred
    from weft.runtime.train.parallel import (
        ColumnLinear,
        RowLinear,
        VocabularyEmbedding,
        parallel_cross_entropy,
        sharded,
    )
    from weft.runtime.train.requests import Requests

__all__ = ["AdamA", "Boundary", "ColumnLinear", "Formula", "MasterWeights", "MeasuredStages", "Plan", "Ports",
           "Program", "ProgramError", "Replay", "ReplayError", "ReplayOptions", "Requests", "RowLinear", "Session",
           "SessionError", "StageCosts", "StageGraph", "Timeline", "Training", "VocabularyEmbedding", "counted",
           "load_plan", "load_stage_costs", "load_timeline", "measure_stages", "measured_problem",
           "parallel_cross_entropy", "plan_of", "register_deferred", "save_plan", "save_stage_costs", "sharded"]

__getattr__, __dir__ = lazily(__name__)
