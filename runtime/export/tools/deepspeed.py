"""DeepSpeed's pipeline: the layers of each stage, as the list ``parts``; the order is DeepSpeed's own 1F1B.

``PipelineModule`` cuts its list of layers itself (``partition_method``: uniform, parameters, type:regex) and takes no
list, so the module written here is a ``PipelineModule`` with one: stage s has the layers from ``parts[s]`` to ``parts[s
+ 1] - 1``. Each rank has one stage, backwards are whole, and ``TrainSchedule`` alternates forwards and backwards, stage
s of p being p - 1 - s forwards ahead; its engine refuses ZeRO-2 and 3 beside a pipeline. Read from
``runtime/pipe/module.py`` and ``schedule.py`` of deepspeedai/DeepSpeed edaa722 (Aug 2026); not run in it.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from weft.runtime.export.tools.tool import OwnOrder, Tool, ToolRun, layers_of
from weft.solver.baselines.lib.alternating import TurnRule
from weft.solver.io.entries import FormatError, read_input
from weft.solver.pipeline import Pipeline
from weft.solver.schedule import Schedule

_TITLE = "DeepSpeed"

_MODULE = '''\
# Where the layers of {name!r} go in DeepSpeed's pipeline, written by weft.
"""``PartitionedModule`` is a ``PipelineModule`` of the layers {first!r} to {last!r}, one LayerSpec for each."""

from deepspeed.pipe import PipelineModule

PARTS = {parts}
# gradient_accumulation_steps of the configuration.
MICRO_BATCHES = {micro_batches}


class PartitionedModule(PipelineModule):
    """Stage s has the layers from ``PARTS[s]`` to ``PARTS[s + 1] - 1``."""

    def _partition_layers(self, method="uniform"):
        stages = self._topo.get_dim("pipe")
        if (len(self._layer_specs), stages) != (PARTS[-1], len(PARTS) - 1):
            raise ValueError(f"these parts are of {{PARTS[-1]}} layers on {{len(PARTS) - 1}} stages, not of "
                             f"{{len(self._layer_specs)}} on {{stages}}")
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = list(PARTS)
        self._set_bounds(start=PARTS[stage], stop=PARTS[stage + 1])
'''


def _orders(pipeline: Pipeline, micro_batches: int) -> Iterator[OwnOrder]:
    p, turns = len(pipeline.stages), TurnRule((micro_batches,), 1)
    yield OwnOrder("1F1B", [turns.row(stage.device, p, [(stage,)], micro_batches) for stage in pipeline.stages])


def _require(schedule: Schedule, pipeline: Pipeline) -> None:
    layers_of(schedule, pipeline, _TITLE)


@dataclass(frozen=True, slots=True)
class Partition:
    """``cut``: the number of layers of each stage. ``micro_batches``: if known."""

    cut: tuple[int, ...]
    micro_batches: int | None = None


def deepspeed_module(run: ToolRun) -> str:
    """The module's text for ``run``, which is one of DeepSpeed's own."""
    schedule = run.schedule
    layers = layers_of(schedule, Pipeline.of(schedule.problem), _TITLE)
    return _MODULE.format(name=schedule.problem.name, parts=[0, *accumulate(map(len, layers))],
                          micro_batches=schedule.micro_batches, first=layers[0][0], last=layers[-1][-1])


DEEPSPEED = Tool("deepspeed", _TITLE, "the layers of each stage", shapes=("chain",), own=_orders, require=_require,
                 alike=True, zero=(0, 1), lacks=("context", "expert"), text=deepspeed_module)


def read_deepspeed(path: str | os.PathLike[str]) -> Partition:
    """The partition in the file ``path``: such a module, which is not run, or the list alone. Raises ``FormatError``
    for anything else."""
    where = os.fspath(path)
    text = read_input(path)
    try:
        body = ast.parse(text).body
        assigned: dict[str, object] = {}
        for entry in body:
            if isinstance(entry, ast.Assign) and isinstance(entry.targets[0], ast.Name):
                assigned[entry.targets[0].id.upper()] = ast.literal_eval(entry.value)
            elif isinstance(entry, ast.Expr) and isinstance(entry.value, ast.List):
                assigned["PARTS"] = ast.literal_eval(entry.value)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FormatError(f"{where}: is neither a module with PARTS = [0, ...] nor such a list") from None
    parts, count = assigned.get("PARTS"), assigned.get("MICRO_BATCHES")
    if not isinstance(parts, list) or len(parts) < 2 or not all(type(at) is int for at in parts):
        raise FormatError(f"{where}: PARTS is {parts!r:.60}, it must be a list of whole numbers, 0 first and the "
                          "number of layers last")
    if parts[0] != 0 or any(second <= first for first, second in pairwise(parts)):
        raise FormatError(f"{where}: PARTS is {parts!r:.60}; it must begin with 0 and rise, as every stage has a layer")
    if count is not None and (type(count) is not int or count < 1):
        raise FormatError(f"{where}: MICRO_BATCHES is {count!r:.60}, it must be a whole number of at least 1")
    return Partition(tuple(after - before for before, after in pairwise(parts)), count)
