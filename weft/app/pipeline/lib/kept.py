"""What was decided; and plans that are kept beside captures, for calls where all is as it was.

A plan is found by all that it depends on and that is known without measuring: the model's operators and what of them
learns, the loss, what was asked for, the ranks, and the machine that each is on. Its times are those of the call that
measured them. One that was measured while the machine had other work is not kept, nor one with backends, which are held
against torch's numbers at each call, nor one of a model that is not captured with its numbers.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache, partial
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from weft.app.pipeline.lib.asked import looks_of
from weft.app.pipeline.lib.options import PipelineOptions
from weft.runtime.backends.measuring import machine_name
from weft.runtime.captured.captured import Captured, is_on_meta
from weft.runtime.plan.plan import Plan, plan_from_json, plan_to_json
from weft.runtime.ranks.session import Session
from weft.solver.control.parallel import cores
from weft.solver.control.version import VERSION
from weft.solver.io.kept import json_digest, keep, read_kept, sources_digest
from weft.solver.io.writing import cache_folder

PLAN_FORMAT = "weft.plan-cache/1"


@dataclass(frozen=True)
class PipelineDecision:
    """Where the model is cut, the plan that runs its stages, what was said of it, and the bytes that each rank was
    measured to hold at most (``None``: the plan was given, and not measured). ``lasts``: whether another call may take
    it for what it would find itself."""

    places: tuple[int, ...]
    plan: Plan
    notes: tuple[str, ...]
    peaks: tuple[int, ...] | None = None
    lasts: bool = False

    def to_json(self) -> dict[str, Any]:
        """It as plain data."""
        return {"places": self.places, "plan": plan_to_json(self.plan), "notes": self.notes, "peaks": self.peaks,
                "date": date.today().isoformat()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PipelineDecision:
        """What :meth:`to_json` wrote."""
        told = f"the plan is as measured on {value['date']}: remeasure=True measures and plans anew"
        return cls(tuple(value["places"]), plan_from_json(value["plan"]), (*value["notes"], told),
                   tuple(value["peaks"]))


class KeptPlans:
    """Where the plan of this call is kept. All ranks make it together; rank 0 reads and writes."""

    def __init__(self, captured: object, target: object, session: Session, options: PipelineOptions) -> None:
        machines = session.everywhere((platform.node(), machine_name(), cores(), torch.cuda.device_count(),
                                       torch.__version__), "looking at the machine")
        self.path, self.key, self.options = None, "", options  # type: Path | None, str, PipelineOptions
        folder = cache_folder(options.cache)
        if (folder is None or options.backends is not None or not isinstance(captured, Captured)
                or is_on_meta(captured.model)):
            return
        try:
            asked = options.planned()
        except OSError:
            return  # whoever reads the spec says what is wrong with it
        nodes = [node for node, *_ in machines]
        ranks = [(nodes.index(node), *told) for node, *told in machines]
        self.key = json_digest(repr((
            PLAN_FORMAT, _makers(), captured.digest, captured.checkpoints, sorted(captured.checkpointed.items()),
            captured.under_autocast, [(name, p.requires_grad) for name, p in captured.model.named_parameters()],
            _of_function(options.loss), looks_of(target), asked, ranks, session.world, session.replicas,
            session.peers, session.transport, session.device.type)))
        self.path = folder / "plans" / f"{self.key}.json"

    def read(self) -> Mapping[str, Any] | None:
        """The plan as plain data; ``None`` where there is none, or it is to be measured anew."""
        found = None if self.path is None or self.options.remeasure else read_kept(self.path, PLAN_FORMAT, self.key,
                                                                                   "plan")
        try:
            return None if found is None else (PipelineDecision.from_json(found), found)[1]
        except (ValueError, KeyError, TypeError):
            return None

    def keep(self, made: PipelineDecision) -> None:
        """Keep what was decided, where it may last."""
        if self.path is not None and made.lasts:
            keep(self.path, PLAN_FORMAT, self.key, "plan", made.to_json())


@cache
def _makers() -> tuple[str, str]:
    """What measures and plans, which changes between two releases, too."""
    weft = Path(__file__).parents[3]
    rooms = (weft / "app" / "pipeline", weft / "runtime" / "measure", weft / "runtime" / "replay")
    return VERSION, sources_digest(file for room in rooms for file in sorted(room.rglob("*.py")))


def _of_function(function: Callable[..., Any] | None) -> object:
    """What tells a function from others: what it does, by its code."""
    if isinstance(function, partial):
        return _of_function(function.func), function.args, function.keywords
    if isinstance(function, nn.Module):
        return (repr(function), [_of_function(type(part).forward) for part in function.modules()],
                [(name, looks_of(p), p.requires_grad) for name, p in function.named_parameters()])
    code = getattr(function, "__code__", None)
    return repr(function) if code is None else _of_code(code)


def _of_code(code: CodeType) -> object:
    return code.co_code, code.co_names, [_of_code(value) if isinstance(value, CodeType) else value
                                         for value in code.co_consts]
