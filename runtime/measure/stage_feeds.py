"""The inputs and output gradients with which each stage of a training is measured alone.

In a chain a stage takes one tensor and gives one, whose shape and type are in
:attr:`~weft.runtime.interface.training.Training.boundaries`. In a graph of stages it takes and gives values by name.
The shape and type of a value between two stages are found by running the stage that gives it on tensors without memory,
unless boundaries name it, which have to name only those that go to another rank; so stages must be numbered from givers
to takers. A module whose control flow depends on numbers is run on real ones (:func:`needs_numbers`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from weft.runtime.interface.counting import one_tensor
from weft.runtime.interface.training import Boundary, Training
from weft.runtime.measure.measure import available_bytes, memories
from weft.runtime.measure.stage_costs import MeasureError

#: How many times the bytes of all its operators' results must be free for a stage to be run without an estimate.
ROOM = 8


@dataclass(frozen=True)
class Feed:
    """One stage's feed: ``function`` is called on ``inputs()``, which are new each time, as if they had just arrived;
    then ``gradients()`` come back for its results (``None``: for none). Inputs numbered in ``constant`` are owed no
    gradient. A stage that does not train (``trains``) runs forward only. ``output_bytes`` is the size of its results.
    In a graph, ``takes`` are the bytes of values that it takes, by the stage that gives them, and ``owes`` those of
    their gradients.
    """

    function: Callable[..., Any]
    inputs: Callable[[], list[Tensor]]
    gradients: Callable[[], list[Tensor | None]]
    constant: tuple[int, ...]
    output_bytes: int
    kept_bytes: int
    likeness: Any
    takes: Mapping[int, int] | None = None
    owes: Mapping[int, int] | None = None
    trains: bool = True


class Feeds(Protocol):
    """The feeds of all stages, made in the order of their numbers."""

    def feed(self, stage: int, module: nn.Module) -> Feed:
        """The feed of ``stage``, whose ``module`` is on the device."""

    def pass_by(self, stage: int, module: nn.Module) -> None:
        """Record what ``stage`` gives to later ones, without making its feed."""


def feeds_of(training: Training, device: torch.device) -> Feeds:
    """The feeds of ``training``, which must have all its stages. Raises :class:`MeasureError` if it does not."""
    count = len(training.stages)
    if sorted(training.stages) != list(range(count)):
        raise MeasureError(f"the training must hold all stages 0 to n-1, it holds {sorted(training.stages)}")
    return _FeedChain(training, device) if training.ports is None else _ValueGraph(training, device)


@dataclass
class _FeedChain:
    training: Training
    device: torch.device
    trained: dict[int, bool] = field(default_factory=dict)  # by stage: whether it trains

    def __post_init__(self) -> None:
        training = self.training
        if isinstance(training.boundaries, Mapping) or len(training.boundaries) != len(training.stages) - 1:
            raise MeasureError(f"the training must hold n stages and n-1 boundaries, it holds {len(training.stages)} "
                               f"stages and {len(training.boundaries)} boundaries")
        if training.loss is None or training.targets is None:
            raise MeasureError("the training has no loss or no targets, so its last stage has no backward to measure")
        self.boundaries: Sequence[Boundary] = training.boundaries

    def feed(self, stage: int, module: nn.Module) -> Feed:
        training, device = self.training, self.device
        source = None if stage == 0 else self.boundaries[stage - 1]
        sink = None if stage == len(self.boundaries) else self.boundaries[stage]
        data = training.inputs(0, 0) if source is None else None
        function: Callable[..., Any] = module
        if sink is None:
            assert training.loss is not None and training.targets is not None
            loss, target = training.loss, training.targets(0, 0).to(device)

            def function(x: Tensor) -> Tensor:
                return one_tensor(loss(module(x), target))  # type: ignore[no-any-return]

        def inputs() -> list[Tensor]:
            return [_random(source, device) if source is not None else torch.as_tensor(data).to(device, copy=True)]

        kept, (given, *_) = _foresee(function, inputs)

        def gradients() -> list[Tensor | None]:
            return [torch.ones(given.known, dtype=given.dtype, device=device) if sink is None
                    else _random(sink, device)]

        handed = 0 if sink is None else sink.nbytes
        self.pass_by(stage, module)
        return Feed(function, inputs, gradients, () if self.trained.get(stage - 1) else (0,), handed, kept,
                    (source, sink), trains=self.trained[stage])

    def pass_by(self, stage: int, module: nn.Module) -> None:
        self.trained[stage] = self.trained.get(stage - 1, False) or _is_trained(module)


@dataclass
class _ValueGraph:
    """``given``: the stage, shape and type of every value given so far; ``still``: those of them for which no gradient
    comes back; ``used``: the values that some stage takes."""

    training: Training
    device: torch.device
    given: dict[str, tuple[int, Boundary]] = field(default_factory=dict)
    still: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        ports = self.training.ports
        assert ports is not None
        if set(ports) != set(self.training.stages):
            raise MeasureError(f"ports names the stages {sorted(ports)}, but the training holds the stages "
                               f"{sorted(self.training.stages)}")
        self.ports = ports
        givers = {value: stage for stage, port in ports.items() for value in port.gives}
        self.givers = givers
        self.used = {value for port in ports.values() for value in port.takes}
        stages = self.training.stages
        self.holds_all = isinstance(stages, dict) and any(map(needs_numbers, stages.values()))  # else made at lookup
        for stage, port in ports.items():
            for value in port.takes:
                if givers.get(value, -1) >= stage:
                    raise MeasureError(f"stage {stage} takes {value!r} from stage {givers[value]}: number the stages "
                                       "so that each takes from earlier ones only")

    def feed(self, stage: int, module: nn.Module) -> Feed:
        training, device = self.training, self.device
        takes, gives = self.ports[stage]
        whole = any(value in self.given and not self.given[value][1].has_gradient for value in takes)
        data = training.inputs(0, 0) if self.holds_all or whole or any(
            value not in self.givers for value in takes) else {}
        missing = [value for value in takes if value not in self.givers and value not in data]
        if missing:
            raise MeasureError(f"stage {stage} takes {missing[0]!r}, which no stage gives and inputs(0, 0) does not "
                               "hold")
        constant = tuple(i for i, value in enumerate(takes) if value not in self.givers or value in self.still)
        still = [i for i, value in enumerate(takes) if value in self.still]

        def inputs() -> list[Tensor]:
            return [_random(self.given[value][1], device) if value in self.givers and value not in data
                    else torch.as_tensor(data[value]).to(device, copy=True) for value in takes]

        try:
            kept, outputs = _foresee(module, inputs, needs_numbers(module) or _is_small(module, device), still)
        except (DataDependentOutputException, DynamicOutputShapeException):  # a loss that inspects its numbers
            kept, outputs = _foresee(module, inputs, True, still)
        if len(outputs) != len(gives):
            raise MeasureError(f"stage {stage} gives {len(outputs)} values, but its ports name {len(gives)}: "
                               f"{', '.join(gives)}")
        trains = self._enter(stage, module, zip(gives, outputs, strict=True))
        returned = [value in training.losses or (value in self.used and value not in self.still)
                    for value in gives]
        if trains and not any(returned):
            raise MeasureError(f"stage {stage} gives no loss, and nothing that a gradient comes back for")

        def gradients() -> list[Tensor | None]:
            return [None if not back else torch.ones_like(_random(looks, device)) if value in training.losses
                    else _random(looks, device) for value, looks, back in zip(gives, outputs, returned, strict=True)]

        taken = [(self.given[value], i in constant) for i, value in enumerate(takes) if value in self.givers]
        looks_of_data = [(tuple(torch.as_tensor(data[value]).shape), torch.as_tensor(data[value]).dtype)
                         for value in takes if value not in self.givers]
        return Feed(module, inputs, gradients, constant,
                    sum(looks.nbytes for value, looks in zip(gives, outputs, strict=True) if value in self.used), kept,
                    ([looks for (_, looks), _ in taken], looks_of_data, constant, outputs, returned),
                    _by_giver((giver, looks) for (giver, looks), _ in taken),
                    _by_giver((giver, looks) for (giver, looks), free in taken if not free), trains)

    def pass_by(self, stage: int, module: nn.Module) -> None:
        known = self.training.boundaries if isinstance(self.training.boundaries, Mapping) else {}
        taken = [(value, known.get(value)) for value in self.ports[stage].gives if value in self.used]
        if all(looks is not None and looks.is_known for _, looks in taken):
            self._enter(stage, module, ((value, looks) for value, looks in taken if looks is not None))
        else:
            self.feed(stage, module)

    def _enter(self, stage: int, module: nn.Module, gives: Iterable[tuple[str, Boundary]]) -> bool:
        """Record the values that ``stage`` gives, and which of them are owed no gradient; returns whether it trains."""
        trains = _is_trained(module) or any(
            value in self.givers and value not in self.still for value in self.ports[stage].takes)
        for value, looks in gives:
            self.given[value] = stage, looks
            if not trains or not looks.has_gradient or value in self.training.untrained:
                self.still.add(value)
        return trains


def _is_trained(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _by_giver(values: Any) -> dict[int, int]:
    found: dict[int, int] = {}
    for giver, looks in values:
        found[giver] = found.get(giver, 0) + looks.nbytes
    return found


def needs_numbers(module: nn.Module) -> bool:
    """Whether a part of ``module`` has an attribute of this name: its work depends on numbers, so that it is measured
    on those of ``inputs(0, 0)`` for all its inputs, and never on shapes only."""
    return any(getattr(part, "needs_numbers", False) for part in module.modules())


def _is_small(module: nn.Module, device: torch.device) -> bool:
    """Whether a captured stage, whose operators' results are known, keeps and needs so little, conservatively, that it
    is run to find out: on tensors without numbers that takes many times as long."""
    graphs = [part.graph for part in module.modules() if isinstance(part, GraphModule)]
    known = [leaf for graph in graphs for node in graph.nodes for leaf in tree_leaves(node.meta.get("val"))
             if isinstance(leaf, Tensor)]
    return bool(known) and ROOM * sum(leaf.numel() * leaf.element_size() for leaf in known) < available_bytes(device)


def _foresee(function: Callable[..., Any], inputs: Callable[[], list[Tensor]], with_numbers: bool = False,
             still: Collection[int] = ()) -> tuple[int, list[Boundary]]:
    """Bytes that a forward will keep and a backward need beside them, from shapes only (or by running it,
    ``with_numbers``), estimated conservatively; and the results of the forward. ``inputs`` in ``still``, by number,
    have no gradient, as under ``torch.no_grad``."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.update((part._cdata, part.nbytes()) for part in memories(tensor))
        return tensor.detach()  # an operation that saves its own result would hold itself, and the weights, for ever

    shapes = nullcontext() if with_numbers else FakeTensorMode(allow_non_fake_inputs=True)
    with shapes, saved_tensors_hooks(keep, lambda tensor: tensor):
        ys = function(*(x.requires_grad_() if i not in still and (x.is_floating_point() or x.is_complex()) else x
                        for i, x in enumerate(inputs())))
        outputs = [Boundary(tuple(y.shape), y.dtype) for y in ((ys,) if isinstance(ys, Tensor) else ys)]
    return sum(kept.values()) + 4 * max([*(looks.nbytes for looks in outputs), *kept.values()], default=0), outputs


def _random(looks: Boundary, device: torch.device) -> Tensor:
    """Random numbers; integers are 0, a valid index into anything."""
    if not looks.is_known:
        raise MeasureError(f"a boundary has the shape {looks.shape}: to measure stages, give every length")
    if looks.has_gradient:
        return torch.randn(looks.known, dtype=looks.dtype, device=device)
    return torch.zeros(looks.known, dtype=looks.dtype, device=device)
