"""The inputs and output gradients with which each stage of a training is measured alone.

In a chain, a stage has one input and one output tensor, whose shapes and dtypes are in
:attr:`~weft.runtime.interface.training.Training.boundaries`. In a graph of stages, inputs and outputs have names. The
boundaries may name only values that go to another rank; the shape and dtype of any other value are found by running its
producer on fake tensors, so stages must be numbered in topological order. A module whose control flow depends on data
runs on real tensors (:func:`needs_numbers`).
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

#: A captured stage is run on real tensors if its operators' results, times this factor, fit in the available memory.
ROOM = 8


@dataclass(frozen=True)
class Feed:
    """One stage's feed. ``function`` is called on ``inputs()``, new tensors each time; ``gradients()`` are the
    gradients of its results (``None``: no gradient). ``constant``: the numbers of inputs without a gradient.
    ``trains``: whether it has a backward. ``output_bytes``: the size of its results; ``kept_bytes``: an estimate of the
    memory of forward and backward. ``likeness``: a key that is equal for stages with equal inputs and outputs. In a
    graph, ``takes``: the bytes of inputs by the stage that produces them; ``owes``: those of their gradients.
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
    """The feeds of all stages, which must be requested in the order of their numbers."""

    def feed(self, stage: int, module: nn.Module) -> Feed:
        """The feed of ``stage``, whose ``module`` is on the device."""

    def record_outputs(self, stage: int, module: nn.Module) -> None:
        """Record the outputs of ``stage``, for the feeds of later stages."""


def feeds_of(training: Training, device: torch.device) -> Feeds:
    """The feeds of ``training``. Raises :class:`MeasureError` if a stage is missing."""
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

        kept, (given, *_) = _estimate(function, inputs)

        def gradients() -> list[Tensor | None]:
            return [torch.ones(given.known, dtype=given.dtype, device=device) if sink is None
                    else _random(sink, device)]

        handed = 0 if sink is None else sink.nbytes
        self.record_outputs(stage, module)
        return Feed(function, inputs, gradients, () if self.trained.get(stage - 1) else (0,), handed, kept,
                    (source, sink), trains=self.trained[stage])

    def record_outputs(self, stage: int, module: nn.Module) -> None:
        self.trained[stage] = self.trained.get(stage - 1, False) or _is_trained(module)


@dataclass
class _ValueGraph:
    """``given``: the producer and the boundary of every recorded value. ``detached``: the values without a gradient.
    ``used``: the values that some stage takes."""

    training: Training
    device: torch.device
    given: dict[str, tuple[int, Boundary]] = field(default_factory=dict)
    detached: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        ports = self.training.ports
        assert ports is not None
        if set(ports) != set(self.training.stages):
            raise MeasureError(f"ports names the stages {sorted(ports)}, but the training holds the stages "
                               f"{sorted(self.training.stages)}")
        self.ports = ports
        producers = {value: stage for stage, port in ports.items() for value in port.gives}
        self.producers = producers
        self.used = {value for port in ports.values() for value in port.takes}
        stages = self.training.stages
        self.data_has_all = isinstance(stages, dict) and any(map(needs_numbers, stages.values()))
        for stage, port in ports.items():
            for value in port.takes:
                if producers.get(value, -1) >= stage:
                    raise MeasureError(f"stage {stage} takes {value!r} from stage {producers[value]}: number the "
                                       "stages so that each takes from earlier ones only")

    def feed(self, stage: int, module: nn.Module) -> Feed:
        training, device = self.training, self.device
        takes, gives = self.ports[stage]
        has_integers = any(value in self.given and not self.given[value][1].has_gradient for value in takes)
        data = training.inputs(0, 0) if self.data_has_all or has_integers or any(
            value not in self.producers for value in takes) else {}
        missing = [value for value in takes if value not in self.producers and value not in data]
        if missing:
            raise MeasureError(f"stage {stage} takes {missing[0]!r}, which no stage gives and inputs(0, 0) does not "
                               "hold")
        constant = tuple(i for i, value in enumerate(takes) if value not in self.producers or value in self.detached)
        detached = [i for i, value in enumerate(takes) if value in self.detached]

        def inputs() -> list[Tensor]:
            return [_random(self.given[value][1], device) if value in self.producers and value not in data
                    else torch.as_tensor(data[value]).to(device, copy=True) for value in takes]

        try:
            kept, outputs = _estimate(module, inputs, needs_numbers(module) or _is_small(module, device), detached)
        except (DataDependentOutputException, DynamicOutputShapeException):  # such as a loss that reads data
            kept, outputs = _estimate(module, inputs, True, detached)
        if len(outputs) != len(gives):
            raise MeasureError(f"stage {stage} gives {len(outputs)} values, but its ports name {len(gives)}: "
                               f"{', '.join(gives)}")
        trains = self._record(stage, module, zip(gives, outputs, strict=True))
        returned = [value in training.losses or (value in self.used and value not in self.detached)
                    for value in gives]
        if trains and not any(returned):
            raise MeasureError(f"stage {stage} gives no loss, and nothing that a gradient comes back for")

        def gradients() -> list[Tensor | None]:
            return [None if not back else torch.ones_like(_random(output, device)) if value in training.losses
                    else _random(output, device) for value, output, back in zip(gives, outputs, returned, strict=True)]

        taken = [(self.given[value], i in constant) for i, value in enumerate(takes) if value in self.producers]
        data_metadata = [(tuple(torch.as_tensor(data[value]).shape), torch.as_tensor(data[value]).dtype)
                         for value in takes if value not in self.producers]
        size = sum(output.nbytes for value, output in zip(gives, outputs, strict=True) if value in self.used)
        return Feed(module, inputs, gradients, constant, size, kept,
                    ([boundary for (_, boundary), _ in taken], data_metadata, constant, outputs, returned),
                    _by_producer((producer, boundary) for (producer, boundary), _ in taken),
                    _by_producer((producer, boundary) for (producer, boundary), free in taken if not free), trains)

    def record_outputs(self, stage: int, module: nn.Module) -> None:
        known = self.training.boundaries if isinstance(self.training.boundaries, Mapping) else {}
        taken = [(value, known.get(value)) for value in self.ports[stage].gives if value in self.used]
        if all(boundary is not None and boundary.is_known for _, boundary in taken):
            self._record(stage, module, ((value, boundary) for value, boundary in taken if boundary is not None))
        else:
            self.feed(stage, module)

    def _record(self, stage: int, module: nn.Module, gives: Iterable[tuple[str, Boundary]]) -> bool:
        """Record the values that ``stage`` gives, and those without a gradient; returns whether the stage trains."""
        trains = _is_trained(module) or any(
            value in self.producers and value not in self.detached for value in self.ports[stage].takes)
        for value, boundary in gives:
            self.given[value] = stage, boundary
            if not trains or not boundary.has_gradient or value in self.training.untrained:
                self.detached.add(value)
        return trains


def _is_trained(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _by_producer(values: Any) -> dict[int, int]:
    found: dict[int, int] = {}
    for producer, boundary in values:
        found[producer] = found.get(producer, 0) + boundary.nbytes
    return found


def needs_numbers(module: nn.Module) -> bool:
    """Whether a submodule of ``module`` has a true attribute ``needs_numbers``: its control flow depends on data. All
    its inputs are then taken from ``inputs(0, 0)``, and it never runs on fake tensors."""
    return any(getattr(part, "needs_numbers", False) for part in module.modules())


def _is_small(module: nn.Module, device: torch.device) -> bool:
    """Whether a captured stage, whose operators' results are known, certainly fits in memory, so that it runs on real
    tensors: running it on fake ones takes many times as long."""
    graphs = [part.graph for part in module.modules() if isinstance(part, GraphModule)]
    known = [leaf for graph in graphs for node in graph.nodes for leaf in tree_leaves(node.meta.get("val"))
             if isinstance(leaf, Tensor)]
    return bool(known) and ROOM * sum(leaf.numel() * leaf.element_size() for leaf in known) < available_bytes(device)


def _estimate(function: Callable[..., Any], inputs: Callable[[], list[Tensor]], with_numbers: bool = False,
              detached: Collection[int] = ()) -> tuple[int, list[Boundary]]:
    """A conservative estimate of the bytes that a forward saves and a backward needs in addition, and the boundaries of
    the results. The function runs on fake tensors, or on real ones (``with_numbers``). ``detached``: the numbers of
    inputs that require no gradient."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.update((part._cdata, part.nbytes()) for part in memories(tensor))
        return tensor.detach()  # otherwise an operator that saves its own result would be a reference cycle

    shapes = nullcontext() if with_numbers else FakeTensorMode(allow_non_fake_inputs=True)
    with shapes, saved_tensors_hooks(keep, lambda tensor: tensor):
        ys = function(*(x.requires_grad_() if i not in detached and (x.is_floating_point() or x.is_complex()) else x
                        for i, x in enumerate(inputs())))
        outputs = [Boundary(tuple(y.shape), y.dtype) for y in ((ys,) if isinstance(ys, Tensor) else ys)]
    return sum(kept.values()) + 4 * max([*(output.nbytes for output in outputs), *kept.values()], default=0), outputs


def _random(boundary: Boundary, device: torch.device) -> Tensor:
    """A random tensor; integers are 0, which is a valid index."""
    if not boundary.is_known:
        raise MeasureError(f"a boundary has the shape {boundary.shape}: to measure stages, give every length")
    if boundary.has_gradient:
        return torch.randn(boundary.known, dtype=boundary.dtype, device=device)
    return torch.zeros(boundary.known, dtype=boundary.dtype, device=device)
