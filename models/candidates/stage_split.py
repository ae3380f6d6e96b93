"""Cutting a chain of layers into stages: the exact best contiguous split under each GPU's memory.

Best means, in this order: the least bottleneck (the largest load, forward and backward, of any GPU); then, with two
stages a GPU, the least load of the largest stage (among splits of equal bottleneck are such with a single layer in
each first stage, and all depth gained by two stages lost); then the least shortfall (the largest of any GPU's memory
need minus its memory), which on equal GPUs is the least peak memory.

The dynamic program goes over the GPUs. A state is what is still to be placed: the layers from one cut on (one stage a
GPU), or the layers between two cuts (two stages a GPU, where GPU s takes the next piece of the first half and the
piece of the second half that goes with it). A limit on load and shortfall prunes it: stages that exceed it are cut
short, since load and need only grow with a stage, and so are states whose remaining layers exceed what the remaining
GPUs can do within the limit. The limit starts at a lower bound and grows until it admits a split; the best within it
is then the best of all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, count
from typing import Literal, NamedTuple, TypeAlias, get_args

from weft.models.candidates.stages import Backward, StageCost, Stages, peak_bytes, static_bytes
from weft.models.layers.costs import LayerCost
from weft.models.spec.quantities import format_bytes
from weft.solver.control.clock import OutOfTime, checkpoint

__all__ = ["SHAPES", "NoSplit", "Shape", "Split", "split_chain", "split_layers", "split_loop", "split_v",
           "stage_device"]

Shape: TypeAlias = Literal["chain", "v", "loop"]
#: In which every stage runs on one GPU.
SHAPES: tuple[Shape, ...] = get_args(Shape)
_State: TypeAlias = tuple[int, int]
_Intervals: TypeAlias = tuple[tuple[int, int], ...]

_UNLIMITED = 10**30
#: By how much a limit grows when it admits no split.
_GROWTH = 1.1
#: After so many limits that admitted none it is asked whether any split fits.
_DOUBT = 3


class NoSplit(ValueError):
    """No split fits into memory.

    What is missing is found when it is asked for, by ``str()`` or by one of these: ``device`` lacks ``missing`` bytes
    in the split that comes closest; ``least`` bytes on that GPU, and as many more on every other one, is the least
    memory with which a split exists. The text leaves that out where time is over before it is found, and they raise
    :class:`~weft.solver.control.clock.OutOfTime` then. ``besides``: what the text says further.
    """

    def __init__(self, search: _Search, memory: Sequence[int]) -> None:
        super().__init__()
        self._search = search
        self._memory = tuple(memory)
        self.besides = ""

    @cached_property
    def _closest(self) -> tuple[int, int]:
        """The GPU that lacks most in the split that comes closest, and how much."""
        rows = [self._search.shortfall(s, row) for s, row in enumerate(self._search.least_shortfall())]
        return rows.index(max(rows)), max(rows)

    @property
    def device(self) -> int:
        return self._closest[0]

    @property
    def missing(self) -> int:
        return self._closest[1]

    @property
    def least(self) -> int:
        return self._memory[self.device] + self.missing

    def __str__(self) -> str:
        what = (f"no split of {len(self._search.stages.layers)} layers onto {len(self._memory)} GPUs "
                f"({self._search.shape}) fits")
        try:
            device, missing = self._closest
        except OutOfTime:
            return f"{what}; how much memory is missing was not found within the time limit{self.besides}"
        needs = ("the least memory per GPU with which a split exists is" if len(set(self._memory)) == 1 else
                 "a split exists if every GPU has that much more, this one")
        return (f"{what}: gpu{device} with its {format_bytes(self._memory[device])} lacks {format_bytes(missing)}; "
                f"{needs} {format_bytes(self.least)}{self.besides}")


@dataclass(frozen=True, slots=True)
class Split:
    """Stage s is layers ``cuts[s]`` to ``cuts[s + 1] - 1`` and runs on GPU ``devices[s]``.

    Per GPU: ``loads`` in seconds for one micro-batch, ``memory`` in bytes, weights and their state included.
    """

    shape: Shape
    stages: tuple[StageCost, ...]
    devices: tuple[int, ...]
    loads: tuple[float, ...]
    memory: tuple[int, ...]

    @property
    def cuts(self) -> tuple[int, ...]:
        """The first layer of every stage, and the number of layers."""
        return (*(stage.first for stage in self.stages), self.stages[-1].last)


def stage_device(shape: Shape, gpus: int) -> tuple[int, ...]:
    """The GPU of each stage. chain: s. v: s, or 2p - 1 - s behind the turn. loop: s modulo p."""
    down = tuple(range(gpus))
    return {"chain": down, "v": down + down[::-1], "loop": down + down}[shape]


def split_chain(layers: Sequence[LayerCost], memory: Sequence[int], in_flight: Sequence[int] | None = None, *,
                backward: Backward = "full", bytes_per_parameter: int = 16, reserve: int = 0) -> Split:
    """One stage on each GPU; see :func:`split_layers`."""
    return split_layers("chain", layers, memory, in_flight, backward=backward,
                        bytes_per_parameter=bytes_per_parameter, reserve=reserve)


def split_v(layers: Sequence[LayerCost], memory: Sequence[int], in_flight: Sequence[int] | None = None, *,
            backward: Backward = "full", bytes_per_parameter: int = 16, reserve: int = 0) -> Split:
    """Stages s and 2p - 1 - s on GPU s; see :func:`split_layers`."""
    return split_layers("v", layers, memory, in_flight, backward=backward,
                        bytes_per_parameter=bytes_per_parameter, reserve=reserve)


def split_loop(layers: Sequence[LayerCost], memory: Sequence[int], in_flight: Sequence[int] | None = None, *,
               backward: Backward = "full", bytes_per_parameter: int = 16, reserve: int = 0) -> Split:
    """Stages s and s + p on GPU s; see :func:`split_layers`."""
    return split_layers("loop", layers, memory, in_flight, backward=backward,
                        bytes_per_parameter=bytes_per_parameter, reserve=reserve)


def split_layers(shape: Shape, layers: Sequence[LayerCost], memory: Sequence[int],
                 in_flight: Sequence[int] | None = None, *, backward: Backward = "full",
                 bytes_per_parameter: int = 16, reserve: int = 0, borders: Iterable[int] = (),
                 least_load: float = 0.0) -> Split:
    """The best split of ``layers`` in ``shape`` onto GPUs with ``memory`` bytes each, ``reserve`` of them kept free.

    ``in_flight``: micro-batches of each stage that hold activations at once; by default 1, the least that any schedule
    needs. ``bytes_per_parameter``: parameter, gradient and optimizer state. ``borders``: layers before which a stage
    must begin. ``least_load``: seconds that the bottleneck is known to take at least, such as that of the best split
    under more memory. Raises :class:`NoSplit` if none fits, and ``ValueError`` if there are fewer layers than stages or
    more borders than ends of stages.
    """
    stage_count = len(stage_device(shape, len(memory)))
    inner = sorted(border for border in set(borders) if 0 < border < len(layers))
    if len(layers) < stage_count:
        raise ValueError(f"{len(layers)} layers cannot fill {stage_count} stages")
    if len(inner) >= stage_count:
        raise ValueError(f"{stage_count} stages cannot end at all of {len(inner)} borders")
    search = _Search(shape, layers, tuple(amount - reserve for amount in memory),
                     tuple(in_flight or (1,) * stage_count), backward, bytes_per_parameter, inner)
    rows = search.best(round(least_load * 1e9))
    if rows is None:
        raise NoSplit(search, memory)
    return search.split(rows)


def _shared(layer: LayerCost, bytes_per_parameter: int, backward: Backward) -> int:
    """What a layer needs that a stage may have already, in bytes."""
    activations = 0 if backward == "none" else sum(size for _, size in layer.shared_activations)
    gradients = sum(size for _, size in layer.held_gradients)
    return activations + gradients + bytes_per_parameter * sum(count for _, count in layer.shared_parameters)


class _Measure(NamedTuple):
    """What a GPU's stages measure: their load and that of the larger one (nanoseconds), the shortfall (bytes)."""

    load: int
    stage: int
    shortfall: int


@dataclass(frozen=True, slots=True)
class _Limits:
    """The most that each field of a :class:`_Measure` may be."""

    load: int
    stage: int
    shortfall: int


class _Search:
    """The dynamic program for one shape, one set of layers and one set of GPUs."""

    def __init__(self, shape: Shape, layers: Sequence[LayerCost], capacity: tuple[int, ...],
                 in_flight: tuple[int, ...], backward: Backward, bytes_per_parameter: int,
                 borders: Sequence[int]) -> None:
        self.shape: Shape = shape
        self.borders = borders
        self.stages = Stages(layers)
        self.capacity = capacity
        self.in_flight = [[count for count, device in zip(in_flight, stage_device(shape, len(capacity)), strict=True)
                           if device == s] for s in range(len(capacity))]
        self.backward: Backward = backward
        self.bytes_per_parameter = bytes_per_parameter
        self.gpus = len(capacity)
        self._singles = [self.stages.stage(i, i + 1) for i in range(len(layers))]
        needs = [static_bytes([one], bytes_per_parameter) + (0 if backward == "none" else one.activation)
                 - _shared(layer, bytes_per_parameter, backward)  # another layer of the stage may count it
                 for layer, one in zip(layers, self._singles, strict=True)]
        # Whichever stage has a layer holds all that the layer needs, shared or not.
        self.largest = max(static_bytes([one], bytes_per_parameter) + (0 if backward == "none" else one.activation)
                           for one in self._singles)
        self.load_before = list(accumulate((one.load for one in self._singles), initial=0))
        self.need_before = list(accumulate(needs, initial=0))
        self.capacity_behind = [sum(capacity[s + 1:]) for s in range(self.gpus)]
        self._shortfalls: dict[tuple[int, _Intervals], int] = {}

    # -- the questions -------------------------------------------------------------------------------------------

    def best(self, least_load: int) -> tuple[_Intervals, ...] | None:
        """The stages of each GPU in the best split that fits, ``None`` if none does; none has a smaller bottleneck than
        ``least_load`` nanoseconds."""
        limits = self._least_load(least_load) if self.largest <= max(self.capacity) else None
        if limits is None:
            return None
        if self.shape != "chain":  # one stage a GPU: its load is the GPU's
            found = self.run("stage", limits)
            assert found is not None  # the split with the least load is within these limits
            limits = replace(limits, stage=found[0])
        found = self.run("shortfall", limits)
        assert found is not None  # and so here
        return found[1]

    def _least_load(self, known: int) -> _Limits | None:
        """The limits within which only splits of the least load are that fit, ``None`` if none does."""
        total = self.load_before[-1]
        heaviest = max(layer.load for layer in self._singles)
        limit = max(-(-total // self.gpus), heaviest, known)
        for tries in count():
            limits = _Limits(min(limit, total), _UNLIMITED, 0)
            found = self.run("load", limits)
            if found is not None:
                return replace(limits, load=found[0])
            if limit >= total or (tries == _DOUBT and self.run("shortfall", _Limits(total, _UNLIMITED, 0)) is None):
                return None
            limit = int(limit * _GROWTH) + 1
        raise AssertionError("a limit that grows reaches the total")

    def least_shortfall(self) -> tuple[_Intervals, ...]:
        """The split whose largest shortfall is least, whatever its load."""
        step = self.need_before[-1] // self.gpus // 16 + 1
        limit = -(-(self.need_before[-1] - sum(self.capacity)) // self.gpus)
        while True:
            found = self.run("shortfall", _Limits(_UNLIMITED, _UNLIMITED, limit))
            if found is not None:
                return found[1]
            limit, step = limit + step, int(step * _GROWTH) + 1

    # -- the dynamic program -------------------------------------------------------------------------------------

    def run(self, goal: str, limits: _Limits) -> tuple[int, tuple[_Intervals, ...]] | None:
        """The least value of the largest ``goal`` (a field of :class:`_Measure`) of any GPU within the limits, and each
        GPU's stages; ``None`` if no split is within the limits."""
        count = len(self.stages.layers)
        turns = range(self.gpus, count - self.gpus + 1) if self.shape == "loop" else (count,)
        best: tuple[int, tuple[_Intervals, ...]] | None = None
        for turn in turns:  # the loop's second half starts there; the other shapes have no such cut to guess
            found = self._run(goal, turn, limits)
            if found is not None:
                best, limits = found, replace(limits, **{goal: found[0] - 1})
        return best

    def _run(self, goal: str, turn: int, limits: _Limits) -> tuple[int, tuple[_Intervals, ...]] | None:
        states: dict[_State, int] = {(0, turn): -_UNLIMITED}
        steps: list[dict[_State, tuple[_State, _Intervals]]] = []
        for s in range(self.gpus):
            following: dict[_State, int] = {}
            step: dict[_State, tuple[_State, _Intervals]] = {}
            for state, value in states.items():
                for target, intervals, measure in self._moves(s, state, turn, limits):
                    reached = max(value, getattr(measure, goal))
                    if target not in following or reached < following[target]:
                        following[target] = reached
                        step[target] = state, intervals
            states = following
            steps.append(step)
        if not states:
            return None
        state = min(states, key=lambda final: (states[final], final))
        value, rows = states[state], []
        for step in reversed(steps):
            state, intervals = step[state]
            rows.append(intervals)
        return value, tuple(reversed(rows))

    def _moves(self, s: int, state: _State, turn: int,
               limits: _Limits) -> Iterator[tuple[_State, _Intervals, _Measure]]:
        """What GPU ``s`` may take next within the limits: the state behind it, its stages and what they measure."""
        checkpoint()
        start = state[0]
        behind = self.gpus - 1 - s
        least = self._remaining(self.load_before, state, turn) - behind * limits.load  # those behind cannot carry that
        # What the GPUs behind could carry if the rest were divisible at will.
        most_load, most_need = behind * limits.load, self.capacity_behind[s] + behind * limits.shortfall
        for first_end in self._first_ends(state, turn, behind):
            first_load = self.load_before[first_end] - self.load_before[start]
            if first_load > min(limits.load, limits.stage) or (self.borders and self._crosses(start, first_end)):
                break
            for target, second in self._seconds(state, first_end, turn, behind, least - first_load):
                second_load = 0 if second is None else self.load_before[second[1]] - self.load_before[second[0]]
                if first_load + second_load > limits.load or second_load > limits.stage:
                    break
                if second is not None and self.borders and self._crosses(*second):
                    break
                if (self._remaining(self.need_before, target, turn) > most_need
                        or self._remaining(self.load_before, target, turn) > most_load):
                    continue
                intervals = ((start, first_end),) if second is None else ((start, first_end), second)
                shortfall = self.shortfall(s, intervals)
                if shortfall > limits.shortfall:
                    break
                yield target, intervals, _Measure(first_load + second_load, max(first_load, second_load), shortfall)

    def _first_ends(self, state: _State, turn: int, behind: int) -> range:
        """Ends of the next GPU's first stage, the nearest first."""
        start, other = state
        if self.shape == "v":
            return range(start + 1, other - 2 * behind)
        return range(turn, turn + 1) if behind == 0 else range(start + 1, turn - behind + 1)

    def _seconds(self, state: _State, first_end: int, turn: int, behind: int,
                 least: int) -> Iterator[tuple[_State, tuple[int, int] | None]]:
        """The second stages that go with a first one, the smallest first, from a load of ``least`` on."""
        other = state[1]
        if self.shape == "chain":
            yield (first_end, turn), None
        elif self.shape == "v":
            begin = min(other - 1, bisect_right(self.load_before, self.load_before[other] - least) - 1)
            starts = (first_end,) if behind == 0 else range(begin, first_end + 2 * behind - 1, -1)
            for second_start in starts:
                yield (first_end, second_start), (second_start, other)
        else:
            count = len(self.stages.layers)
            begin = max(other + 1, bisect_left(self.load_before, self.load_before[other] + least))
            ends = (count,) if behind == 0 else range(begin, count - behind + 1)
            for second_end in ends:
                yield (first_end, second_end), (other, second_end)

    def _crosses(self, first: int, last: int) -> bool:
        """Whether a border is inside the stage of layers ``first`` to ``last - 1``."""
        return bool(self.borders) and bisect_right(self.borders, first) < bisect_left(self.borders, last)

    def _remaining(self, before: Sequence[int], state: _State, turn: int) -> int:
        """What the layers still to be placed come to, by the sums ``before`` each layer."""
        start, other = state
        if self.shape == "loop":
            return before[turn] - before[start] + before[-1] - before[other]
        return before[other] - before[start]

    def _load(self, first: int, last: int) -> int:
        return self.load_before[last] - self.load_before[first]

    # -- one GPU -------------------------------------------------------------------------------------------------

    def shortfall(self, s: int, intervals: _Intervals) -> int:
        """What GPU ``s`` lacks with these stages, in bytes; negative: what it has to spare."""
        key = (s, intervals)
        if key not in self._shortfalls:
            stages = [self.stages.stage(first, last) for first, last in intervals]
            self._shortfalls[key] = static_bytes(stages, self.bytes_per_parameter) + peak_bytes(
                stages, self.in_flight[s], self.backward) - self.capacity[s]
        return self._shortfalls[key]

    def split(self, rows: tuple[_Intervals, ...]) -> Split:
        """The split in which GPU s holds the stages ``rows[s]``."""
        intervals = sorted(interval for row in rows for interval in row)
        return Split(
            self.shape,
            tuple(self.stages.stage(first, last) for first, last in intervals),
            stage_device(self.shape, self.gpus),
            tuple(round(sum(self._load(*interval) for interval in row) * 1e-9, 9) for row in rows),
            tuple(self.shortfall(s, row) + self.capacity[s] for s, row in enumerate(rows)))
