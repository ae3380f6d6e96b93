"""The operators of a model: their work, inputs, kept tensors and parameters, before any placement.

An :class:`OperatorGraph` describes one micro-batch. Its nodes are operators, its edges the tensors between them. Costs
are counted (floating-point operations and bytes), not timed. Tensors have names because three things depend on a
tensor's identity, not only on its size: a tensor kept by two operators for their backward is stored once, a tensor read
by several operators of another stage is sent once, and a view keeps the storage of its base.

Every class validates itself on construction and raises :class:`OperatorError`. All are immutable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from weft.models.graph.dataflow import Dataflow
from weft.solver.late import nx

#: The layout of a tensor on the devices that compute an operator together: whole on each, terms on each yet to be
#: summed, or cut along the axis of that number.
Layout: TypeAlias = Literal["whole", "partial"] | int


class OperatorError(ValueError):
    """An invalid operator graph: a cycle, an unknown tensor, a negative amount ..."""


def causal_share(rows: int, keys: int) -> float:
    """The share of products of causal attention: the i-th of ``rows`` queries sees the first i of ``keys``."""
    return (square := min(rows, keys)) * ((square + 1) / 2 + rows - square) / (rows * keys)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one pass of an operator: floating-point operations, and bytes of memory traffic."""

    flops: float = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __post_init__(self) -> None:
        for name in ("flops", "bytes_read", "bytes_written"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise OperatorError(f"{name} is {value}, it must be a finite number of 0 or more")

    @classmethod
    def total(cls, works: Iterable[Work | None]) -> Work | None:
        """The sum of ``works``; ``None`` if there are none."""
        some = [work for work in works if work is not None]
        return cls(sum(work.flops for work in some), sum(work.bytes_read for work in some),
                   sum(work.bytes_written for work in some)) if some else None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of one micro-batch: ``shape`` in elements and ``bytes`` of its own elements.

    ``base`` names the tensor of which it is a view; ``None``: it has its own storage. ``dtype`` is for display and
    checks ("float16", "int64", ...).
    """

    name: str
    bytes: int
    shape: tuple[int, ...] = ()
    dtype: str = ""
    base: str | None = None

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise OperatorError(f"tensor {self.name!r}: bytes is {self.bytes}, it must be 0 or more")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A trained tensor. Operators with a parameter of the same name share it, and its gradient."""

    name: str
    count: int
    bytes: int
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.count < 0 or self.bytes < 0:
            raise OperatorError(f"parameter {self.name!r}: count is {self.count} and bytes {self.bytes}, "
                                "both must be 0 or more")


@dataclass(frozen=True, slots=True)
class Split:
    """One way to compute an operator on several devices: its work is divided evenly along ``dimension``.

    ``size``: the number of units in that dimension; a degree must divide it. ``inputs`` and ``outputs``: the required
    and resulting layout of each tensor, by name (whole if not named). ``parameters``: the names of those divided too;
    the others are on every device.
    """

    dimension: str
    size: int
    inputs: Mapping[str, Layout] = field(default_factory=dict)
    outputs: Mapping[str, Layout] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the model.

    ``inputs``: names of the tensors it reads. ``outputs``: the tensors it produces.
    ``input_grad`` and ``weight_grad`` are the parts of its backward; ``None`` if there is nothing to compute.
    ``internal``: tensors of its forward that only its own backward reads (a dropout mask, softmax statistics).
    ``keeps``: names of the inputs, outputs and internal tensors kept from its forward to its backward.
    ``deferred``: of those, the names that its weight gradient needs when it runs after the input gradient, beside the
    gradients of its outputs; ``None`` if the weight gradient is computed in the input-gradient pass. ``workspace``:
    bytes needed only while a pass of it runs, beside all tensors named here. ``slices``: by name, tensors that it keeps
    or defers in place of inputs of which a device has a slice (it gathers the rest again in its backward), and the
    bytes of the whole. ``constants``: its untrained tensors beside its parameters (running statistics, frozen weights).
    ``layer``: the layer it belongs to, for reports and for cuts that respect layers. ``colocate``: operators with the
    same word share a device. ``devices``: kinds of device it can run on; ``None`` is all kinds.
    """

    name: str
    kind: str
    forward: Work
    inputs: tuple[str, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    input_grad: Work | None = None
    weight_grad: Work | None = None
    parameters: tuple[Parameter, ...] = ()
    internal: tuple[Tensor, ...] = ()
    keeps: tuple[str, ...] = ()
    deferred: tuple[str, ...] | None = None
    workspace: int = 0
    splits: tuple[Split, ...] = ()
    layer: str = ""
    colocate: str | None = None
    devices: frozenset[str] | None = None
    constants: tuple[Parameter, ...] = ()
    slices: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        here = f"operator {self.name!r}"
        own = {tensor.name for tensor in (*self.outputs, *self.internal)}
        for name in (*self.keeps, *(self.deferred or ())):
            if name not in own and name not in self.inputs and name not in self.slices:
                raise OperatorError(f"{here}: keeps {name!r}, which is none of its inputs, outputs or internal tensors")
        if self.workspace < 0:
            raise OperatorError(f"{here}: workspace is {self.workspace}, it must be 0 or more")
        if self.devices is not None and not self.devices:
            raise OperatorError(f"{here}: devices is empty, it can run nowhere")
        held = {parameter.name for parameter in self.parameters}
        for split in self.splits:
            if split.size < 1:
                raise OperatorError(f"{here}: split {split.dimension!r}: size is {split.size}, it must be 1 or more")
            for name in (*(set(split.inputs) - set(self.inputs)), *(set(split.outputs) - own),
                         *(split.parameters - held)):
                raise OperatorError(f"{here}: split {split.dimension!r} names {name!r}, which it does not have")


@dataclass(frozen=True)
class OperatorGraph(Dataflow[Operator]):
    """A model's operators for one micro-batch.

    ``inputs``: external tensors (tokens, images). ``outputs``: names of its results (a loss, logits); they may be read
    inside as well. ``notes``: sentences on omissions and assumptions of the numbers.
    """

    name: str
    operators: tuple[Operator, ...]
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.operators:
            raise OperatorError(f"{self.name}: has no operators")
        _require_unique("operator", [operator.name for operator in self.operators])
        _require_unique("tensor", [tensor.name for tensor in self._all_tensors()])
        for operator in self.operators:
            for name in operator.inputs:
                if name not in self.tensors or name in self._internal:
                    raise OperatorError(f"operator {operator.name!r}: reads {name!r}, which nothing produces")
        for name in self.outputs:
            if name not in self.tensors:
                raise OperatorError(f"{self.name}: outputs: {name!r} is produced by no operator")
        for tensor in self._all_tensors():
            if tensor.base is not None and tensor.base not in self.tensors:
                raise OperatorError(f"tensor {tensor.name!r}: base is {tensor.base!r}, which nothing produces")
            self.storage(tensor.name)
        for operator in self.operators:
            for what, own, every in (("parameter", operator.parameters, self.parameters),
                                     ("constant", operator.constants, self.constants)):
                for held in own:
                    if held != every[held.name]:
                        raise OperatorError(f"operator {operator.name!r}: {what} {held.name!r} is of another size in "
                                            "an operator that shares it")
        if not self._reads_what_is_made_before():
            self._refuse_cycles()

    # -- look-ups --------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> tuple[Operator, ...]:
        """The operators."""
        return self.operators

    def made(self, step: Operator) -> Iterator[str]:
        """The names of an operator's outputs."""
        return (tensor.name for tensor in step.outputs)

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors by name, inputs and internal ones included."""
        return {tensor.name: tensor for tensor in self._all_tensors()}

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """All parameters by name; a shared one stands once."""
        return {parameter.name: parameter for operator in self.operators for parameter in operator.parameters}

    @cached_property
    def constants(self) -> Mapping[str, Parameter]:
        """All constants by name; a shared one stands once."""
        return {constant.name: constant for operator in self.operators for constant in operator.constants}

    @property
    def edges(self) -> Iterator[tuple[str, str]]:
        """The edges of :attr:`graph`, one for each tensor."""
        producer = self.producer
        return ((producer[name], operator.name) for operator in self.operators for name in operator.inputs
                if name in producer)

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """Operators by name; an edge's ``tensors`` are their names."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(operator.name for operator in self.operators)
        for operator in self.operators:
            for name in dict.fromkeys(operator.inputs):
                source = self.producer.get(name)
                if source is None:
                    continue
                if graph.has_edge(source, operator.name):
                    graph.edges[source, operator.name]["tensors"] += (name,)
                else:
                    graph.add_edge(source, operator.name, tensors=(name,))
        return graph

    @cached_property
    def order(self) -> tuple[str, ...]:
        """A topological order of the operators that keeps the order of ``operators`` where possible."""
        position = {operator.name: i for i, operator in enumerate(self.operators)}
        return tuple(nx.lexicographical_topological_sort(self.graph, key=position.__getitem__))

    def storage(self, name: str) -> str:
        """The tensor that owns the storage of tensor ``name``."""
        seen = [name]
        while (base := self.tensors[seen[-1]].base) is not None:
            if base in seen:
                raise OperatorError(f"tensor {name!r}: is a view of itself: {' -> '.join([*seen, base])}")
            seen.append(base)
        return seen[-1]

    # -- sums over a set of operators --------------------------------------------------------------------------------

    def parameter_count(self, operators: Iterable[str] | None = None) -> int:
        """Parameters of ``operators`` (default all); a shared one counts once."""
        return sum(parameter.count for parameter in self._held(operators).values())

    def parameter_bytes(self, operators: Iterable[str] | None = None) -> int:
        """Bytes of the parameters of ``operators`` (default all) on one device; a shared one counts once."""
        return sum(parameter.bytes for parameter in self._held(operators).values())

    def constant_bytes(self, operators: Iterable[str] | None = None) -> int:
        """Bytes of the constants of ``operators`` (default all) on one device; a shared one counts once."""
        held = {constant.name: constant for operator in self._some(operators) for constant in operator.constants}
        return sum(constant.bytes for constant in held.values())

    def saved_bytes(self, operators: Iterable[str] | None = None) -> int:
        """Bytes of a micro-batch that ``operators`` (default all) on one device keep between its forward and its
        backward.

        Storages count once for any number of operators or views that keep them; a kept tensor received from another
        device counts too. Parameters are not counted.
        """
        names = {name for operator in self._some(operators) for name in operator.keeps}
        return sum(self.tensors[storage].bytes for storage in {self.storage(name) for name in names})

    def crossing(self, operators: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
        """The tensors that ``operators`` read from other operators, and those of theirs that others read."""
        inside = set(operators)
        read = {name for operator in self._some(inside) for name in operator.inputs
                if self.producer.get(name, operator.name) not in inside}
        given = {tensor.name for operator in self._some(inside) for tensor in operator.outputs
                 if not inside.issuperset(self.readers[tensor.name])}
        return frozenset(read), frozenset(given)

    # -- within ------------------------------------------------------------------------------------------------------

    def _all_tensors(self) -> Iterable[Tensor]:
        yield from self.inputs
        for operator in self.operators:
            yield from operator.outputs
            yield from operator.internal

    @cached_property
    def _internal(self) -> frozenset[str]:
        return frozenset(tensor.name for operator in self.operators for tensor in operator.internal)

    def _reads_what_is_made_before(self) -> bool:
        """Whether every operator reads only outputs of earlier ones: then there is no cycle."""
        made = {tensor.name for tensor in self.inputs}
        for operator in self.operators:
            if not made.issuperset(operator.inputs):
                return False
            made.update(tensor.name for tensor in operator.outputs)
        return True

    def _refuse_cycles(self) -> None:
        try:
            edges = nx.find_cycle(self.graph)
        except nx.NetworkXNoCycle:
            return
        cycle = [*(edge[0] for edge in edges), edges[0][0]]
        raise OperatorError(f"{self.name}: the operators wait for each other in a cycle: {' -> '.join(cycle)}")

    def _some(self, names: Iterable[str] | None) -> Iterable[Operator]:
        return self.operators if names is None else [self.by_name[name] for name in names]

    def _held(self, names: Iterable[str] | None) -> Mapping[str, Parameter]:
        return {parameter.name: parameter for operator in self._some(names) for parameter in operator.parameters}


def _require_unique(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise OperatorError(f"the {what} name {name!r} is used twice")
        seen.add(name)
