"""Memory as a decision: a chain of operators in stages, each operator kept, recomputed or offloaded.

What a plan means, and what it costs. A model is a chain of operators; stage s of S is the operators from one cut to the
next and runs on a device of its own. Under 1F1B a stage holds S - s micro-batches at once (never more than there are in
a step). What an operator keeps from its forward for its backward is

* *kept* on the device for every micro-batch in flight, or
* *recomputed*: dropped, and made again by a second forward just before the backward; or
* *offloaded*: copied to the host after the forward and back before the backward, on the device's copy engine.

What a stage receives from the one before is kept too: it lies in the receive buffer until its backward.

**Time.** The period of a pipeline is at least that of its busiest resource, and the planner makes the busiest one
least: a stage's device (forwards, backwards, second forwards), its copy engine (every offloaded byte twice per
micro-batch), and the link before it (one way; links carry both ways at once).

**Memory** of a stage: what is resident (weights, gradients, optimizer state), for each micro-batch in flight what is
kept, and buffers for recomputing and for copies. ``rules`` says how these are counted:

* ``strict``: what an executor can do. What a stage receives is held until its backward. A run of neighbouring
  recomputed operators starts from what the operator before it gave, and is all there before its backward begins: the
  buffer is the largest run. Tensors that pass by where a run starts (residual connections) stay with it. The copy
  engine may lag behind by a micro-batch each way: its buffers are twice what is offloaded. (In a row of forwards and
  backwards in turn that is enough if a copy is no longer than a forward: while a forward makes its bytes, those of the
  next backward come; while that runs, the former leave. Three times is enough for copies as long as both.)
* ``published``: as published planners count (the reconstruction of DawnPiper, Peng et al., arXiv 2505.05856): nothing
  is held of what is received or passes by, one recomputed operator is there at a time, and its buffers are two of the
  largest offloaded operator. No executor needs less, most need more.

Times are whole nanoseconds and sizes whole bytes, so that sums are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Literal, TypeAlias

from weft.solver.placement.problem import PlacementError


class NoMemoryPlan(ValueError):
    """No plan fits into memory, however slow: the message says so and what could be changed."""


Mode: TypeAlias = Literal["keep", "recompute", "offload"]
Rules: TypeAlias = Literal["strict", "published"]


@dataclass(frozen=True, slots=True)
class ChainOperator:
    """One operator for one micro-batch: ``forward`` and ``backward`` in nanoseconds, sizes in bytes.

    ``resident``: parameters, gradients and optimizer state together.
    ``kept``: what it leaves on the device for its backward, its output among it. ``output``: all that crosses to the
    operator behind it; ``passing``: the part of it that earlier operators made and that only passes by.
    ``kind``: operators of one kind and equal costs are interchangeable; with an empty kind it is alone. ``layer``: for
    cuts between layers.
    """

    name: str
    forward: int
    backward: int
    kept: int
    output: int
    passing: int = 0
    resident: int = 0
    kind: str = ""
    layer: str = ""

    def __post_init__(self) -> None:
        for field in ("forward", "backward", "kept", "output", "passing", "resident"):
            value = getattr(self, field)
            if not isinstance(value, int) or value < 0:
                raise PlacementError(f"operator {self.name!r}: {field} is {value!r:.60}, it must be a whole number of "
                                     "0 or more")


@dataclass(frozen=True)
class MemoryProblem:
    """A chain, ``stages`` devices in a row with ``memory`` bytes each, and what a plan may do.

    ``copy_bandwidth``: bytes a second of each device's copy engine. ``link_bandwidth``: of the link between neighbours,
    one direction. ``modes``: what is allowed beside keeping. ``micro_batches``: in a step (``None``: many).
    ``windows``: where each of the S - 1 cuts may be, as operators that begin a stage (``None``: anywhere).
    ``copy_buffers``: how many times a stage has room for what it offloads; ``ahead``: how many micro-batches more than
    under 1F1B every stage but the last has room for, so that it need not wait while messages travel.
    """

    operators: tuple[ChainOperator, ...]
    stages: int
    memory: int
    copy_bandwidth: float
    link_bandwidth: float = float("inf")
    rules: Rules = "strict"
    modes: frozenset[Mode] = frozenset({"recompute", "offload"})
    micro_batches: int | None = None
    windows: tuple[frozenset[int], ...] | None = None
    copy_buffers: int = 2
    ahead: int = 0

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise PlacementError(f"stages is {self.stages}, it must be 1 or more")
        if len(self.operators) < self.stages:
            raise PlacementError(f"{len(self.operators)} operators cannot fill {self.stages} stages, use fewer stages")
        if self.memory < 0:
            raise PlacementError(f"memory is {self.memory}, it must be 0 bytes or more")
        for name, least in (("copy_buffers", 1), ("ahead", 0)):
            if getattr(self, name) < least:
                raise PlacementError(f"{name} is {getattr(self, name)}, it must be {least} or more")
        if self.micro_batches is not None and self.micro_batches < 1:
            raise PlacementError(f"micro_batches is {self.micro_batches}, it must be 1 or more")
        for name in ("copy_bandwidth", "link_bandwidth"):
            if not getattr(self, name) > 0:
                raise PlacementError(f"{name} is {getattr(self, name)}, it must be more than 0 bytes a second")
        if self.windows is not None and len(self.windows) != self.stages - 1:
            raise PlacementError(f"there are {len(self.windows)} windows for {self.stages - 1} cuts, give one for each")

    def in_flight(self, stage: int) -> int:
        """The number of micro-batches in ``stage`` at once: those of 1F1B and, on all but the last, ``ahead`` more."""
        depth = self.stages - stage + (self.ahead if stage < self.stages - 1 else 0)
        return depth if self.micro_batches is None else min(depth, self.micro_batches)

    def input_bytes(self, first: int) -> int:
        """What a stage that begins with operator ``first`` holds of what it receives, for each micro-batch."""
        return self.operators[first - 1].output if first and self.rules == "strict" else 0

    def passing_bytes(self, operator: int) -> int:
        """What stays on the device, beside what the operator before keeps, where a recomputed run begins with
        ``operator``."""
        return self.operators[operator - 1].passing if operator and self.rules == "strict" else 0

    def link_time(self, first: int) -> int:
        """Nanoseconds that the link before a stage is busy one way with a micro-batch."""
        size = self.operators[first - 1].output if first else 0
        return -int(-(size / self.link_bandwidth) * 1e9 // 1)

    def copy_time(self, size: int) -> int:
        """Nanoseconds of the copy engine for ``size`` offloaded bytes, there and back."""
        return math.ceil(2 * 10**9 * size / Fraction(self.copy_bandwidth))

    def copy_bytes(self, time: int) -> int:
        """The most bytes for which :meth:`copy_time` is no more than ``time``."""
        return max(0, math.floor(Fraction(self.copy_bandwidth) * time / (2 * 10**9)))

    @cached_property
    def totals(self) -> tuple[list[int], list[int], list[int]]:
        """Sums over the first operators: time, kept bytes, resident bytes."""
        def sums(values: Sequence[int]) -> list[int]:
            return list(accumulate(values, initial=0))

        ops = self.operators
        return (sums([o.forward + o.backward for o in ops]), sums([o.kept for o in ops]),
                sums([o.resident for o in ops]))


@dataclass(frozen=True, slots=True)
class StageMeasure:
    """What one stage of a plan costs: nanoseconds for a micro-batch by resource, and bytes by class."""

    first: int
    last: int
    in_flight: int
    device: int
    recomputing: int
    copying: int
    link: int
    resident: int
    activations: int
    recompute_buffer: int
    copy_buffer: int
    offloaded: int

    @property
    def time(self) -> int:
        """Nanoseconds of the busiest resource."""
        return max(self.device, self.copying, self.link)

    @property
    def memory(self) -> int:
        """Bytes at the peak."""
        return self.resident + self.activations + self.recompute_buffer + self.copy_buffer


@dataclass(frozen=True)
class MemoryPlan:
    """Stage s is operators ``cuts[s]`` to ``cuts[s + 1] - 1``. ``modes``: one an operator. ``bound``: nanoseconds that
    no plan of the problem is below; with ``strict`` rules, of those whose recompute buffers go by class
    (:mod:`weft.solver.placement.memory.stage_oracle`)."""

    problem: MemoryProblem
    cuts: tuple[int, ...]
    modes: tuple[Mode, ...]
    bound: int = 0

    @cached_property
    def stages(self) -> tuple[StageMeasure, ...]:
        """The costs of each stage."""
        return tuple(measure(self, stage) for stage in range(self.problem.stages))

    @property
    def time(self) -> int:
        """Nanoseconds of the busiest resource of all: the least period of this plan."""
        return max(stage.time for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether every stage has the memory it needs."""
        return all(stage.memory <= self.problem.memory for stage in self.stages)


def measure(plan: MemoryPlan, stage: int) -> StageMeasure:
    """The costs of ``stage`` of ``plan``, operator by operator; this defines the meaning of a plan."""
    problem, first, last = plan.problem, plan.cuts[stage], plan.cuts[stage + 1]
    ops = problem.operators
    in_flight = problem.in_flight(stage)
    held, copied = problem.input_bytes(first), list[int]()
    again = run = longest = largest = 0
    for k in range(first, last):
        if plan.modes[k] == "recompute":
            again += ops[k].forward
            if k > first and plan.modes[k - 1] != "recompute":
                held += problem.passing_bytes(k)
            run += ops[k].kept
            longest, largest = max(longest, run), max(largest, ops[k].kept)
            continue
        run = 0
        if plan.modes[k] == "keep":
            held += ops[k].kept
        else:
            copied.append(ops[k].kept)
    strict = problem.rules == "strict"
    return StageMeasure(
        first, last, in_flight, again + sum(ops[k].forward + ops[k].backward for k in range(first, last)), again,
        problem.copy_time(sum(copied)), problem.link_time(first), sum(ops[k].resident for k in range(first, last)),
        in_flight * held, longest if strict else largest,
        problem.copy_buffers * (sum(copied) if strict else max(copied, default=0)), sum(copied))
