"""All grids compatible with a spec's ``parallel``, each with a bound, before any schedule is searched.

*auto* tries: for ``tensor`` the divisors of the heads of keys and values, within a machine; for ``context`` powers of
two that leave at least 2,048 tokens of a sequence; for ``expert`` powers of two that leave at most 32 experts a GPU;
for ``pipeline`` and ``data`` all divisors of the GPUs; micro-batches of 1 to 8 sequences; ZeRO-1 to 3; recomputation if
it has an effect. A given number is used unchanged.

*The bound* holds for every cut, every number of chunks and every order: M micro-batches of total work T run on p GPUs
of a pipeline, so one of them is busy for M T / p; and for M times the longest layer. One micro-batch passes all layers
and all links. The end of the step adds its time on a GPU with the first layer
(:func:`~weft.models.grid.step_end.least_end`). When a micro-batch has passed all forwards, the GPUs of a pipeline hold
all its activations beside their states: a grid with less memory is excluded. *The estimate* only determines the order
of trials: even stages, interleaved 1F1B with its activations in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.models.grid.degrees import Degrees, divisors, fit, require_degrees, require_experts, require_precision
from weft.models.grid.links import GridLinks
from weft.models.grid.rank import GridRanks, RankLayer
from weft.models.grid.step_end import StateBytes, StepEnd, least_end, step_end, with_state
from weft.models.layers.costs import LayerCost
from weft.models.spec.families import GptModel, MoeModel
from weft.models.spec.placement import Parallel
from weft.models.spec.spec import SpecError
from weft.solver.control.clock import checkpoint
from weft.solver.pipeline import Pipeline
from weft.solver.schedule import Schedule

#: Minimum tokens a GPU under context parallelism, if it is auto.
_LEAST_TOKENS = 2048
#: Maximum experts of a layer on one GPU, if that is auto.
_MOST_EXPERTS = 32
#: Sequences in a micro-batch, if that is auto.
_SIZES = (1, 2, 4, 8)
#: Chunks of the model on a GPU, if that is auto.
_CHUNKS = (1, 2, 3, 4, 5, 6, 8)
#: The factor on the estimate of a step whose activations under 1F1B do not fit.
_TIGHT = 1.2
#: Entries of ``parallel`` that may be auto and are not determined by the others.
_SEARCHED = ("tensor", "pipeline", "virtual", "expert", "context", "micro_batch", "zero", "recompute")


@dataclass(frozen=True, slots=True)
class Grid:
    """One grid: ``bound`` on its step in seconds, for every cut and order, and an ``estimate`` of it with
    ``degrees.virtual`` chunks."""

    degrees: Degrees
    bound: float
    estimate: float


@dataclass
class GridSpace:
    """The grids of ``model`` on ``gpus`` GPUs with ``capacity`` bytes each, as ``asked``, for steps of ``batch``
    sequences. ``where``: the prefix of every message. ``zeros``: stages of ZeRO to try."""

    where: str
    model: GptModel
    asked: Parallel
    gpus: int
    capacity: int
    batch: int
    links: GridLinks
    size: StateBytes
    zeros: tuple[int, ...] = (1, 2, 3)

    @cached_property
    def ranks(self) -> GridRanks:
        """The layers of a GPU by degrees."""
        return GridRanks(self.model, self.links)

    def layers(self, degrees: Degrees) -> list[LayerCost]:
        """A GPU's share of each layer; ``parameters`` are the bytes of its state."""
        return [with_state(layer, degrees, self.links, self.size) for layer in self.ranks.of(degrees)]

    def end(self, degrees: Degrees, schedule: Schedule) -> StepEnd:
        """What the end of the step adds to ``schedule`` of the pipeline of ``degrees``. The GPU of the first stage has
        no time for it before, as in the bound, even if others' weight gradients run last."""
        layers = {layer.cost.name: layer for layer in self.ranks.of(degrees)}
        gpus: list[list[RankLayer]] = [[] for _ in schedule.problem.devices]
        stages = Pipeline.of(schedule.problem).stages
        for stage, names in zip(stages, schedule.solver["layers_of_stage"], strict=True):
            gpus[stage.device] += [layers[name] for name in names]
        slack = [schedule.makespan - row[-1].end + row[0].start for row in schedule.device_orders]
        slack[stages[0].device] = 0.0
        return step_end(gpus, slack, degrees, self.links, self.size)

    @property
    def open(self) -> list[str]:
        """The entries of ``parallel`` that are searched."""
        return [name for name in _SEARCHED if getattr(self.asked, name) is None]

    def fixed(self) -> Degrees | None:
        """The single grid if everything is given; checked."""
        if self.open:
            return None
        asked = self.asked
        numbers = {name: getattr(asked, name) for name in _SEARCHED}
        others = numbers["tensor"] * numbers["pipeline"] * numbers["context"]
        data = asked.data if asked.data is not None else max(1, self.gpus // others)
        return self._checked(replace(self._fixed_options, data=data, **numbers))

    def waves(self) -> Iterator[list[Grid]]:
        """The grids of each context degree and size of micro-batch, smallest first, by rising estimate. Raises
        :class:`~weft.models.spec.spec.SpecError` if there is none, with the problem of the given numbers."""
        require_precision(self.asked.precision, self.links.device, self.where)
        require_experts(self.asked.expert or 1, self.model, self.where)
        count = 0
        for _, keys in groupby(self._keys(), key=lambda key: (key.context, key.micro_batch)):
            found = self._grids(list(keys))
            count += len(found)
            yield sorted(found, key=lambda grid: grid.estimate)
        if not count:
            self._refuse()

    # -- which degrees -----------------------------------------------------------------------------------------------

    @property
    def _fixed_options(self) -> Degrees:
        asked = self.asked
        return Degrees(precision=asked.precision, sequence_parallel=asked.sequence_parallel,
                       collective_bytes=asked.collective_bytes, imbalance=asked.imbalance,
                       context_keys=asked.context_keys, overlap_experts=asked.overlap_experts,
                       expert_machines=asked.expert_machines)

    def _checked(self, degrees: Degrees) -> Degrees:
        require_precision(degrees.precision, self.links.device, self.where)
        require_degrees(degrees, self.model, self.gpus, self.batch, self.where)
        return degrees

    def _first(self, name: str) -> int:
        return int(getattr(self.asked, name) or 1)

    def _options(self, name: str) -> Sequence[int]:
        """The numbers tried for one entry."""
        given = getattr(self.asked, name)
        if given is not None:
            return (given,)
        if name == "tensor":
            groups = self.model.kv_heads or self.model.heads
            return [d for d in divisors(groups) if d <= self.links.network.size and self.gpus % d == 0]
        if name == "context":
            return [2**k for k in range(5) if self.model.sequence // 2**k >= _LEAST_TOKENS or k == 0]
        if name == "expert":
            experts = self.model.experts if isinstance(self.model, MoeModel) else 1
            return [2**k for k in range(experts.bit_length()) if experts % 2**k == 0
                    and 2**k * _MOST_EXPERTS >= experts]
        if name == "micro_batch":
            return _SIZES
        if name == "zero":
            return self.zeros
        assert name == "pipeline"
        return [d for d in divisors(self.gpus) if d <= self.model.layers + self.model.predict + 2]

    def _keys(self) -> Iterator[Degrees]:
        recompute = self.asked.recompute
        again = (recompute,) if recompute is not None else (
            "none", "selective" if self.ranks.recomputes_selectively else "light", "full")
        for context in self._options("context"):
            for size in self._options("micro_batch"):
                for expert in self._options("expert"):
                    for tensor in self._options("tensor"):
                        if any(self._depths(tensor, context, expert, size)):
                            for way in again:
                                yield replace(self._fixed_options, tensor=tensor, context=context, expert=expert,
                                              micro_batch=size, recompute=way)  # type: ignore[arg-type]

    def _depths(self, tensor: int, context: int, expert: int, size: int) -> Iterator[tuple[int, int]]:
        """Pipelines and replicas compatible with the rest."""
        for pipeline in self._options("pipeline"):
            data, rest = divmod(self.gpus, tensor * context * pipeline)
            degrees = replace(self._fixed_options, tensor=tensor, context=context, expert=expert, micro_batch=size,
                              pipeline=pipeline, data=data, virtual=self._first("virtual"))
            if not rest and self.asked.data in (None, data) and fit(degrees, self.model, self.gpus, self.batch):
                yield pipeline, data

    def _refuse(self) -> None:
        """Report the problem of numbers incompatible with all others."""
        names = ("tensor", "pipeline", "virtual", "expert", "context", "micro_batch")
        least: dict[str, Any] = {name: getattr(self.asked, name) or 1 for name in names}
        others = least["pipeline"] * least["context"] * (self.asked.data or 1)
        if self.asked.tensor is None:  # the largest number leaves the fewest replicas, which need the smallest batch
            least["tensor"] = max((t for t in self._options("tensor") if self.gpus % (t * others) == 0), default=1)
        others = least["tensor"] * least["pipeline"] * least["context"]
        data = self.asked.data or max(1, self.gpus // others)
        self._checked(replace(self._fixed_options, data=data, **least))
        raise SpecError(f"{self.where}: parallel: no grid of {self.gpus} GPUs has these numbers and fits their memory "
                        f"with {self.batch} sequences a step; leave more of them auto, or name more GPUs")

    # -- bounds ------------------------------------------------------------------------------------------------------

    def _grids(self, keys: Sequence[Degrees]) -> list[Grid]:
        degrees: list[Degrees] = []
        rows: list[tuple[float, ...]] = []
        for key in keys:
            checkpoint()
            for found, row in self._rows(key):
                degrees.append(found)
                rows.append(row)
        if not rows:
            return []
        bounds, estimates, chunks = _bounded(np.array(rows), self.capacity,
                                             (self.asked.virtual,) if self.asked.virtual else _CHUNKS)
        return [Grid(replace(grid, virtual=int(chunk)), float(bound), float(estimate))
                for grid, bound, estimate, chunk in zip(degrees, bounds, estimates, chunks, strict=True)
                if bound < np.inf]

    def _rows(self, key: Degrees) -> Iterator[tuple[Degrees, tuple[float, ...]]]:
        """The grids of one GPU's layers, with the terms of their bounds."""
        layers = self.ranks.of(key)
        kinds = _counted(layers)
        for pipeline, data in self._depths(key.tensor, key.context, key.expert, key.micro_batch):
            for zero in self._options("zero") if data * key.context > 1 else (self.asked.zero or 1,):
                degrees = replace(key, pipeline=pipeline, data=data, zero=zero)
                costs = [(with_state(layer, degrees, self.links, self.size), count) for layer, count in kinds]
                loads = [cost.forward + cost.backward for cost, _ in costs]
                yield degrees, (
                    pipeline, degrees.micro_batches(self.batch),
                    sum(load * count for load, (_, count) in zip(loads, costs, strict=True)), max(loads),
                    max((load for load, (_, count) in zip(loads, costs, strict=True) if count > 1), default=max(loads)),
                    self.links.to_next(costs[1][0].output_bytes, degrees.of_stage),
                    sum(cost.parameters * count for cost, count in costs),
                    sum(cost.activation_bytes * count for cost, count in costs),
                    max(max(cost.workspace_forward, cost.workspace_backward) for cost, _ in costs),
                    least_end(layers[0], degrees, self.links, self.size), len(layers))


def _counted(layers: Sequence[RankLayer]) -> list[tuple[RankLayer, int]]:
    """Layers of equal cost, with their number."""
    found: dict[RankLayer, int] = {}
    for layer in layers:
        like = replace(layer, cost=replace(layer.cost, name=""))
        found[like] = found.get(like, 0) + 1
    return list(found.items())


_Numbers = npt.NDArray[np.float64]


def _bounded(rows: _Numbers, capacity: int, chunks: Sequence[int]) -> tuple[_Numbers, _Numbers, _Numbers]:
    """For each grid the bound, the estimate, and its number of chunks."""
    p, m, work, longest, layer, lag, static, kept, workspace, end, entries = rows.T
    bound = np.maximum(m * np.maximum(work / p, longest), work + 2 * (p - 1) * lag) + end
    bound = np.where((static + kept) / p > capacity, np.inf, bound)
    best = np.full(len(rows), np.inf)
    taken = np.ones(len(rows))
    for v in chunks:
        stages = p * v
        fits = (stages <= entries) & ((v == 1) | ((p > 1) & (m % p == 0)))
        evenly = np.ceil((entries - 2) / stages - 1e-6) * layer * v  # both ends go to the stages with fewest
        slowest = np.maximum(np.maximum(evenly, work / p), longest)
        in_flight = np.minimum(m, p) if v == 1 else np.minimum(m, p * (1 + (p - 1) / stages))
        needs = static / p + kept / p * in_flight + workspace
        step = m * slowest + (p - 1) / v * work / p + 2 * (p - 1) * lag + end
        step = np.where(needs > capacity, _TIGHT * step, step)
        better = fits & (step < best)
        best, taken = np.where(better, step, best), np.where(better, v, taken)
    return np.where(np.isinf(best), np.inf, bound), best, taken
