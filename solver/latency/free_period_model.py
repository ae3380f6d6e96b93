"""Periodic schedules whose period is a variable, as a CP-SAT model.

One micro-batch starts block i at t_i, the others whole periods P earlier or later. For any two blocks i, j of one
device there is a whole number q, their *height*, with

    d_i + q P <= t_j - t_i <= (q + 1) P - d_j:

q is the last instance of i, counted from this micro-batch's, that ends before j starts. A latency is seldom more than a
few periods, so q has few values; one Boolean each makes the products q P linear. q + 1 is what
:mod:`weft.solver.period.search` expresses by lags and an order, hence memory: before j starts, the level of a device is
the sum over its other blocks of change_i (q_ij + 1), if all that it takes is given back. Transfers of a link keep the
heights of their producers.

*Fractions.* For fixed heights the rest is linear in t and P, and the best P may be a fraction of a tick. Let a schedule
have its first start at 0, p = floor(P), p' = ceil(P). Then t_j - t_i >= w + q P with a whole w implies

    floor(t_j) - floor(t_i) >= w + q p  for q >= 0,   >= w + q p'  for q < 0.

The model has these constraints, and p' - p in {0, 1}: every schedule has an image in it, whose latency is rounded down,
so that its optimum is a bound. Where p' = p the image is a schedule itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import combinations

from weft.solver.control.clock import checked
from weft.solver.late import cp_model
from weft.solver.relations.min_dist import Distances, longest_paths
from weft.solver.ticks import TickProblem

#: Up to this number of blocks of a device, three of them are related at once.
_FEW_BLOCKS = 12
#: CP-SAT's numbers have 63 bits; some are reserved for its own sums.
_LARGEST_SUM = 2**58


def lags_within(instance: TickProblem, limit: Fraction | int) -> Distances | None:
    """Distances that dependencies alone imply at every period of at most ``limit``; ``None`` if they allow none.

    A wait for the micro-batch before gets longer, not shorter, in a shorter period.
    """
    return longest_paths(instance, math.ceil(limit))


def heads_and_tails(instance: TickProblem, lags: Distances) -> tuple[list[int], list[int]]:
    """Per block, the least ticks of the micro-batch before it starts, and from its start to its end."""
    heads = [max(0, *(int(lag) for lag in lags[:, i])) for i in instance.blocks]
    tails = [max(int(lags[i, j]) + instance.durations[j] for j in instance.blocks) for i in instance.blocks]
    return heads, tails


class FreePeriodModel:
    """The model for latencies from ``low`` to ``top`` fine ticks, ``ticks`` of them in one of the instance's.

    Periods are from ``least`` to ``limit`` (ticks of the instance).
    """

    def __init__(self, instance: TickProblem, ticks: int, least: Fraction, limit: Fraction, low: int, top: int) -> None:
        self.instance, self.ticks, self.top = instance, ticks, top
        self.durations = [duration * ticks for duration in instance.durations]
        loose = instance.loosened(limit)  # real schedules within the limit, in ticks that were rounded up
        self.shortest, self.longest = math.floor(least * ticks), math.ceil(loose * ticks)
        self.model = cp_model.CpModel()
        self.period = self.model.new_int_var(self.shortest, math.floor(loose * ticks), "period")
        self.fraction = self.model.new_bool_var("the period is a fraction")
        self.ceiling = self.period + self.fraction
        self.model.add(self.ceiling <= self.longest)
        lags = lags_within(instance, loose)
        if lags is None:
            raise ValueError(f"the dependencies allow no period of {limit} ticks")
        self.lags = lags
        heads, tails = heads_and_tails(instance, lags)
        self.windows = [(head * ticks, top - tail * ticks) for head, tail in zip(heads, tails, strict=True)]
        self.possible = all(first <= last for first, last in self.windows) and low <= top
        self.heights: dict[tuple[int, int], list[tuple[int, cp_model.IntVar]]] = {}
        if not self.possible:
            self.model.add_bool_or([])
            return
        self.start = [self.model.new_int_var(first, last, f"start {block.name}")
                      for (first, last), block in zip(self.windows, instance.problem.blocks, strict=True)]
        self.latency = self.model.new_int_var(low, top, "latency")
        for start, duration in zip(self.start, self.durations, strict=True):
            self.model.add(self.latency >= start + duration)
        self.model.minimize(2 * self.latency + self.fraction)
        self._share_devices()
        self._chain_blocks()
        self._carry_transfers()
        self._limit_memory()

    def chosen(self, pair: tuple[int, int], solver: cp_model.CpSolver) -> int:
        """q of a pair in the solution."""
        return next(q for q, literal in self.heights[pair] if solver.boolean_value(literal))

    # -- the constraints ------------------------------------------------------------------------------------------

    def _follow(self, target: cp_model.LinearExpr, source: cp_model.LinearExpr, weight: int, periods: int,
                when: Iterable[cp_model.IntVar] = ()) -> None:
        """target >= source + weight + periods * P, in the image of fractions."""
        self.model.add(target >= source + weight + periods * (self.period if periods >= 0 else self.ceiling)
                       ).only_enforce_if(list(when))

    def _share_devices(self) -> None:
        for i, j in checked(self.instance.shared_pairs(), 16):
            values = self._range(i, j)
            self.heights[i, j] = [(q, self.model.new_bool_var(f"height {i} {j} {q}")) for q in values]
            self.model.add_exactly_one(literal for _, literal in self.heights[i, j])
            for q, literal in self.heights[i, j]:
                self._follow(self.start[j], self.start[i], self.durations[i], q, [literal])
                self._follow(self.start[i], self.start[j], self.durations[j], -(q + 1), [literal])
        for row in sorted(set(self.instance.blocks_on)):
            if len(row) > 2:  # one micro-batch's blocks by themselves
                self.model.add_no_overlap(self.model.new_fixed_size_interval_var(
                    self.start[i], self.durations[i], f"run {i}") for i in row)
            if len(row) <= _FEW_BLOCKS:
                for i, j, k in checked(combinations(row, 3), 16):  # t_k - t_i is the sum of the other two differences
                    rest = self.height(i, k) - self.height(i, j) - self.height(j, k)
                    self.model.add_linear_constraint(rest, 0, 1)

    def _range(self, i: int, j: int) -> range:
        """Values of q that the starts' windows leave open."""
        (first_i, last_i), (first_j, last_j) = self.windows[i], self.windows[j]
        least = max(int(self.lags[i, j]) * self.ticks, first_j - last_i) + self.durations[j]  # <= (q + 1) P
        most = min(-int(self.lags[j, i]) * self.ticks, last_j - first_i) - self.durations[i]  # >= q P
        low = -(-least // (self.longest if least > 0 else self.shortest)) - 1
        high = most // (self.shortest if most >= 0 else self.longest)
        return range(low, high + 1)

    def height(self, i: int, j: int) -> cp_model.LinearExpr:
        """q of two blocks on one device, either way round: q_ji = -q_ij - 1."""
        if i > j:
            return -1 - self.height(j, i)
        values, literals = zip(*self.heights[i, j], strict=True) if self.heights[i, j] else ((), ())
        return cp_model.LinearExpr.weighted_sum(literals, values)

    def _chain_blocks(self) -> None:
        for arc in self.instance.arcs:
            self._follow(self.start[arc.target], self.start[arc.source],
                         self.durations[arc.source] + arc.lag * self.ticks, -arc.distance)

    def _carry_transfers(self) -> None:
        carried: dict[int, list[tuple[int, cp_model.IntVar]]] = {}
        for number, arc in enumerate(self.instance.arcs):
            if arc.link is None:
                continue
            lag = arc.lag * self.ticks
            begin = self.model.new_int_var(0, self.top + arc.distance * self.longest, f"transfer {number}")
            self.model.add(begin >= self.start[arc.source] + self.durations[arc.source])
            self._follow(self.start[arc.target], begin, lag, -arc.distance)
            for other, earlier in carried.setdefault(arc.link, []):
                first = self.instance.arcs[other]
                first_lag = first.lag * self.ticks
                if first.source == arc.source:
                    self.model.add(begin >= earlier + first_lag)
                    self._follow(earlier, begin, lag, -1)
                    continue
                i, j = sorted((first.source, arc.source))
                for q, literal in self.heights[i, j]:
                    behind = q if i == first.source else -1 - q  # of the second producer, after the first
                    self._follow(begin, earlier, first_lag, behind, [literal])
                    self._follow(earlier, begin, lag, -(behind + 1), [literal])
            carried[arc.link].append((number, begin))

    def _limit_memory(self) -> None:
        instance = self.instance
        for device, capacity in enumerate(instance.capacity):
            if capacity is None or not instance.limited(device):
                continue
            take, change = instance.take[device], instance.change[device]
            moving = {i: amount for i, amount in change.items() if amount}
            for j in (j for j in checked(take) if take[j] > 0):
                self.model.add(sum(amount * (self.height(i, j) + 1) for i, amount in moving.items() if i != j)
                               <= capacity - take[j])
            # Little's law: over a period the average level of the device is the sum of amount x lifetime / P. Takes are
            # rounded down if the period is a fraction.
            workspace = sum((take[i] - max(change[i], 0)) * self.durations[i] for i in take)
            taken = sum(amount for amount in moving.values() if amount > 0)
            given = sum(-amount * self.durations[i] for i, amount in moving.items() if amount < 0)
            self._add_average({**{self.start[i]: -amount for i, amount in moving.items()},
                               self.period: -capacity, self.fraction: -capacity - taken}, -given - workspace)

    def _add_average(self, terms: Mapping[cp_model.IntVar, int], most: int) -> None:
        """The sum of the terms, none of whose variables is below 0, is at most ``most``: bytes times ticks, which may
        exceed CP-SAT's range. Then all is divided and rounded down, which every solution still keeps."""
        reach = max(self.top, self.longest)
        divisor = (sum(map(abs, terms.values())) * reach + abs(most)) // _LARGEST_SUM + 1
        self.model.add(cp_model.LinearExpr.weighted_sum(
            list(terms), [factor // divisor for factor in terms.values()]) <= most // divisor)
