"""The cuts of a spec: one space for each layout and backward mode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from weft.models.candidates.build import backward_modes, bytes_per_parameter, candidate_at
from weft.models.candidates.gpu_costs import gpu_costs
from weft.models.candidates.stages import Backward, MemoryRule
from weft.models.cuts.enumeration import CutTables, Ground, ShapeLayout, layouts
from weft.models.cuts.space import CutSpace
from weft.models.layers.cluster import Network, model_cluster
from weft.models.layers.costs import LayerCost
from weft.models.spec.sections import Spec
from weft.solver.variants.bounds import Numbers

#: Models with more layers (such as operators) are not cut everywhere: the tables are quadratic in the layers.
_MOST_LAYERS = 256


def cut_spaces(spec: Spec, micro_batches: int) -> list[CutSpace]:
    """The spaces of all cuts of the spec's layers, fewest stages first; none if layers run without gradients, or there
    are too many of them.

    Whole backwards are left out if split ones dominate them: running each input gradient and its weight gradient back
    to back is equivalent to running the backward. Only cuts with a stage for which that takes more time or memory
    remain.
    """
    costs = gpu_costs(spec)
    layers = costs.layers[0]
    if len(layers) > _MOST_LAYERS or spec.placement.cut is not None or (
            spec.inference is None and not all(layer.backward for layer in layers)):
        return []
    cluster = model_cluster(spec.cluster)
    kinds = {id(own): own for own in costs.layers}  # one object for GPUs of one kind
    tables: dict[Backward, tuple[CutTables, ...]] = {
        mode: tuple(CutTables.of(own, MemoryRule(mode, bytes_per_parameter(spec), cluster.reserve))
                    for own in kinds.values())
        for mode in backward_modes(spec, layers)}
    needed = None
    if "split" in tables and "full" in tables:
        needed = np.logical_or.reduce([_in_need(*both) for both in zip(tables["split"], tables["full"], strict=True)])
        if not needed.any():
            del tables["full"]
    kind = tuple(list(kinds).index(id(own)) for own in costs.layers)
    found = []
    for layout in layouts(spec.placement.shapes, spec.cluster.gpus, spec.placement.chunks, len(layers)):
        lags = _lags(layout, layers, cluster.network)
        for mode, own in tables.items():
            ends_whole = mode != "none" and not any(table.durations[2].any() for table in own)
            ground = Ground(layout, own, kind, cluster.available, lags, ends_whole, needed if mode == "full" else None)
            # No nested function: a case is sent to other processes.
            candidate = partial(candidate_at, spec, layout.shape, backward=mode, costs=costs)
            found.append(CutSpace(ground, mode, micro_batches, candidate))
    return found


def _lags(layout: ShapeLayout, layers: Sequence[LayerCost], network: Network) -> Numbers:
    """Per stage but the last and border after it: the time until the next stage has its input."""
    lags = np.zeros((layout.stages - 1, len(layers) + 1), dtype=np.int64)
    known: dict[tuple[int, int], list[int]] = {}
    for s, pair in enumerate(pairwise(layout.devices)):
        if pair not in known:
            known[pair] = [round(network.seconds(layer.output_bytes, pair[:1], pair[1:]) * 1e9) for layer in layers]
        lags[s, 1:] = known[pair]
    return lags


def _in_need(split: CutTables, full: CutTables) -> npt.NDArray[np.bool_]:
    """The stages whose split backward, back to back, takes longer or more memory than the whole one."""
    first = split.change[1]
    can_do = ((split.durations[1] + split.durations[2] <= full.durations[1])
              & (split.durations[0] == full.durations[0]) & (split.take[0] == full.take[0])
              & (split.change[0] == full.change[0]) & (split.take[1] <= full.take[1])
              & (first + split.take[2] <= full.take[1]) & (first + split.change[2] <= full.change[1]))
    return np.asarray(~can_do)
