"""Steps of optimizers as pointwise stages and norms: what follows the all-reduce of a gradient."""

from __future__ import annotations

from weft.models.communication.builder import Builder
from weft.models.communication.program import Program

__all__ = ["add_adam", "add_lamb", "add_sgd", "data_parallel"]

#: Decay of the means of gradients and of their squares, and what keeps the root from 0.
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
    """Adam (Kingma and Ba, ICLR 2015) with states ``WEIGHT.mean`` and ``WEIGHT.square``; ``step`` is a number, from 1
    on. The new weight's name."""
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


def data_parallel(optimizer: str, ranks: int, shape: tuple[int, ...], *, itemsize: int = 4) -> Program:
    """One weight's update behind the all-reduce of its gradient, which every rank has made of its own batch.

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
