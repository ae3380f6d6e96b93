"""The cheapest way from one layout of a tensor to another: a shortest path over what devices hold.

Within a group the states are all that the steps reach from the first layout; a ``send`` ends the way where pieces are
not on the devices that need them. Between two groups one ``send`` crosses, with any steps in the first group before it
and any in the second behind it. What a step costs is its price plus a billionth of a second for its being one: of equal
ways the one of fewer steps is taken.

What the steps of a conversion cost on a cluster: latency and bytes over bandwidth, collectives as rings by tiers.

A collective is priced for one group; the groups of a step run at once, and the slowest sets the pace.
Messages between pairs take as long as the device that sends or receives most. Slices, and what is done on each device
alone, take no time.
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
    """``steps`` in order, none where nothing is to be done; ``seconds``: what they cost together."""

    source: Placed
    target: Placed
    steps: tuple[LayoutStep, ...]
    seconds: float

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is done, in order."""
        return tuple(step.kind for step in self.steps)

    def __str__(self) -> str:
        way = " -> ".join(f"{step.kind} -> {step.after.layout}" for step in self.steps)
        return f"{self.source.layout}{' -> ' if way else ''}{way}"


def convert(source: Placed, target: Placed | Layout, shape: Sequence[int], itemsize: int,
            prices: LayoutPrices) -> Conversion:
    """The cheapest way from ``source`` to ``target`` for a tensor of ``shape`` with elements of ``itemsize`` bytes.

    A target that is a :class:`~weft.models.layouts.layout.Layout` may end on any of its arrangements within the group
    of ``source``. Raises :class:`LayoutError` for layouts that the tensor cannot have, and where no way leads there.
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
    """What a step costs."""
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
    """Of messages, source, target and bytes of each, what the device that sends most sends."""
    out: Counter[int] = Counter()
    for source, target, size in sent:
        out[source] += size if source != target else 0
    return max(out.values(), default=0)


class LayoutPrices(Protocol):
    """Seconds of what devices do together."""

    def collective(self, kind: Collective, size: int, group: Sequence[int]) -> float:
        """One collective of ``group``; ``size``: bytes that each of them holds before."""

    def messages(self, sent: Iterable[tuple[int, int, int]]) -> float:
        """Messages at once: source, target and bytes of each. From a device to itself nothing is sent."""


@dataclass(frozen=True, slots=True)
class RingPrices:
    """Rings over the links of ``network``: at the shares of their rates that a ``device`` reaches, else all of them."""

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
    """Of devices of a kind, of which ``per_machine`` stand in each machine."""
    return RingPrices(network_of(device, per_machine), device)


def uniform(latency: float = 1e-5, bandwidth: float = 1e10) -> RingPrices:
    """Devices that are all joined alike: seconds before a message arrives, bytes per second."""
    link = AffineLink(latency, bandwidth)
    return RingPrices(two_tiers(link, link, 1 << 30))
