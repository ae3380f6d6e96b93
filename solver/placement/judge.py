"""The judge: loads, memory, latency and every breach of a rule, from the problem alone.

It shares no code with the encodings: a placement is a list of (kind, operators), and everything is counted anew, tensor
by tensor and operator by operator. Every placement passes through here before it is returned.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.solver.placement.placement import PlacedStage
from weft.solver.placement.problem import PlacementProblem


class InvalidPlacement(AssertionError):
    """A placement that breaks a rule has come out of the search: a defect of weft's, never of the input."""


def stages_of(problem: PlacementProblem, parts: Sequence[tuple[int, Sequence[int]]],
              devices: Sequence[int] = ()) -> tuple[PlacedStage, ...]:
    """The stages of ``parts`` (kind, nodes), in order, with their costs; ``devices``: the number of each (default: one
    each). Empty parts are omitted."""
    count = [devices[i] if devices else 1 for i, (_, nodes) in enumerate(parts) if nodes]
    parts = [(kind, nodes) for kind, nodes in parts if nodes]
    degrees = {degree.devices: degree for degree in problem.degrees}
    stage_of = {node: index for index, (_, nodes) in enumerate(parts) for node in nodes}
    transfers = [0.0] * len(parts)
    for tensor in problem.tensors:
        touched = {stage_of[node] for node in (tensor.producer, *tensor.consumers)}
        if len(touched) > 1:
            for stage in touched:
                transfers[stage] += tensor.time * problem.kinds[parts[stage][0]].transfer_factor
    found = []
    for index, (kind, nodes) in enumerate(parts):
        shared = count[index]
        degree = degrees[shared] if shared > 1 else None
        times = [problem.nodes[node].times[kind] if degree is None else degree.times[node][kind] for node in nodes]
        added_up = 0.0 if degree is None else degree.all_reduce * sum(problem.nodes[node].gradient for node in nodes)
        in_flight = problem.in_flight(len(parts) - index)
        found.append(PlacedStage(
            nodes=tuple(sorted(nodes)), kind=kind,
            compute=sum(float("inf") if time is None else time for time in times),
            transfers=transfers[index] / shared,
            resident=sum(problem.nodes[node].resident for node in nodes),
            activations=in_flight * sum(problem.nodes[node].per_micro_batch for node in nodes) / shared,
            in_flight=in_flight, devices=shared, all_reduce=added_up / (problem.micro_batches or 1)))
    return tuple(found)


def latency_of(problem: PlacementProblem, stages: Sequence[PlacedStage]) -> float:
    """The time of one micro-batch through the stages if each starts when all its predecessors have ended.

    A stage follows another if some operator in it comes after one in the other (``problem.order``); stages that do not
    follow each other run in parallel.
    """
    stage_of = {node: index for index, stage in enumerate(stages) for node in stage.nodes}
    before: list[set[int]] = [set() for _ in stages]
    for first, second in problem.order:
        if stage_of[first] != stage_of[second]:
            before[stage_of[second]].add(stage_of[first])
    ends: list[float] = []
    for index, stage in enumerate(stages):
        ready = max((ends[other] for other in before[index] if other < index), default=0.0)
        ends.append(ready + stage.compute + stage.transfers)
    return max(ends)


def breaches(problem: PlacementProblem, stages: Sequence[PlacedStage]) -> list[str]:
    """Every rule that these stages break, a sentence each; empty for a placement that may be used.

    Memory is compared to within 1e-9 of the limit: sums of fractions are rounded.
    """
    found = breaches_of_division(problem, [(stage.kind, stage.nodes) for stage in stages],
                                 [stage.devices for stage in stages])
    for index, stage in enumerate(stages):
        memory = problem.kinds[stage.kind].memory
        if memory is not None and stage.memory > memory * (1 + 1e-9):
            found.append(f"stage {index} holds {stage.memory:g} of {memory:g} {problem.memory_unit}")
    return found


def breaches_of_division(problem: PlacementProblem, parts: Sequence[tuple[int, Sequence[int]]],
                         devices: Sequence[int]) -> list[str]:
    """The same for all rules except memory: for ``parts`` (kind, nodes) with these numbers of ``devices``."""
    found = []
    seen: dict[int, int] = {}
    for index, (kind, nodes) in enumerate(parts):
        for node in nodes:
            if node in seen:
                found.append(f"operator {problem.nodes[node].name!r} is in stages {seen[node]} and {index}")
            seen[node] = index
            if problem.nodes[node].times[kind] is None:
                found.append(f"operator {problem.nodes[node].name!r} does not run on "
                             f"{problem.kinds[kind].name}, where stage {index} is")
    missing = [node.name for i, node in enumerate(problem.nodes) if i not in seen]
    if missing:
        return [*found, f"operators without a stage: {', '.join(missing[:5])}"]
    for members in problem.classes:
        if len({seen[node] for node in members}) > 1:
            found.append(f"operators {problem.nodes[members[0]].name!r} and others of its colocation class are apart")
    for first, second in problem.order:
        if seen[first] > seen[second]:
            found.append(f"operator {problem.nodes[first].name!r} (stage {seen[first]}) comes before "
                         f"{problem.nodes[second].name!r} (stage {seen[second]})")
    for k, kind_ in enumerate(problem.kinds):
        used = sum(count for (kind, _), count in zip(parts, devices, strict=True) if kind == k)
        if used > kind_.count:
            what = "devices for the stages" if problem.degrees else "stages"
            found.append(f"{used} {what} on {kind_.name}, there are {kind_.count}")
    return found
