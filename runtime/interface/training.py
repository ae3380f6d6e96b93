"""A training script's input to the executor for one rank: its stages, its data, its loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from weft.runtime.interface.precision import MasterWeights
    from weft.runtime.interface.scaling import LossScale

#: The result of a loss function: a mean, or a sum and a count.
Loss: TypeAlias = "Tensor | tuple[Tensor, Tensor | float]"


class Boundary(NamedTuple):
    """Shape and dtype of a tensor that one stage sends to another for one micro-batch.

    A length of ``None`` is unknown in advance: it may differ between micro-batches, and is sent with the message
    (:mod:`weft.runtime.transports.tensors`). Everything else is compared with the stage's result.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype = torch.float32

    @property
    def is_known(self) -> bool:
        """Whether the plan knows every length."""
        return None not in self.shape

    @property
    def known(self) -> tuple[int, ...]:
        """The shape of one that :attr:`is_known`; raises ``ValueError`` otherwise."""
        lengths = tuple(length for length in self.shape if length is not None)
        if len(lengths) != len(self.shape):
            raise ValueError(f"the shape {self.shape} is not known before a micro-batch has come")
        return lengths

    @property
    def nbytes(self) -> int:
        """Bytes of a tensor of that shape; raises ``ValueError`` for an unknown length."""
        return self.dtype.itemsize * math.prod(self.known)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` has this type and, where lengths are known, this shape."""
        return tensor.dtype == self.dtype and len(tensor.shape) == len(self.shape) and all(
            wanted is None or wanted == length for wanted, length in zip(self.shape, tensor.shape, strict=True))

    @property
    def has_gradient(self) -> bool:
        """Whether its type has gradients: floating-point or complex."""
        return self.dtype.is_floating_point or self.dtype.is_complex


class Ports(NamedTuple):
    """The values that a stage's module takes and gives, by name, in the order of its arguments and results."""

    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass
class Training:
    """One rank's part of a training or inference run.

    ``stages``: this rank's modules by stage number. In a chain, each has one input and one output tensor;
    ``boundaries`` has the output of each stage but the last; ``inputs(step, micro_batch)`` is called on the rank of
    stage 0, ``targets(step, micro_batch)`` on that of the last stage, where ``loss(output, target)`` returns the *mean*
    loss of a micro-batch, or ``(sum, count)``.

    In a graph of stages, ``ports`` has the inputs and outputs of every stage, those of other ranks included. A value
    that no stage outputs is data: ``inputs(step, micro_batch)`` has it by name, on each rank that takes it. The values
    named in ``losses`` are scalars, each a mean over the micro-batch, and training minimises their sum; a single one
    may be ``weft.runtime.counted(sum, count)``. ``targets`` and ``loss`` are not used. No gradient is sent back for the
    values in ``untrained``: they depend on no trained parameter, or no loss depends on them. A value in ``doubtful``
    may have no gradient in a batch, and the message then says so; a missing gradient of any other value is zero.
    ``boundaries`` has, by name, every value that goes to another rank.

    The executor divides losses by the number of micro-batches, so that gradients are those of the whole batch if all
    micro-batches have the same count, such as the number of tokens with a label. Otherwise return sums and counts: the
    loss of a batch is then the total of the sums over micro-batches and replicas, divided by that of the counts, and so
    are its gradients. With R replicas of a plan for N micro-batches, a batch has R N micro-batches: replica r requests
    r N to (r + 1) N - 1.

    On a stage of several ranks, each rank's module takes full inputs, and returns full outputs (or the input of the
    next stage on the same ranks) and full input gradients, by its own collectives (:mod:`weft.runtime.train.parallel`).
    Parameters that are a shard of a larger one are marked with :func:`~weft.runtime.train.parallel.sharded`; all others
    are equal, with equal gradients, on all ranks of the stage.

    ``ties``: tied parameters, each entry with the parameter's name in each stage's module. Their gradients are summed
    once per step. After the last backward of a step, and after gradients of ties and replicas have been summed,
    ``after_backward(step)`` is called; then gradients are clipped to a norm over all ranks of at most ``clip_norm``;
    then ``optimizer`` steps. Before each of ``steps`` batches gradients are zeroed in place. With ``masters``, the
    masters have the gradients, and ``optimizer`` must be over ``masters.parameters()``. With
    :class:`~weft.runtime.interface.optim.AdamA` as the optimizer, each micro-batch's gradients are folded into its
    moments and freed as soon as they are complete: ``after_backward`` finds no gradients, and ``clip_norm`` is refused.

    ``fully_shard``: the trained parameters are sharded over the replicas, and ``optimizer`` must be over the shards
    (:mod:`weft.runtime.train.sharding`).

    ``scaling``: losses are scaled before the backward, and a batch with a non-finite gradient is skipped
    (:mod:`weft.runtime.interface.scaling`).

    If the plan offloads a stage, all saved tensors of its forward move to the host, except its inputs; ``offloaded``
    restricts this, by stage, to the tensors that the named submodules are the first to save.

    ``layers``: the names of each stage's layers, in order. If the plan's problem names its layers too, they are
    compared; parameters are always compared (:mod:`weft.runtime.train.agreement`).

    Random operators of a captured model are seeded by ``seed``, which is equal on all ranks, the step, the micro-batch,
    and their number in the model (:mod:`weft.runtime.train.moment`).

    In inference, and for values that no stage takes, ``collect(step, micro_batch, output)`` receives the results: the
    last stage's tensor in a chain, a mapping by name in a graph, once for each stage, on its first rank. Micro-batches
    may end in any order (:class:`weft.runtime.train.requests.Requests` restores the order of requests). Modules and
    data are moved to the session's device.
    """

    stages: Mapping[int, nn.Module]
    boundaries: Sequence[Boundary] | Mapping[str, Boundary]
    inputs: Callable[[int, int], Any]
    targets: Callable[[int, int], Tensor] | None = None
    loss: Callable[[Tensor, Tensor], Loss] | None = None
    optimizer: torch.optim.Optimizer | None = None
    steps: int = 1
    after_backward: Callable[[int], None] | None = None
    collect: Callable[[int, int, Any], None] | None = None
    ports: Mapping[int, Ports] | None = None
    losses: Collection[str] = ("loss",)
    ties: Sequence[Mapping[int, str]] = ()
    clip_norm: float | None = None
    masters: MasterWeights | None = None
    offloaded: Mapping[int, Collection[str]] = field(default_factory=dict)
    layers: Mapping[int, Sequence[str]] = field(default_factory=dict)
    seed: int = 0
    untrained: Collection[str] = ()
    doubtful: Collection[str] = ()
    scaling: LossScale | None = None
    fully_shard: bool = False
