"""Cutting a chain of layers into stages: the exact best contiguous split under each GPU's memory.

Best means, in this order: the least bottleneck (the largest load, forward and backward, of any GPU); then, with two
stages a GPU, the least load of the largest stage (some splits of equal bottleneck have a single layer in each first
stage, which loses the benefit of two stages); then the least shortfall (the largest of any GPU's memory need minus its
memory), which on equal GPUs is the least peak memory.

GPUs may be unequal in memory and in the time that layers take on them. Stages go down them in the order in which they
are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from weft.models.candidates.split_search import Intervals, SplitSearch
from weft.models.candidates.stages import (
    MemoryRule,
    Shape,
    StageCost,
    Stages,
    peak_bytes,
    stage_device,
    static_bytes,
)
from weft.models.layers.costs import LayerCost
from weft.models.spec.quantities import format_bytes
from weft.solver.control.clock import OutOfTime

_DEFAULT_RULE = MemoryRule()


class NoSplit(ValueError):
    """No split fits into memory.

    The missing memory is computed on first use of ``str()`` or of one of these: ``device`` lacks ``missing`` bytes in
    the closest split; ``least`` bytes on that GPU, with the same increase on every other one, is the least memory with
    which a split exists. If time is over first, the text omits it, and they raise
    :class:`~weft.solver.control.clock.OutOfTime`. ``besides``: additional text.
    """

    def __init__(self, search: SplitSearch, memory: Sequence[int]) -> None:
        super().__init__()
        self._search = search
        self._memory = tuple(memory)
        self.besides = ""

    @cached_property
    def _closest(self) -> tuple[int, int]:
        """The GPU with the largest shortfall in the closest split, and its amount."""
        lacking = [self._search.shortfall(s, own) for s, own in enumerate(self._search.least_shortfall())]
        return lacking.index(max(lacking)), max(lacking)

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
        what = (f"no split of {self._search.layer_count} layers onto {len(self._memory)} GPUs "
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
class StageSplit:
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


def split_layers(shape: Shape, layers: Sequence[LayerCost] | Sequence[Sequence[LayerCost]], memory: Sequence[int],
                 in_flight: Sequence[int] | None = None, rule: MemoryRule = _DEFAULT_RULE, *,
                 borders: Iterable[int] = (), least_load: float = 0.0) -> StageSplit:
    """The best split of ``layers`` in ``shape`` onto GPUs with ``memory`` bytes each.

    ``layers``: first to last; or, for unequal GPUs, the same layers for each GPU, which differ only in their times (one
    object for GPUs of one kind saves time). ``in_flight``: micro-batches of each stage with activations at once; by
    default 1, the least that any schedule needs. ``rule``: the memory needs of stages. ``borders``: layers before which
    a stage must begin. ``least_load``: a known lower bound on the bottleneck in seconds, such as that of the best split
    under more memory. Raises :class:`NoSplit` if none fits, and ``ValueError`` if there are fewer layers than stages or
    more borders than ends of stages.
    """
    stage_count = len(stage_device(shape, len(memory)))
    by_gpu = _by_gpu(layers, len(memory))
    count = len(by_gpu[0])
    inner = sorted(border for border in set(borders) if 0 < border < count)
    if count < stage_count:
        raise ValueError(f"{count} layers cannot fill {stage_count} stages")
    if len(inner) >= stage_count:
        raise ValueError(f"{stage_count} stages cannot end at all of {len(inner)} borders")
    search = SplitSearch(shape, by_gpu, memory, in_flight or (1,) * stage_count, rule, inner)
    found = search.best(round(least_load * 1e9))
    if found is None:
        raise NoSplit(search, memory)
    return _split_of(search, found)


def split_at(shape: Shape, layers: Sequence[LayerCost] | Sequence[Sequence[LayerCost]], cuts: Sequence[int],
             memory: Sequence[int], in_flight: Sequence[int] | None = None,
             rule: MemoryRule = _DEFAULT_RULE) -> StageSplit:
    """The split whose stage s is the layers ``cuts[s]`` to ``cuts[s + 1] - 1``, whether it fits into memory or not.

    ``cuts``: from 0 to the number of layers, with as many stages as GPUs or a multiple of them. Other arguments as in
    :func:`split_layers`.
    """
    by_gpu, stage_count = _by_gpu(layers, len(memory)), len(cuts) - 1
    devices = stage_device(shape, len(memory), stage_count // len(memory))
    kinds = {id(own): Stages(own) for own in by_gpu}
    stages = tuple(kinds[id(by_gpu[gpu])].stage(first, last)
                   for gpu, (first, last) in zip(devices, pairwise(cuts), strict=True))
    counts = in_flight or (1,) * stage_count
    loads, needs = [], []
    for gpu in range(len(memory)):
        own = [(stage, count) for stage, count, device in zip(stages, counts, devices, strict=True) if device == gpu]
        loads.append(round(sum(stage.load for stage, _ in own) * 1e-9, 9))
        needs.append(static_bytes([stage for stage, _ in own], rule.bytes_per_parameter) + peak_bytes(
            [stage for stage, _ in own], [count for _, count in own], rule.backward))
    return StageSplit(shape, stages, devices, tuple(loads), tuple(needs))


def _by_gpu(layers: Sequence[LayerCost] | Sequence[Sequence[LayerCost]], gpus: int) -> list[Sequence[LayerCost]]:
    """The layers for each of ``gpus`` GPUs."""
    plain = [layer for layer in layers if isinstance(layer, LayerCost)]
    if plain or not layers:
        return [plain] * gpus
    own = [entry for entry in layers if not isinstance(entry, LayerCost)]
    if len(own) != gpus:
        raise ValueError(f"layers are given for {len(own)} GPUs, memory for {gpus}")
    return own


def _split_of(search: SplitSearch, stages_on: tuple[Intervals, ...]) -> StageSplit:
    """The split in which GPU s holds the stages ``stages_on[s]``."""
    intervals = sorted((interval, s) for s, own in enumerate(stages_on) for interval in own)
    return StageSplit(
        search.shape,
        tuple(search.stages[s].stage(first, last) for (first, last), s in intervals),
        stage_device(search.shape, search.gpus),
        tuple(round(search.load(s, own) * 1e-9, 9) for s, own in enumerate(stages_on)),
        tuple(search.shortfall(s, own) + search.capacity[s] for s, own in enumerate(stages_on)))
