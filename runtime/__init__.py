"""The thin executor: a schedule becomes a plan, one instruction list a rank, proven and then replayed.

Planning needs no torch; :mod:`weft.runtime.replay.replay` loads it when a plan runs.
"""

from __future__ import annotations

from weft.runtime.plan.plan import Plan, load_plan, plan_of, save_plan
from weft.runtime.plan.program import Program, ProgramError

__all__ = ["Plan", "Program", "ProgramError", "load_plan", "plan_of", "save_plan"]
