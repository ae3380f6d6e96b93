"""The result of planning, and a cache of it for later calls with the same inputs.

The key has everything that a plan depends on and that is known without measuring: the model's operators and trained
parameters, the loss, the options, the ranks, and each rank's machine. The times of a cached plan are those of the call
that measured it. Not cached: plans measured while other processes were running, plans with backends, whose results are
compared with torch's at each call, and plans of a model on the meta device.
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

from weft.app.pipeline.lib.arguments import signature_of
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
    """The cuts of the model, the plan of its stages, notes for the user, and the measured peak bytes of each rank
    (``None``: the plan was given). ``lasts``: whether a later call may reuse it."""

    places: tuple[int, ...]
    plan: Plan
    notes: tuple[str, ...]
    peaks: tuple[int, ...] | None = None
    lasts: bool = False

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"places": self.places, "plan": plan_to_json(self.plan), "notes": self.notes, "peaks": self.peaks,
                "date": date.today().isoformat()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PipelineDecision:
        """From the result of :meth:`to_json`."""
        origin = f"the plan was measured on {value['date']}: remeasure=True measures and plans again"
        return cls(tuple(value["places"]), plan_from_json(value["plan"]), (*value["notes"], origin),
                   tuple(value["peaks"]))


class PlanCache:
    """The cache entry of this call. Collective to construct; rank 0 reads and writes."""

    def __init__(self, captured: object, target: object, session: Session, options: PipelineOptions) -> None:
        machines = session.everywhere((platform.node(), machine_name(), cores(), torch.cuda.device_count(),
                                       torch.__version__), "looking at the machine")
        self.path, self.key, self.options = None, "", options  # type: Path | None, str, PipelineOptions
        folder = cache_folder(options.cache)
        if (folder is None or options.backends is not None or not isinstance(captured, Captured)
                or is_on_meta(captured.model)):
            return
        try:
            requested = options.planned()
        except OSError:
            return  # reading the spec reports the error
        nodes = [node for node, *_ in machines]
        ranks = [(nodes.index(node), *facts) for node, *facts in machines]
        self.key = json_digest(repr((
            PLAN_FORMAT, _makers(), captured.digest, captured.checkpoints, sorted(captured.checkpointed.items()),
            captured.under_autocast, [(name, p.requires_grad) for name, p in captured.model.named_parameters()],
            _of_function(options.loss), signature_of(target), requested, ranks, session.world, session.replicas,
            session.peers, session.transport, session.device.type)))
        self.path = folder / "plans" / f"{self.key}.json"

    def read(self) -> Mapping[str, Any] | None:
        """The cached plan as plain data; ``None`` if there is none, or with ``remeasure``."""
        found = None if self.path is None or self.options.remeasure else read_kept(self.path, PLAN_FORMAT, self.key,
                                                                                   "plan")
        try:
            return None if found is None else (PipelineDecision.from_json(found), found)[1]
        except (ValueError, KeyError, TypeError):
            return None

    def keep(self, made: PipelineDecision) -> None:
        """Write the decision, if it may be reused."""
        if self.path is not None and made.lasts:
            keep(self.path, PLAN_FORMAT, self.key, "plan", made.to_json())


@cache
def _makers() -> tuple[str, str]:
    """The version and the sources of measurement and planning, which also change between releases."""
    weft = Path(__file__).parents[3]
    rooms = (weft / "app" / "pipeline", weft / "runtime" / "measure", weft / "runtime" / "replay")
    return VERSION, sources_digest(file for room in rooms for file in sorted(room.rglob("*.py")))


def _of_function(function: Callable[..., Any] | None) -> object:
    """A description that differs between functions with different code."""
    if isinstance(function, partial):
        return _of_function(function.func), function.args, function.keywords
    if isinstance(function, nn.Module):
        return (repr(function), [_of_function(type(part).forward) for part in function.modules()],
                [(name, signature_of(p), p.requires_grad) for name, p in function.named_parameters()])
    code = getattr(function, "__code__", None)
    return repr(function) if code is None else _of_code(code)


def _of_code(code: CodeType) -> object:
    return code.co_code, code.co_names, [_of_code(value) if isinstance(value, CodeType) else value
                                         for value in code.co_consts]
