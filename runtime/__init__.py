"""The thin executor: a schedule becomes a plan, one instruction list a rank, proven and then replayed.

Planning needs no torch; :mod:`runtime.replay` loads it when a plan runs.
"""

from __future__ import annotations

from runtime.plan import Plan, load_plan, plan_of, save_plan
from runtime.program import Program, ProgramError

__all__ = ["Plan", "Program", "ProgramError", "load_plan", "plan_of", "save_plan"]
