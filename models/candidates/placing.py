"""From an operator graph with times to a placement problem: what every part of it costs each kind of device.

A *part* is a set of operators that stay together: an operator by itself, or all of a layer. A part's time is that of
its forward and its whole backward; it holds its parameters with their gradients and optimizer state always, and what
its operators keep between forward and backward once per micro-batch in flight. Storages count once in a part, however
many of its operators keep them; one that several parts keep, and a parameter that several parts share, counts in each
(as it does if they end up on different devices; where they end up on one, the placement is charged too much). The
largest workspace of any operator is taken off every device's memory.

A tensor that other parts read costs its transfer there and, where a gradient comes back, as much again; views are the
storage they look at.

Stages on several devices (:class:`Replicas`) take what the operators take for their part of a micro-batch: times of a
graph of the same operators for so few samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.models.graph.operators import OperatorGraph
from weft.models.times.operator_times import OperatorTime
from weft.solver.placement.problem import Degree, DeviceKind, Node, PlacementError, PlacementProblem, Tensor

__all__ = ["Hardware", "Replicas", "TrainingState", "by_layer", "by_operator", "placement_problem"]

#: Parts by name: the names of their operators.
Parts = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Hardware:
    """``count`` devices of a kind, ``memory`` bytes each (``None``: unlimited), on which operators take ``times``."""

    kind: str
    count: int
    memory: int | None
    times: Mapping[str, OperatorTime]
    transfer_factor: float = 1.0


@dataclass(frozen=True)
class Replicas:
    """A stage may be on so many ``devices``. ``times``: per hardware, of operators on their part of a micro-batch.
    ``all_reduce``: seconds a byte of gradient to add them up."""

    devices: int
    times: Sequence[Mapping[str, OperatorTime]]
    all_reduce: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Bytes that training holds for one parameter beside the parameter itself: gradient and optimizer state (``held``),
    and of these the ``gradient``, which replicas of a stage add up."""

    held: int = 0
    gradient: int = 0


_NO_STATE = TrainingState()


def by_operator(graph: OperatorGraph) -> dict[str, tuple[str, ...]]:
    """Every operator by itself."""
    return {operator.name: (operator.name,) for operator in graph.operators}


def by_layer(graph: OperatorGraph) -> dict[str, tuple[str, ...]]:
    """All operators of a layer together; an operator of no layer by itself."""
    layers: dict[str, list[str]] = {}
    for operator in graph.operators:
        layers.setdefault(operator.layer or operator.name, []).append(operator.name)
    return {name: tuple(operators) for name, operators in layers.items()}


def placement_problem(graph: OperatorGraph, hardware: Sequence[Hardware], seconds: Callable[[int], float], *,
                      parts: Parts | None = None, training: TrainingState | None = _NO_STATE,
                      micro_batches: int | None = None, replicas: Sequence[Replicas] = ()) -> PlacementProblem:
    """The placement problem of one micro-batch of ``graph``; times in seconds, memory in bytes.

    ``seconds(n)``: how long n bytes travel between two devices. ``parts`` (default: by operator) hold every operator
    once. ``training``: what it holds (``None``: inference, which keeps nothing).

    Raises :class:`~weft.solver.placement.problem.PlacementError` for parts that leave an operator out or name it twice,
    for parts that wait for each other in a circle, an operator without a time, or one that no kind of device runs.
    """
    parts = by_operator(graph) if parts is None else parts
    part_of = _part_of(graph, parts)
    workspace = max((operator.workspace for operator in graph.operators), default=0)
    kinds = tuple(DeviceKind(hard.kind, hard.count, None if hard.memory is None else max(0, hard.memory - workspace),
                             hard.transfer_factor) for hard in hardware)
    nodes = []
    for name, operators in parts.items():
        classes = {graph.by_name[operator].colocate for operator in operators} - {None}
        if len(classes) > 1:
            raise PlacementError(f"part {name!r} has operators of several colocation classes "
                                 f"({', '.join(sorted(map(str, classes)))}); make them one, or cut the part")
        resident = (graph.parameter_bytes(operators) + graph.constant_bytes(operators)
                    + graph.parameter_count(operators) * (0 if training is None else training.held))
        nodes.append(Node(
            name, tuple(_time(graph, operators, hard) for hard in hardware), resident,
            0 if training is None else graph.saved_bytes(operators), next(iter(classes), None),
            gradient=0 if training is None else graph.parameter_count(operators) * training.gradient,
            forward=1.0 if training is None else _forward(operators, hardware[0].times),
            parameters=tuple({parameter.name: parameter.count for operator in operators
                              for parameter in graph.by_name[operator].parameters}.items())))
    degrees = tuple(Degree(some.devices, tuple(
        tuple(_time(graph, operators, replace(hard, times=times))
              for hard, times in zip(hardware, some.times, strict=True)) for operators in parts.values()),
        some.all_reduce) for some in replicas)
    return PlacementProblem(graph.name, kinds, tuple(nodes), tuple(_tensors(graph, list(parts), part_of, seconds)),
                            micro_batches, time_unit="s", degrees=degrees)


def _part_of(graph: OperatorGraph, parts: Parts) -> dict[str, str]:
    part_of: dict[str, str] = {}
    for name, operators in parts.items():
        if not operators:
            raise PlacementError(f"part {name!r} has no operators, leave it out")
        for operator in operators:
            if operator not in graph.by_name:
                raise PlacementError(f"part {name!r} names operator {operator!r}, which {graph.name} has not")
            if operator in part_of:
                raise PlacementError(f"operator {operator!r} is in parts {part_of[operator]!r} and {name!r}, it must "
                                     "be in one")
            part_of[operator] = name
    missing = [operator.name for operator in graph.operators if operator.name not in part_of]
    if missing:
        raise PlacementError(f"operator {missing[0]!r} is in no part, every operator must be in one")
    return part_of


def _time(graph: OperatorGraph, operators: Sequence[str], hard: Hardware) -> float | None:
    """Seconds of a micro-batch in all passes, or ``None`` where this kind does not run one of the operators."""
    total = 0.0
    for name in operators:
        allowed = graph.by_name[name].devices
        if allowed is not None and hard.kind not in allowed:
            return None
        if name not in hard.times:
            raise PlacementError(f"operator {name!r} has no time on {hard.kind}, give it one")
        time = hard.times[name]
        total += time.forward + time.input_grad + time.weight_grad
    return total


def _forward(operators: Sequence[str], times: Mapping[str, OperatorTime]) -> float:
    """The forward's share of a part's time; where it takes none, as if its backward were two forwards."""
    ahead = sum(times[name].forward for name in operators)
    total = ahead + sum(times[name].input_grad + times[name].weight_grad for name in operators)
    return ahead / total if total else 1 / 3


def _tensors(graph: OperatorGraph, names: Sequence[str], part_of: Mapping[str, str],
             seconds: Callable[[int], float]) -> list[Tensor]:
    number = {name: i for i, name in enumerate(names)}
    sent: dict[tuple[int, str], tuple[dict[int, None], list[bool]]] = {}
    for tensor, producer in graph.producer.items():
        source = number[part_of[producer]]
        for reader in graph.readers[tensor]:
            target = number[part_of[reader]]
            if target != source:
                targets, returned = sent.setdefault((source, graph.storage(tensor)), ({}, []))
                targets[target] = None
                returned.append(graph.by_name[reader].input_grad is not None
                                and "float" in (graph.tensors[tensor].dtype or "float"))
    return [Tensor(source, tuple(targets), seconds(graph.tensors[storage].bytes) * (1 + any(returned)))
            for (source, storage), (targets, returned) in sent.items()]
