"""Which of its questions ``weft place`` is asked: a placement, a step, or what a chain keeps; each has its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.solver.placement.problem import PlacementError


def require_question(given: Mapping[str, Any]) -> None:
    """Refuse options, by name as they were ``given``, that are for another question than the one that they ask.

    Raises :class:`~weft.solver.placement.problem.PlacementError`.
    """
    if given["memory"]:
        _require_memory(given)
    elif given["micro_batch_sizes"] or given["schedule"]:
        _require_step(given)
    else:
        _require_placement(given)


def _require_placement(given: Mapping[str, Any]) -> None:
    if given["overhead"] is not None or given["mini_batch"] is not None or given["one_size"]:
        raise PlacementError("--overhead, --mini-batch and --one-size are for the search of a step; add "
                             "--micro-batch-sizes or --schedule")
    if given["problem"] and not given["stage_graph"]:
        raise PlacementError("--problem writes the blocks of a graph of stages or of a memory plan; add "
                             "--stage-graph or --memory")


def _require_step(given: Mapping[str, Any]) -> None:
    if not given["stage_graph"]:
        raise PlacementError("--micro-batch-sizes and --schedule are for a graph of stages; add --stage-graph")
    for name, why in (("latency", "the step is made short"), ("slack", "all trade-offs of load and depth are tried"),
                      ("recompute", "costs are of one alternative")):
        if given[name]:
            raise PlacementError(f"--{name} is for a placement without an order, here {why}; leave it out")


def _require_memory(given: Mapping[str, Any]) -> None:
    operators = not given["whole_layers"]
    for name in ("devices", "recompute", "latency", "stage_graph", "slack", "replicate", "operators",
                 "micro_batch_sizes", "schedule", "mini_batch", "overhead", "one_size"):
        if operators if name == "operators" else given[name]:
            raise PlacementError(f"--memory decides a chain of a spec's operators on its own cluster; leave out "
                                 f"--{name.replace('_', '-')}")
    if given["effort"] is not None or given["seed"] or given["workers"] > 1:
        raise PlacementError("--memory plans with one worker and without chance, until --time-limit; leave out "
                             "--effort, --seed and --workers")
    if not given["graph"].endswith((".yaml", ".yml")):
        raise PlacementError(f"{given['graph']}: --memory is for model specs (.yaml)")
