"""A placement problem at several sizes of micro-batch: the same operators and devices, costs of each size.

Costs at a size are measured or modelled at that size, or follow from one size by a stated affine law: time(b) =
overhead + slope b. Nothing is guessed here. All sizes divide the mini-batch, and each divides the next larger one, so
that blocks of different stages begin and end with the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from weft.solver.placement.problem import Degree, Node, PlacementError, PlacementProblem


@dataclass(frozen=True)
class SizedProblem:
    """``by_size``: by samples of a micro-batch, rising, the problem in such micro-batches; ``mini_batch``: samples of a
    step. Every problem's ``micro_batches`` is derived from both.

    Raises :class:`~weft.solver.placement.problem.PlacementError` for sizes that do not divide each other or the
    mini-batch, and for problems that differ in more than costs.
    """

    mini_batch: int
    by_size: Mapping[int, PlacementProblem]

    def __post_init__(self) -> None:
        require_sizes(self.mini_batch, self.by_size)
        object.__setattr__(self, "by_size", {
            size: replace(self.by_size[size], micro_batches=self.mini_batch // size) for size in sorted(self.by_size)})
        first = self.any
        for size, problem in self.by_size.items():
            for what, of in _SAME.items():
                if of(problem) != of(first):
                    raise PlacementError(f"{first.name}: in micro-batches of {size} samples the graph has other {what} "
                                         f"than in those of {self.sizes[0]}; only costs may differ")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of a micro-batch, rising."""
        return tuple(self.by_size)

    @property
    def any(self) -> PlacementProblem:
        """The problem in the smallest micro-batches; all have its operators, order and devices."""
        return next(iter(self.by_size.values()))

    @cached_property
    def fastest(self) -> PlacementProblem:
        """Every operator and tensor as fast a sample as at its best size, in the smallest micro-batches: at any sizes
        of the stages, they take no less time and, with as many samples in flight, no less memory."""
        least, first = self.sizes[0], self.any
        problems = [(least / size, problem) for size, problem in self.by_size.items()]
        nodes = tuple(replace(
            node, times=_least(tuple((share, problem.nodes[i].times) for share, problem in problems)),
            resident=min(problem.nodes[i].resident for _, problem in problems),
            per_micro_batch=min(share * problem.nodes[i].per_micro_batch for share, problem in problems),
            gradient=min(problem.nodes[i].gradient for _, problem in problems))
            for i, node in enumerate(first.nodes))
        tensors = tuple(replace(tensor, time=min(share * problem.tensors[i].time for share, problem in problems))
                        for i, tensor in enumerate(first.tensors))
        kinds = tuple(replace(kind, memory=None if kind.memory is None else max(
            problem.kinds[k].memory or 0.0 for _, problem in problems)) for k, kind in enumerate(first.kinds))
        return replace(first, kinds=kinds, nodes=nodes, tensors=tensors, degrees=self._fastest_degrees())

    def _fastest_degrees(self) -> tuple[Degree, ...]:
        found = []
        for devices in sorted({degree.devices for problem in self.by_size.values() for degree in problem.degrees}):
            given = [(self.sizes[0] / size, degree) for size, problem in self.by_size.items()
                     for degree in problem.degrees if degree.devices == devices]
            found.append(Degree(devices, tuple(
                _least(tuple((share, degree.times[i]) for share, degree in given))
                for i in range(len(self.any.nodes))), min(degree.all_reduce for _, degree in given)))
        return tuple(found)

    @cached_property
    def roomiest(self) -> PlacementProblem:
        """:attr:`fastest` with memory for one of the smallest micro-batches only, which every schedule of every graph
        of stages needs at some time."""
        most = max([1, *(degree.devices for degree in self.fastest.degrees)])
        return replace(self.fastest, nodes=tuple(
            replace(node, resident=node.resident + node.per_micro_batch / most, per_micro_batch=0.0)
            for node in self.fastest.nodes))


def _least(given: Sequence[tuple[float, Sequence[float | None]]]) -> tuple[float | None, ...]:
    """Per kind the least time a smallest micro-batch, of times with the share of theirs that such a one is."""
    shares, columns = [share for share, _ in given], zip(*(times for _, times in given), strict=True)
    return tuple(None if column[0] is None else min(
        share * time for share, time in zip(shares, column, strict=True) if time is not None) for column in columns)


def affine(problem: PlacementProblem, known: int, sizes: Iterable[int], overhead: float,
           mini_batch: int) -> SizedProblem:
    """``problem``, which is in micro-batches of ``known`` samples, at other sizes by an affine law.

    Of each operator's time ``overhead`` (in the problem's unit; all of it, if it is less) is the same at every size,
    and the rest in proportion to the samples, as are transfers and the memory for a micro-batch.
    """
    if not 0 <= overhead < float("inf"):
        raise PlacementError(f"overhead is {overhead}, it must be 0 or more and finite")
    if problem.degrees:
        raise PlacementError(f"{problem.name}: an overhead says nothing of stages on several devices; give costs at "
                             "every size, or do without replication")

    def scaled(node: Node, share: float) -> Node:
        return replace(node, per_micro_batch=node.per_micro_batch * share, times=tuple(
            None if time is None else min(time, overhead) + (time - min(time, overhead)) * share
            for time in node.times))

    def at(size: int) -> PlacementProblem:
        share = size / known
        return replace(problem, nodes=tuple(scaled(node, share) for node in problem.nodes), tensors=tuple(
            replace(tensor, time=tensor.time * share) for tensor in problem.tensors))

    return SizedProblem(mini_batch, {size: at(size) for size in sizes})


_SAME: Mapping[str, Callable[[PlacementProblem], object]] = {
    "operators": lambda problem: [(node.name, node.colocation, node.backward) for node in problem.nodes],
    "tensors": lambda problem: [(tensor.producer, tensor.consumers) for tensor in problem.tensors],
    "devices": lambda problem: [(kind.name, kind.count, kind.transfer_factor, kind.memory is None)
                                for kind in problem.kinds],
    "kinds of device that run an operator": lambda problem: [[time is None for time in node.times]
                                                             for node in problem.nodes],
    "units": lambda problem: (problem.time_unit, problem.memory_unit),
}


def require_sizes(mini_batch: int, sizes: Iterable[int]) -> None:
    """Raise :class:`~weft.solver.placement.problem.PlacementError` for sizes that do not suit a mini-batch."""
    ranked = sorted(sizes)
    if not ranked:
        raise PlacementError("micro-batch sizes: there are none, give at least one")
    for size in ranked:
        if size < 1 or mini_batch % size:
            raise PlacementError(f"micro-batch sizes: {size} does not divide the mini-batch of {mini_batch} samples")
    for less, more in pairwise(ranked):
        if more % less:
            raise PlacementError(f"micro-batch sizes: {less} does not divide {more}; each must divide the next larger "
                                 "one, such as powers of two")
