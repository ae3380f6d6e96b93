"""The cheapest conversion from one layout of a tensor to another: a shortest path over placed layouts.

Within a group the states are all layouts reachable by steps from the first; a final ``send`` moves pieces that are not
on the devices that need them. Between two groups one ``send`` crosses, with any steps in the first group before it and
any in the second after it. A step costs its price plus a billionth of a second: among equal conversions the one with
fewer steps is chosen.

The costs of conversion steps on a cluster: latency and bytes over bandwidth, collectives as rings by tiers.

A collective is priced for one group; the groups of a step run concurrently, and the slowest determines the time.
Messages between pairs take the time of the device that sends or receives most. Slices and local operations take no
time.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from weft.models.hardware.devices import DeviceType
from weft.models.layers.cluster import AffineLink, Network, two_tiers
from weft.models.layers.collectives import Collective, group_time, network_of
from weft.models.layouts.layout import Layout, LayoutError, Placed, volume
from weft.models.layouts.steps import LayoutStep, crossings, moves, relocation

_HOP = 1e-9


@dataclass(frozen=True)
class Conversion:
    """``steps`` in order, none if nothing has to be done; ``seconds``: their total cost."""

    source: Placed
    target: Placed
    steps: tuple[LayoutStep, ...]
    seconds: float

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of steps, in order."""
        return tuple(step.kind for step in self.steps)

    def __str__(self) -> str:
        way = " -> ".join(f"{step.kind} -> {step.after.layout}" for step in self.steps)
        return f"{self.source.layout}{' -> ' if way else ''}{way}"


def convert(source: Placed, target: Placed | Layout, shape: Sequence[int], itemsize: int,
            prices: LayoutPrices) -> Conversion:
    """The cheapest conversion from ``source`` to ``target`` for a tensor of ``shape`` with elements of ``itemsize``
    bytes.

    A target that is a :class:`~weft.models.layouts.layout.Layout` may end on any of its arrangements within the group
    of ``source``. Raises :class:`LayoutError` for layouts impossible for the tensor, and if there is no conversion.
    """
    wanted = target if isinstance(target, Layout) else target.layout
    source.layout.require(shape)
    wanted.require(shape)
    if isinstance(target, Layout) and target.devices != len(source.devices):
        raise LayoutError(f"the layout {target} takes {target.devices} devices, there are {len(source.devices)}")

    def reached(state: Placed) -> bool:
        return state.layout == target if isinstance(target, Layout) else state == target

    counter = itertools.count()
    best: dict[Placed, float] = {source: 0.0}
    came: dict[Placed, LayoutStep] = {}
    queue: list[tuple[float, int, Placed]] = [(0.0, next(counter), source)]
    while queue:
        cost, _, state = heapq.heappop(queue)
        if cost > best[state]:
            continue
        if reached(state):
            steps = _way(came, source, state)
            return Conversion(source, state, steps, sum(step_seconds(step, shape, itemsize, prices) for step in steps))
        for step in _steps(state, target, shape):
            price = cost + step_seconds(step, shape, itemsize, prices) + _HOP
            if price < best.get(step.after, float("inf")):
                best[step.after], came[step.after] = price, step
                heapq.heappush(queue, (price, next(counter), step.after))
    raise LayoutError(f"no way leads from {source.layout} to {wanted}")


def _steps(state: Placed, target: Placed | Layout, shape: Sequence[int]) -> Iterator[LayoutStep]:
    yield from moves(state, shape, None if isinstance(target, Layout) else target)
    if isinstance(target, Layout):
        return
    if state.devices != target.devices:
        yield from crossings(state, target.devices, shape, target)
    elif state.layout == target.layout:
        yield relocation(state, target, shape)


def _way(came: dict[Placed, LayoutStep], source: Placed, state: Placed) -> tuple[LayoutStep, ...]:
    steps: list[LayoutStep] = []
    while state != source:
        steps.append(came[state])
        state = steps[-1].before
    return tuple(reversed(steps))


def step_seconds(step: LayoutStep, shape: Sequence[int], itemsize: int, prices: LayoutPrices) -> float:
    """The cost of a step."""
    if step.kind == "slice" or step.kind == "term":
        return 0.0
    if step.kind == "send":
        return prices.messages((m.source, m.target, volume(m.box) * itemsize) for m in step.messages)
    size = step.before.layout.elements(shape) * itemsize
    return max(prices.collective(step.kind, size, group) for group in step.groups)


def step_bytes(step: LayoutStep, shape: Sequence[int], itemsize: int) -> int:
    """Bytes that the busiest device sends, collectives as rings."""
    size, k = step.before.layout.elements(shape) * itemsize, step.parts
    if step.kind in ("slice", "term"):
        return 0
    if step.kind == "send":
        return busiest((m.source, m.target, volume(m.box) * itemsize) for m in step.messages)
    if step.kind == "all_gather":
        return size * (k - 1)
    return -(-size // k) * (k - 1) * (2 if step.kind == "all_reduce" else 1)


def busiest(sent: Iterable[tuple[int, int, int]]) -> int:
    """The bytes of the device that sends most, for messages given by source, target and bytes."""
    out: Counter[int] = Counter()
    for source, target, size in sent:
        out[source] += size if source != target else 0
    return max(out.values(), default=0)


class LayoutPrices(Protocol):
    """Seconds of communication."""

    def collective(self, kind: Collective, size: int, group: Sequence[int]) -> float:
        """One collective of ``group``; ``size``: bytes on each of them before."""

    def messages(self, sent: Iterable[tuple[int, int, int]]) -> float:
        """Concurrent messages: source, target and bytes of each. Messages from a device to itself are free."""


@dataclass(frozen=True, slots=True)
class RingPrices:
    """Rings over the links of ``network``: at the shares of their rates attained by ``device``, else at full rate."""

    network: Network
    device: DeviceType | None = None

    def collective(self, kind: Collective, size: int, group: Sequence[int]) -> float:
        """As :func:`~weft.models.layers.collectives.group_time`."""
        return group_time(kind, size, group, self.network, self.device).seconds

    def messages(self, sent: Iterable[tuple[int, int, int]]) -> float:
        """The link's time for the bytes of the busiest end; the slowest pair's link for all of them."""
        out: Counter[int] = Counter()
        come: Counter[int] = Counter()
        slowest: set[int] = set()
        for source, target, size in sent:
            if source != target and size:
                out[source] += size
                come[target] += size
                slowest.add(self.network.tier((source, target)))
        most = max((*out.values(), *come.values()), default=0)
        return max((self.network.tiers[index].seconds(most, len(out)) for index in slowest), default=0.0)


def device_prices(device: DeviceType, per_machine: int) -> RingPrices:
    """Prices of devices of a kind, with ``per_machine`` in each machine."""
    return RingPrices(network_of(device, per_machine), device)


def uniform(latency: float = 1e-5, bandwidth: float = 1e10) -> RingPrices:
    """Uniformly connected devices: seconds before a message arrives, bytes per second."""
    link = AffineLink(latency, bandwidth)
    return RingPrices(two_tiers(link, link, 1 << 30))
