"""Builds a program stage by stage: layouts follow from the operands, and mismatches are refused immediately.

Optimizer steps as pointwise stages and norms, after the all-reduce of a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from weft.models.communication.inference import in_a_row, made_by, require_slices
from weft.models.communication.program import (
    CommunicationError,
    CommunicationProgram,
    CommunicationTensor,
    Kind,
    Layout,
    ProgramStage,
    Source,
)


class Builder:
    """Every call adds a stage named ``name`` and returns the name of its tensor, which is the same.

    All raise :class:`~weft.models.communication.program.CommunicationError` for mismatched operands: layouts, shapes,
    groups, and slices not divisible by the number of ranks.
    """

    def __init__(self, name: str, ranks: int, *, itemsize: int = 4) -> None:
        if not isinstance(ranks, int) or ranks < 1:
            raise CommunicationError(f"ranks is {ranks!r}, a program runs on a number of at least one")
        if itemsize not in (1, 2, 4, 8):
            raise CommunicationError(f"itemsize is {itemsize!r}: elements have 1, 2, 4 or 8 bytes")
        self.name, self.ranks, self.itemsize = name, ranks, itemsize
        self.stages: list[ProgramStage] = []
        self.tensors: dict[str, CommunicationTensor] = {}
        self.carried: dict[str, str] = {}

    # -- given tensors --------------------------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int] = (), layout: Layout = "replicated", axis: int | None = None, *,
              group: int = 0) -> str:
        """An external tensor; with shape () a scalar."""
        return self._source(name, shape, "input", layout, axis, group)

    def parameter(self, name: str, shape: Sequence[int], layout: Layout = "replicated", axis: int | None = None, *,
                  group: int = 0) -> str:
        """A weight."""
        return self._source(name, shape, "parameter", layout, axis, group)

    def state(self, name: str, shape: Sequence[int], layout: Layout = "replicated", axis: int | None = None, *,
              group: int = 0) -> str:
        """An optimizer's state."""
        return self._source(name, shape, "state", layout, axis, group)

    def _source(self, name: str, shape: Sequence[int], source: Source, layout: Layout, axis: int | None, group: int
                ) -> str:
        if layout not in get_args(Layout):
            raise CommunicationError(f"{name!r} has the layout {layout!r}: take one of {', '.join(get_args(Layout))}")
        if not isinstance(group, int) or group < 0:
            raise CommunicationError(f"{name!r} is of the group {group!r}: groups are 0 and on")
        if axis is not None and layout != "sliced":
            raise CommunicationError(f"{name!r} is {layout} and has an axis: only slices are cut along one")
        if any(not isinstance(size, int) or size < 1 for size in shape):
            raise CommunicationError(f"{name!r} has the shape {tuple(shape)}, whose sizes must be at least 1")
        tensor = in_a_row(CommunicationTensor(name, tuple(shape), layout, axis, self.itemsize, source, group))
        require_slices(tensor, self.ranks, source)
        return self._known(tensor)

    def _known(self, tensor: CommunicationTensor) -> str:
        if tensor.name in self.tensors:
            raise CommunicationError(f"the name {tensor.name!r} is used twice")
        self.tensors[tensor.name] = tensor
        return tensor.name

    # -- stages ------------------------------------------------------------------------------------------------------

    def add(self, name: str, kind: Kind, inputs: Sequence[str], **attributes: Any) -> str:
        """A stage of any kind but ``fused``."""
        for tensor in inputs:
            if tensor not in self.tensors:
                raise CommunicationError(f"stage {name!r} reads {tensor!r}, which nothing before it makes")
        stage = ProgramStage(name, kind, tuple(inputs), (name,), attributes)
        (made,) = made_by(stage, self.tensors, self.ranks)
        self._known(made)
        self.stages.append(stage)
        return name

    def matmul(self, name: str, left: str, right: str) -> str:
        """``left`` (..., m, k) times ``right`` (k, n): local if both are cut along k."""
        return self.add(name, "matmul", (left, right))

    def pointwise(self, name: str, function: str, *operands: str, **attributes: Any) -> str:
        """A function of :mod:`weft.models.communication.functions` of ``operands``, which broadcast."""
        return self.add(name, "pointwise", operands, function=function, **attributes)

    def norm(self, name: str, tensor: str) -> str:
        """The root of the sum of squares; for a slice, over all slices."""
        return self.add(name, "norm", (tensor,))

    def dropout(self, name: str, tensor: str, *, rate: float, seed: int = 0) -> str:
        """Zeros with probability ``rate``, the others divided by 1 - ``rate``; determined by ``seed`` and an element's
        position in the whole tensor, on any rank."""
        return self.add(name, "dropout", (tensor,), rate=rate, seed=seed)

    def cast(self, name: str, tensor: str, *, itemsize: int) -> str:
        """The same in elements of ``itemsize`` bytes."""
        return self.add(name, "cast", (tensor,), itemsize=itemsize)

    def update(self, name: str, old: str, new: str) -> str:
        """``new`` is the value of the parameter or state ``old`` in the next step."""
        if old in self.tensors and self.tensors[old].source not in ("parameter", "state"):
            raise CommunicationError(f"stage {name!r}: {old!r} is neither a parameter nor a state, and cannot be "
                                     "updated")
        if old in self.carried.values():
            raise CommunicationError(f"stage {name!r}: {old!r} is updated twice")
        made = self.add(name, "update", (old, new))
        self.carried[made] = old
        return made

    def all_reduce(self, name: str, tensor: str) -> str:
        """The sum over the ranks, on all of them."""
        return self.add(name, "all_reduce", (tensor,))

    def reduce_scatter(self, name: str, tensor: str, axis: int | None = None) -> str:
        """The sum over the ranks, one slice on each."""
        return self.add(name, "reduce_scatter", (tensor,), axis=axis)

    def all_gather(self, name: str, tensor: str) -> str:
        """All slices, on all ranks."""
        return self.add(name, "all_gather", (tensor,))

    def reduce(self, name: str, tensor: str, root: int = 0) -> str:
        """The sum over the ranks at ``root``, zeros elsewhere: a local tensor of the same sum."""
        return self.add(name, "reduce", (tensor,), root=root)

    def broadcast(self, name: str, tensor: str, root: int = 0) -> str:
        """The tensor of ``root``, on all ranks."""
        return self.add(name, "broadcast", (tensor,), root=root)

    def slice(self, name: str, tensor: str, axis: int | None = None) -> str:
        """Rank i's part of a replicated tensor."""
        return self.add(name, "slice", (tensor,), axis=axis)

    def send(self, name: str, tensor: str) -> str:
        """The same on the ranks of the next pipeline group."""
        return self.add(name, "send", (tensor,))

    def build(self, *outputs: str, carried: Mapping[str, str] | None = None) -> CommunicationProgram:
        """The program with ``outputs`` and its updates; ``carried``: further tensors that become a parameter or state
        in the next step."""
        program = CommunicationProgram(self.name, self.ranks, tuple(self.stages), dict(self.tensors), outputs,
                                       {**self.carried, **(carried or {})})
        for made, old in (carried or {}).items():
            self._require_carried(made, old, list(program.carried.values()))
        return program

    def _require_carried(self, made: str, old: str, every: Sequence[str]) -> None:
        if old not in self.tensors or self.tensors[old].source not in ("parameter", "state") or every.count(old) > 1:
            how = "has two new values" if every.count(old) > 1 else "is neither a parameter nor a state"
            raise CommunicationError(f"{made!r} is to be carried to {old!r}, which {how}")
        there, new = self.tensors[old], self.tensors[made]
        if new.layout == "local" or replace(new, name=old, source=there.source) != there:
            one, other = (f"{tensor.lies}, of shape {tensor.shape} and {tensor.itemsize} bytes an element in group "
                          f"{tensor.group}" for tensor in (new, there))
            raise CommunicationError(f"{made!r} is to be carried to {old!r}, but is {one}, not {other}")


#: Decay of the means of gradients and of their squares, and the epsilon added to the root.
BETAS, EPS = (0.9, 0.999), 1e-8


def add_sgd(builder: Builder, weight: str, gradient: str, *, rate: float = 0.1, momentum: float = 0.0) -> str:
    """A step against the mean gradient; with ``momentum`` a state ``WEIGHT.momentum``. The new weight's name."""
    direction = gradient
    if momentum:
        state = builder.state(f"{weight}.momentum", builder.tensors[weight].shape)
        kept = builder.pointwise(f"{weight}.kept", "scale", state, factor=momentum)
        direction = builder.update(f"{state}.next", state, builder.pointwise(f"{weight}.sum", "add", kept, gradient))
    stepped = builder.pointwise(f"{weight}.step", "descend", weight, direction, rate=rate)
    return builder.update(f"{weight}.next", weight, stepped)


def add_adam(builder: Builder, weight: str, gradient: str, step: str, *, rate: float = 1e-3,
             betas: tuple[float, float] = BETAS, eps: float = EPS) -> str:
    """Adam (Kingma and Ba, ICLR 2015) with states ``WEIGHT.mean`` and ``WEIGHT.square``; ``step`` counts from 1. The
    new weight's name."""
    direction = _direction(builder, weight, gradient, step, betas, eps)
    stepped = builder.pointwise(f"{weight}.step", "descend", weight, direction, rate=rate)
    return builder.update(f"{weight}.next", weight, stepped)


def add_lamb(builder: Builder, weight: str, gradient: str, step: str, *, rate: float = 1e-3, decay: float = 0.01,
             betas: tuple[float, float] = BETAS, eps: float = EPS) -> str:
    """LAMB (You et al., ICLR 2020): Adam's direction with weight decay, scaled by norms. The new weight's name."""
    adam = _direction(builder, weight, gradient, step, betas, eps)
    direction = builder.pointwise(f"{weight}.decayed", "decayed", adam, weight, decay=decay)
    norms = builder.norm(f"{weight}.norm", weight), builder.norm(f"{weight}.direction.norm", direction)
    trusted = builder.pointwise(f"{weight}.trusted", "trust", direction, *norms)
    stepped = builder.pointwise(f"{weight}.step", "descend", weight, trusted, rate=rate)
    return builder.update(f"{weight}.next", weight, stepped)


def _direction(builder: Builder, weight: str, gradient: str, step: str, betas: tuple[float, float], eps: float) -> str:
    shape = builder.tensors[weight].shape
    mean, square = builder.state(f"{weight}.mean", shape), builder.state(f"{weight}.square", shape)
    made = builder.pointwise(f"{mean}.new", "mean_of", mean, gradient, beta=betas[0])
    new_mean = builder.update(f"{mean}.next", mean, made)
    made = builder.pointwise(f"{square}.new", "square_of", square, gradient, beta=betas[1])
    new_square = builder.update(f"{square}.next", square, made)
    return builder.pointwise(f"{weight}.direction", "adam_direction", new_mean, new_square, step, betas=betas, eps=eps)


def data_parallel(optimizer: str, ranks: int, shape: tuple[int, ...], *, itemsize: int = 4) -> CommunicationProgram:
    """One weight's update after the all-reduce of its gradient, which every rank has computed from its own batch.

    ``optimizer``: ``sgd``, ``momentum``, ``adam`` or ``lamb``; the gradient is the mean over the ranks.
    """
    builder = Builder(f"data parallel {optimizer}", ranks, itemsize=itemsize)
    summed = builder.all_reduce("gradient", builder.input("own gradient", shape, "local"))
    weight = builder.parameter("weight", shape)
    mean = builder.pointwise("mean gradient", "scale", summed, factor=1.0 / ranks)
    if optimizer in ("sgd", "momentum"):
        made = add_sgd(builder, weight, mean, momentum=0.9 if optimizer == "momentum" else 0.0)
    elif optimizer in ("adam", "lamb"):
        step = builder.input("step")
        made = (add_adam if optimizer == "adam" else add_lamb)(builder, weight, mean, step)
    else:
        raise ValueError(f"there is no optimizer {optimizer!r}: take sgd, momentum, adam or lamb")
    return builder.build(made)
