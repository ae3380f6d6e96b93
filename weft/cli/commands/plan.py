"""turn a schedule into one instruction list per rank

Sends and receives are added so that every two ranks see their messages in the same order, and a REDUCE behind the last
pass that adds to each group of gradients; the result is proven free of deadlock and complete, every gradient summed
once, before it is written.

example:
  weft plan schedule.json -o plan.json
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from weft.app.lib.arguments import AllowOtherModel, AllowUnsplit, Option, Scheduled
from weft.app.lib.judged import judged
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, Call, command
from weft.cli.lib.output import JSON, require_output, require_torch, written


def plan(schedule: Scheduled,
         path: Annotated[PathLike | None, Option("where to (default: standard output)", "FILE",
                                                 flags="-o --output")] = None,
         stages: Annotated[str | None, Option(
             "the stages that `weft replay` will run (or MODULE:FUNCTION): it then refuses any others",
             "FILE.py:FUNCTION", flags="--stages")] = None, *,
         allow_unsplit: AllowUnsplit = False, allow_other_model: AllowOtherModel = False) -> Any:
    """The schedule lowered to one instruction list a rank, proven free of deadlock and complete; written to ``path``.

    With ``stages``, "module:function" as :func:`replay` has it, the plan is for these stages only; needs torch. Raises
    :class:`weft.runtime.interface.factory.FactoryError` for a function that does not give them, and
    :class:`weft.runtime.checkpoint.signature.SignatureError` for stages that are not those of the schedule's problem,
    which the last two arguments allow as they do in :func:`replay`. Blocks may run micro-batches in any order. Returns
    the :class:`weft.runtime.plan.plan.Plan`. Raises
    ``InvalidSchedule`` and :class:`weft.runtime.plan.check.ProgramError`.
    """
    from weft.runtime.plan.plan import plan_of, save_plan

    made = plan_of(judged(schedule, in_turn=False))
    if stages is not None:
        from weft.runtime.checkpoint.signature import signed
        from weft.runtime.interface.factory import load_factory
        from weft.runtime.train.agreement import Allowed, warn

        made = signed(made, load_factory(stages), Allowed(allow_unsplit, allow_other_model), warn)
    if path is not None:
        save_plan(made, path)
    return made


@command(plan)
def run(call: Call) -> int:
    require_output(call.path, "a plan", JSON, [call.schedule])
    if call.stages is not None:
        require_torch("plan --stages")
    elif call.allow_unsplit or call.allow_other_model:
        raise ValueError("plan: --allow-unsplit and --allow-other-model are about stages: they need --stages")
    made = call()
    written(call.path)
    if not call.path:
        from weft.runtime.plan.plan import plan_to_json

        print(json.dumps(plan_to_json(made), indent=1))
    return GOOD
