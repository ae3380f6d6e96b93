"""The dynamic program behind :mod:`weft.models.candidates.stage_split`.

The dynamic program goes over the GPUs. A state is the set of layers still to be placed: the layers from one cut on (one
stage a GPU), or the layers between two cuts (two stages a GPU, where GPU s takes the next piece of the first half and
the matching piece of the second half). A limit on load and shortfall prunes it: stages beyond it are discarded, since
load and memory only grow with a stage, and so are states whose remaining layers exceed the remaining GPUs' capacity
within the limit. The limit starts at a lower bound and grows until it admits a split; the best within it is then the
best of all.

GPUs may be unequal: a layer then has a load on each, and its *work* is the least of these. A GPU's *pace* is the
largest ratio of a layer's work to its load there: in a time t the GPU does at most its pace times t of work, for any
layers. So the remaining work must not exceed the limit set by the paces of the later GPUs. If all GPUs are alike, work
is load and all paces are 1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, count
from math import ceil
from typing import NamedTuple, TypeAlias

from weft.models.candidates.stages import Backward, MemoryRule, Shape, Stages, peak_bytes, stage_device, static_bytes
from weft.models.layers.costs import LayerCost
from weft.solver.control.clock import checkpoint

_State: TypeAlias = tuple[int, int]
#: The stages of one GPU: first layer and end of each.
Intervals: TypeAlias = tuple[tuple[int, int], ...]

_UNLIMITED = 10**30
#: The factor by which a limit grows when it admits no split.
_GROWTH = 1.1
#: After this many limits without a split, a run without a limit on the load determines whether any split fits.
_DOUBT = 3


class _Measure(NamedTuple):
    """Measures of a GPU's stages: their load and that of the larger one (nanoseconds), the shortfall (bytes)."""

    load: int
    stage: int
    shortfall: int


@dataclass(frozen=True, slots=True)
class _Limits:
    """The maximum of each field of a :class:`_Measure`."""

    load: int
    stage: int
    shortfall: int


class SplitSearch:
    """The dynamic program for one shape, each GPU's layer costs, and the memory of each GPU.

    Layers differ between GPUs only in their times.
    """

    def __init__(self, shape: Shape, layers: Sequence[Sequence[LayerCost]], memory: Sequence[int],
                 in_flight: Sequence[int], rule: MemoryRule, borders: Sequence[int]) -> None:
        backward, bytes_per_parameter = rule.backward, rule.bytes_per_parameter
        capacity = tuple(amount - rule.reserve for amount in memory)
        self.shape: Shape = shape
        self.borders = borders
        self.capacity = capacity
        self.in_flight = [[count for count, device in zip(in_flight, stage_device(shape, len(capacity)), strict=True)
                           if device == s] for s in range(len(capacity))]
        self.rule = rule
        self.gpus = len(capacity)
        self.layer_count = len(layers[0])
        kinds = {id(own): Stages(own) for own in layers}
        #: The stages of each GPU; GPUs of one kind share them.
        self.stages = [kinds[id(own)] for own in layers]
        singles = [self.stages[0].stage(i, i + 1) for i in range(self.layer_count)]
        needs = [static_bytes([one], bytes_per_parameter) + (0 if backward == "none" else one.activation)
                 - _shared(layer, bytes_per_parameter, backward)  # another layer of the stage may count it
                 for layer, one in zip(layers[0], singles, strict=True)]
        # The stage of a layer holds everything that the layer needs, shared or not.
        self.largest = max(static_bytes([one], bytes_per_parameter) + (0 if backward == "none" else one.activation)
                           for one in singles)
        self.need_before = list(accumulate(needs, initial=0))
        self.capacity_behind = [sum(capacity[s + 1:]) for s in range(self.gpus)]
        self._shortfalls: dict[tuple[int, Intervals], int] = {}
        self._set_loads(list(kinds), kinds, [id(own) for own in layers])

    def _set_loads(self, order: Sequence[int], kinds: Mapping[int, Stages], kind_of: Sequence[int]) -> None:
        """Sums of loads on each GPU and of work, and the paces of the GPUs after each."""
        loads = {kind: [kinds[kind].stage(i, i + 1).load for i in range(self.layer_count)] for kind in order}
        work = [min(own) for own in zip(*loads.values(), strict=True)]
        before = {kind: list(accumulate(own, initial=0)) for kind, own in loads.items()}
        self.load_before = [before[kind] for kind in kind_of]
        self.work_before = list(accumulate(work, initial=0))
        self.heaviest = max(work)
        pace = {kind: max((Fraction(least, load) for least, load in zip(work, own, strict=True) if load),
                          default=Fraction(1)) for kind, own in loads.items()}
        paces = [pace[kind] for kind in kind_of]
        self.pace = sum(paces, Fraction(0))
        self.pace_behind = [sum(paces[s + 1:], Fraction(0)) for s in range(self.gpus)]

    # -- the questions -------------------------------------------------------------------------------------------

    def best(self, least_load: int) -> tuple[Intervals, ...] | None:
        """The stages of each GPU in the best split that fits, ``None`` if none does; ``least_load``: a lower bound on
        the bottleneck in nanoseconds."""
        limits = self._least_load(least_load) if self.largest <= max(self.capacity) else None
        if limits is None:
            return None
        if self.shape != "chain":  # one stage a GPU: its load equals the GPU's
            found = self.run("stage", limits)
            assert found is not None  # the split with the least load is within these limits
            limits = replace(limits, stage=found[0])
        found = self.run("shortfall", limits)
        assert found is not None  # and so here
        return found[1]

    def _least_load(self, known: int) -> _Limits | None:
        """The limits that admit only fitting splits of the least load, ``None`` if none fits."""
        total = max(before[-1] for before in self.load_before)
        limit = max(ceil(self.work_before[-1] / self.pace), self.heaviest, known)
        for tries in count():
            limits = _Limits(min(limit, total), _UNLIMITED, 0)
            found = self.run("load", limits)
            if found is not None:
                return replace(limits, load=found[0])
            if limit >= total or (tries == _DOUBT and self.run("shortfall", _Limits(total, _UNLIMITED, 0)) is None):
                return None
            limit = int(limit * _GROWTH) + 1
        raise AssertionError("a limit that grows reaches the total")

    def least_shortfall(self) -> tuple[Intervals, ...]:
        """The split with the least largest shortfall, for any load."""
        step = self.need_before[-1] // self.gpus // 16 + 1
        limit = -(-(self.need_before[-1] - sum(self.capacity)) // self.gpus)
        while True:
            found = self.run("shortfall", _Limits(_UNLIMITED, _UNLIMITED, limit))
            if found is not None:
                return found[1]
            limit, step = limit + step, int(step * _GROWTH) + 1

    # -- the dynamic program -------------------------------------------------------------------------------------

    def run(self, goal: str, limits: _Limits) -> tuple[int, tuple[Intervals, ...]] | None:
        """The least value of the largest ``goal`` (a field of :class:`_Measure`) of any GPU within the limits, and each
        GPU's stages; ``None`` if no split is within the limits."""
        count = self.layer_count
        # The loop's second half starts at one of these layers; the other shapes have no such cut to guess.
        halves = range(self.gpus, count - self.gpus + 1) if self.shape == "loop" else (count,)
        best: tuple[int, tuple[Intervals, ...]] | None = None
        for half in halves:
            found = self._run(goal, half, limits)
            if found is not None:
                best, limits = found, replace(limits, **{goal: found[0] - 1})
        return best

    def _run(self, goal: str, half: int, limits: _Limits) -> tuple[int, tuple[Intervals, ...]] | None:
        states: dict[_State, int] = {(0, half): -_UNLIMITED}
        steps: list[dict[_State, tuple[_State, Intervals]]] = []
        for s in range(self.gpus):
            following: dict[_State, int] = {}
            step: dict[_State, tuple[_State, Intervals]] = {}
            for state, value in states.items():
                for target, intervals, measure in self._moves(s, state, half, limits):
                    reached = max(value, getattr(measure, goal))
                    if target not in following or reached < following[target]:
                        following[target] = reached
                        step[target] = state, intervals
            states = following
            steps.append(step)
        if not states:
            return None
        state = min(states, key=lambda final: (states[final], final))
        value, found = states[state], []
        for step in reversed(steps):
            state, intervals = step[state]
            found.append(intervals)
        return value, tuple(reversed(found))

    def _moves(self, s: int, state: _State, half: int,
               limits: _Limits) -> Iterator[tuple[_State, Intervals, _Measure]]:
        """The possible moves of GPU ``s`` within the limits: the next state, its stages and their measures."""
        checkpoint()
        start = state[0]
        behind, load_before, pace = self.gpus - 1 - s, self.load_before[s], self.pace_behind[s]
        # The capacity of the later GPUs if the rest were arbitrarily divisible.
        most_work = limits.load * pace.numerator // pace.denominator
        most_need = self.capacity_behind[s] + behind * limits.shortfall
        least = self._remaining(self.work_before, state, half) - most_work + self.work_before[start]
        for first_end in self._first_ends(state, half, behind):
            first_load = load_before[first_end] - load_before[start]
            if first_load > min(limits.load, limits.stage) or (self.borders and self._crosses(start, first_end)):
                break
            for target, second in self._seconds(state, first_end, half, behind, least - self.work_before[first_end]):
                second_load = 0 if second is None else load_before[second[1]] - load_before[second[0]]
                if first_load + second_load > limits.load or second_load > limits.stage:
                    break
                if second is not None and self.borders and self._crosses(*second):
                    break
                if (self._remaining(self.need_before, target, half) > most_need
                        or self._remaining(self.work_before, target, half) > most_work):
                    continue
                intervals = ((start, first_end),) if second is None else ((start, first_end), second)
                shortfall = self.shortfall(s, intervals)
                if shortfall > limits.shortfall:
                    break
                yield target, intervals, _Measure(first_load + second_load, max(first_load, second_load), shortfall)

    def _first_ends(self, state: _State, half: int, behind: int) -> range:
        """Ends of the next GPU's first stage, the nearest first."""
        start, other = state
        if self.shape == "v":
            return range(start + 1, other - 2 * behind)
        return range(half, half + 1) if behind == 0 else range(start + 1, half - behind + 1)

    def _seconds(self, state: _State, first_end: int, half: int, behind: int,
                 least: int) -> Iterator[tuple[_State, tuple[int, int] | None]]:
        """The second stages that go with a first one, the smallest first, from ``least`` work on."""
        other, before = state[1], self.work_before
        if self.shape == "chain":
            yield (first_end, half), None
        elif self.shape == "v":
            begin = min(other - 1, bisect_right(before, before[other] - least) - 1)
            starts = (first_end,) if behind == 0 else range(begin, first_end + 2 * behind - 1, -1)
            for second_start in starts:
                yield (first_end, second_start), (second_start, other)
        else:
            count = self.layer_count
            begin = max(other + 1, bisect_left(before, before[other] + least))
            ends = (count,) if behind == 0 else range(begin, count - behind + 1)
            for second_end in ends:
                yield (first_end, second_end), (other, second_end)

    def _crosses(self, first: int, last: int) -> bool:
        """Whether a border is inside the stage of layers ``first`` to ``last - 1``."""
        return bool(self.borders) and bisect_right(self.borders, first) < bisect_left(self.borders, last)

    def _remaining(self, before: Sequence[int], state: _State, half: int) -> int:
        """The total of the layers still to be placed, by the sums ``before`` each layer."""
        start, other = state
        if self.shape == "loop":
            return before[half] - before[start] + before[-1] - before[other]
        return before[other] - before[start]

    # -- one GPU -------------------------------------------------------------------------------------------------

    def load(self, s: int, intervals: Intervals) -> int:
        """Nanoseconds that GPU ``s`` computes for one micro-batch with these stages."""
        return sum(self.load_before[s][last] - self.load_before[s][first] for first, last in intervals)

    def shortfall(self, s: int, intervals: Intervals) -> int:
        """The missing memory of GPU ``s`` with these stages, in bytes; negative if there is some to spare."""
        key = (s, intervals)
        if key not in self._shortfalls:
            stages = [self.stages[s].stage(first, last) for first, last in intervals]
            self._shortfalls[key] = static_bytes(stages, self.rule.bytes_per_parameter) + peak_bytes(
                stages, self.in_flight[s], self.rule.backward) - self.capacity[s]
        return self._shortfalls[key]


def _shared(layer: LayerCost, bytes_per_parameter: int, backward: Backward) -> int:
    """The part of a layer's memory that a stage may already have, in bytes."""
    activations = 0 if backward == "none" else sum(size for _, size in layer.shared_activations)
    gradients = sum(size for _, size in layer.held_gradients)
    return activations + gradients + bytes_per_parameter * sum(count for _, count in layer.shared_parameters)
