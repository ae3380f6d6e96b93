"""Today's frameworks in a step with the whole model on every GPU, at the same costs as weft's own steps.

Gradients fill buckets of 25 MiB from the last layer to the first, and a bucket's collective starts when the backward of
the last micro-batch has completed it; collectives run in sequence on the network, beside the backward. Before the last
micro-batch gradients are only accumulated.

* ``ddp``: an all-reduce of each bucket, then one update of all parameters on every GPU (DistributedDataParallel).
* ``zero-1``: a reduce-scatter of each bucket, then one update of each GPU's slice, then an all-gather of each bucket's
  parameters. Within a step the gathers come at its end; between steps they run beside the next forward, which waits for
  each bucket where it needs it (ZeRO-1 with both overlaps; optimizer state is 1/N on each GPU).

Within a layer, gradients are assumed to be produced evenly over its backward, and parameters needed evenly over its
forward: no later than in frameworks. Orders are fixed here, so times are sums and maxima, without a search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.models.candidates.stages import StageCost
from weft.models.overlap.data_parallel import StepCosts, held_bytes, layer_groups, why_too_large
from weft.models.overlap.flow import each_beside
from weft.models.spec.sections import Spec

#: A bucket of DistributedDataParallel by default; ZeRO-1 is given the same.
BUCKET_BYTES = 25 * 2**20
#: More than the layers of any model: each is a separate group.
_ALL_LAYERS = 1 << 20
#: Short descriptions.
FRAMEWORKS = {"ddp": "all-reduce in 25 MiB buckets beside the backward, as DDP does",
              "zero-1": "reduce-scatter in 25 MiB buckets beside the backward, all-gather, as overlapped ZeRO-1 does"}


@dataclass(frozen=True, slots=True)
class FrameworkStep:
    """``name``: one of :data:`FRAMEWORKS`. ``makespan``: seconds of one step, until all parameters are everywhere;
    ``period``: seconds between steps that follow each other. Both ``None`` if memory is insufficient. ``buckets``:
    their number."""

    name: str
    makespan: float | None
    period: float | None
    buckets: int


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Seconds of its layers' forward and backward in one micro-batch, and its parameters."""

    forward: float
    backward: float
    parameters: int


def framework_steps(spec: Spec, micro_batches: int | None = None) -> tuple[FrameworkStep, ...]:
    """Each of :data:`FRAMEWORKS` on ``spec``, for which the whole model can be on every GPU (see
    :func:`weft.models.overlap.data_parallel.why_not_data_parallel`)."""
    costs = StepCosts(spec)
    layers = layer_groups(spec, _ALL_LAYERS)
    buckets = _buckets(layers, max(1, BUCKET_BYTES // costs.run.gradient_bytes))
    forward, backward = sum(bucket.forward for bucket in buckets), sum(bucket.backward for bucket in buckets)
    each = (micro_batches or costs.run.micro_batches) // spec.cluster.gpus
    begin = (each - 1) * (forward + backward) + forward
    found = []
    for name, step, sliced in (("ddp", _ddp, False), ("zero-1", _zero, True)):
        fits = why_too_large(spec, layers, held_bytes(spec, sliced=sliced)) is None
        makespan, period = step(costs, buckets, begin) if fits else (None, None)
        found.append(FrameworkStep(name, makespan, period, len(buckets)))
    return tuple(found)


def _ddp(costs: StepCosts, buckets: Sequence[_Bucket], begin: float) -> tuple[float, float]:
    """Makespan and period; the last backward begins at ``begin``."""
    sums = [costs.seconds("all_reduce", bucket.parameters * costs.run.gradient_bytes) for bucket in buckets]
    backwards = [bucket.backward for bucket in buckets]
    done = each_beside(backwards, sums, begin=begin) + costs.update(sum(bucket.parameters for bucket in buckets))
    return done, done


def _zero(costs: StepCosts, buckets: Sequence[_Bucket], begin: float) -> tuple[float, float]:
    """As :func:`_ddp`."""
    sums = [costs.seconds("reduce_scatter", bucket.parameters * costs.run.gradient_bytes) for bucket in buckets]
    slices = [-(-bucket.parameters // costs.spec.cluster.gpus) for bucket in buckets]
    updated = each_beside([bucket.backward for bucket in buckets], sums, begin=begin) + costs.update(sum(slices))
    gathers = [costs.seconds("all_gather", own * costs.run.parameter_bytes) for own in slices]
    forwards = [bucket.forward for bucket in reversed(buckets)]
    waited = each_beside(forwards, gathers[::-1], ahead=True) - sum(forwards)
    return updated + sum(gathers), updated + max(0.0, waited)


def _buckets(layers: Sequence[StageCost], most: int) -> list[_Bucket]:
    """The gradients of ``layers`` in buckets of ``most`` parameters, the last layer's first."""
    found: list[_Bucket] = []
    forward = backward = 0.0
    parameters = 0
    for share_forward, share_backward, count in _pieces(layers, most):
        if parameters + count > most:
            found.append(_Bucket(forward, backward, parameters))
            forward = backward = 0.0
            parameters = 0
        forward, backward, parameters = forward + share_forward, backward + share_backward, parameters + count
    return [*found, _Bucket(forward, backward, parameters)]


def _pieces(layers: Sequence[StageCost], most: int) -> Iterator[tuple[float, float, int]]:
    """Seconds of forward and of backward, and parameters, of pieces of layers that fill buckets, the last first."""
    room = most
    for layer in reversed(layers):
        left, forward, backward = layer.parameters, layer.forward * 1e-9, layer.backward * 1e-9
        if not left:
            yield forward, backward, 0
        while left:
            count = min(left, room)
            share = count / layer.parameters
            yield forward * share, backward * share, count
            left, room = left - count, room - count or most
