"""A modulo schedule of a fixed period as a CP-SAT model.

For a fixed period T every block i has an offset s_i in [0, T) and a shift k_i; micro-batch m starts it at
t_i + m T with t_i = s_i + T k_i. A block may wrap past the end of the period.

* Dependency i -> j with transfer c and distance h:  t_j >= t_i + d_i + c - h T.
* Two blocks of one device: a Boolean x_ij orders their offsets; x_ij: s_i + d_i <= s_j and s_j + d_j <= s_i + T.
* A transfer on a link has a start u of its own. Transfers run in the order of their producers on the source device:
  with x_ij and the shifts, producer j follows producer i at a distance of a = k_j - k_i - 1 + x_ij periods, so
  u_j >= u_i + c_i + a T and u_i >= u_j + c_j - (a + 1) T. No further Boolean is needed.
* Memory on a device when block j starts: sum over its blocks i of change_i ([i before j] - k_i), plus the amount that j
  takes, is at most the capacity. The bracket is x_ij.

* The level of a mixed pool (:mod:`weft.solver.pools`), when block j starts, is the sum over its blocks i of the amounts
  taken by the instances that have started by then less those given by the instances that have ended. For a block that
  shares an engine with j that is change_i ([i before j] - k_i) as above. Of any other, k_j - k_i + b have started,
  where b may be 0 only if s_i > s_j, and k_j - k_i + e_1 + e_2 - 1 have ended, where e_1 needs s_i + d_i <= s_j, and
  e_2 s_i + d_i <= s_j + T. As the pool is balanced, k_j drops out. Whole starts lose no steady state: every amount
  given was taken before (:func:`~weft.solver.relations.min_dist.takes_before_giving`), so that orders and waits
  determine the level, and their least starts at a whole period are whole.

Everything is linear in x, k, t, u; there is no time index. The lags of :mod:`weft.solver.relations.min_dist` are added
as redundant constraints.
"""

from __future__ import annotations

from weft.solver.control.clock import checked
from weft.solver.late import cp_model
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic
from weft.solver.relations.min_dist import Distances, lag_range, lifetimes_in
from weft.solver.ticks import TickProblem


class ModuloModel:
    """The blocks of ``instance`` at ``period`` ticks, with its least distances ``lags``."""

    def __init__(self, instance: TickProblem, period: int, lags: Distances) -> None:
        self.instance = instance
        self.period = period
        self.lags = lags
        self.devices = range(len(instance.capacity))
        self.model = cp_model.CpModel()
        self.offset: dict[int, cp_model.IntVar] = {}
        self.shift: dict[int, cp_model.IntVar] = {}  # k
        self.start: dict[int, cp_model.IntVar] = {}
        self._windows: dict[int, tuple[int, int]] = {}  # of the starts
        self._make_starts()
        self._order: dict[tuple[int, int], cp_model.IntVar] = {}
        self._order_devices()
        self._chain_blocks()
        self._carry_transfers()
        self._limit_memory()
        self._limit_pools()
        self._limit_averages()

    def _make_starts(self) -> None:
        # Shifting a periodic schedule in time changes nothing: one block, which restricts the others most, starts at 0.
        window = -self.lags - self.lags.T  # the range of two starts' difference
        root = min(self.instance.blocks, key=lambda i: (int(window[i].sum()), i))
        for i in self.instance.blocks:
            earliest, latest = int(self.lags[root, i]), -int(self.lags[i, root])
            first, last = earliest // self.period, latest // self.period
            name = self.instance.problem.blocks[i].name
            self.offset[i] = self.model.new_int_var(0, 0 if i == root else self.period - 1, f"offset {name}")
            self.shift[i] = self.model.new_int_var(first, last, f"shift {name}")
            self.start[i] = self.model.new_int_var(earliest, latest, f"start {name}")
            self.model.add(self.start[i] == self.offset[i] + self.period * self.shift[i])
            self._windows[i] = earliest, latest

    def before(self, i: int, j: int) -> cp_model.IntVar:
        """Whether block i's offset is before block j's; they share a device."""
        return self._order[i, j] if i < j else self._order[j, i].negated()  # type: ignore[return-value]

    def _order_devices(self) -> None:
        durations, offset, period = self.instance.durations, self.offset, self.period
        rows = sorted({self.instance.blocks_on[device] for device in self.devices})
        for i, j in checked(sorted({(i, j) for row in rows for i in row for j in row if i < j}), 16):
            literal = self.model.new_bool_var(f"order {i} {j}")
            self._order[i, j] = literal
            for a, b, holds in ((i, j, literal), (j, i, literal.negated())):
                self.model.add(offset[a] + durations[a] <= offset[b]).only_enforce_if(holds)
                self.model.add(offset[b] + durations[b] <= offset[a] + period).only_enforce_if(holds)
        for row in rows:
            if len(row) > 1:
                self.model.add_no_overlap(
                    self.model.new_fixed_size_interval_var(offset[i], durations[i], f"run {i}") for i in row)

    def _chain_blocks(self) -> None:
        for arc in self.instance.arcs:
            lag = self.instance.durations[arc.source] + arc.lag - arc.distance * self.period
            self.model.add(self.start[arc.target] >= self.start[arc.source] + lag)
        for i, j in checked(self._order, 16):  # from the least distances
            for a, b in ((i, j), (j, i)):
                self.model.add(self.start[b] >= self.start[a] + int(self.lags[a, b]))

    def _carry_transfers(self) -> None:
        instance, period = self.instance, self.period
        carried: dict[int, list[tuple[int, cp_model.IntVar]]] = {}
        for number, arc in enumerate(instance.arcs):
            if arc.link is None:
                continue
            widest = (2 * lag_range(instance, period) + 2) * period
            begin = self.model.new_int_var(-widest, widest, f"transfer {number}")
            self.model.add(begin >= self.start[arc.source] + instance.durations[arc.source])
            self.model.add(self.start[arc.target] >= begin + arc.lag - arc.distance * period)
            for other, earlier in carried.setdefault(arc.link, []):
                first = instance.arcs[other]
                if first.source == arc.source:
                    self.model.add(begin >= earlier + first.lag)
                    self.model.add(earlier + period >= begin + arc.lag)
                    continue
                # The later producer follows the earlier one at a distance of shifts + before - 1 periods.
                shifts = self.shift[arc.source] - self.shift[first.source]
                before = self.before(first.source, arc.source)
                self.model.add(begin >= earlier + period * shifts + period * before + (first.lag - period))
                self.model.add(earlier + period * shifts + period * before >= begin + arc.lag)
            carried[arc.link].append((number, begin))

    def _limit_memory(self) -> None:
        for device in self.devices:
            capacity = self.instance.capacity[device]
            if capacity is None or not self.instance.limited(device):
                continue
            take, change = self.instance.take[device], self.instance.change[device]
            moving = [i for i in change if change[i]]
            for j in (j for j in checked(take) if take[j] > 0):
                others = [i for i in moving if i != j]
                self.model.add(_weighted([*(self.shift[i] for i in moving), *(self.before(i, j) for i in others)],
                                         [*(-change[i] for i in moving), *(change[i] for i in others)])
                               <= capacity - take[j])

    def _limit_pools(self) -> None:
        devices = [set(block.devices) for block in self.instance.problem.blocks]
        before: dict[tuple[int, int, int], cp_model.IntVar] = {}
        for pool in self.instance.mixed_pools:
            for j in (j for j in checked(pool.take) if pool.take[j] > 0):
                room = pool.capacity - pool.take[j]
                held: list[tuple[cp_model.IntVar, int]] = [(self.shift[i], -pool.change[i]) for i in pool.take]
                for i in (i for i in pool.take if i != j):
                    if devices[i] & devices[j]:
                        held.append((self.before(i, j), pool.change[i]))
                        continue
                    if pool.take[i]:
                        held.append((self._has_started(i, j, before), pool.take[i]))
                    if given := pool.given(i):
                        room -= given
                        held += [(self._has_ended(i, j, periods, before), -given) for periods in (0, 1)]
                kept = [(variable, weight) for variable, weight in held if weight]
                self.model.add(_weighted([variable for variable, _ in kept], [weight for _, weight in kept]) <= room)

    def _has_started(self, i: int, j: int, known: dict[tuple[int, int, int], cp_model.IntVar]) -> cp_model.IntVar:
        """Whether i's offset may be no later than j's; if false, it is later."""
        if (i, j, -1) not in known:
            known[i, j, -1] = literal = self.model.new_bool_var(f"started {i} {j}")
            self.model.add(self.offset[i] >= self.offset[j] + 1).only_enforce_if(~literal)
            if (j, i, -1) in known:  # one of the two is no later
                self.model.add_bool_or(literal, known[j, i, -1])
        return known[i, j, -1]

    def _has_ended(self, i: int, j: int, periods: int,
                   known: dict[tuple[int, int, int], cp_model.IntVar]) -> cp_model.IntVar:
        """Whether i, begun ``periods`` before j's, has certainly ended by j's start."""
        if (i, j, periods) not in known:
            known[i, j, periods] = literal = self.model.new_bool_var(f"ended {i} {j} {periods}")
            self.model.add(self.offset[i] + self.instance.durations[i] <= self.offset[j] + periods * self.period
                           ).only_enforce_if(literal)
            if (i, j, 1 - periods) in known:
                first, second = known[i, j, 0], known[i, j, 1]
                self.model.add_implication(first, second)
        return known[i, j, periods]

    def _limit_averages(self) -> None:
        """Little's law: the average level of a device over a period is amount x lifetime / period, and no more than its
        capacity. The constraints on the levels imply it, but have no effect before the order is known.

        Amounts in bytes times lifetimes in fine ticks may not fit into 64 bits: in a coarser unit, less is counted of
        each lifetime, none of which is negative, which leaves a weaker constraint that is still valid.
        """
        limited = [(self.instance.take[device], self.instance.change[device], capacity, self.instance.blocks_on[device])
                   for device in self.devices if (capacity := self.instance.capacity[device]) is not None
                   and self.instance.limited(device)]
        pools = [(pool.take, pool.change, pool.capacity, tuple(pool.take)) for pool in self.instance.mixed_pools]
        for take, change, capacity, blocks in (*limited, *pools):
            lifetimes = lifetimes_in(self.instance, take, change, self.lags)
            if lifetimes is None or any(life < 0 for _, _, _, life in lifetimes.held):
                continue
            reach = max(max(abs(bound) for bound in self._windows[i]) for i in blocks)
            taken = sum(amount for _, _, amount, _ in lifetimes.held)
            unit = 1 + (capacity * self.period + 2 * reach * taken) // PARAMETERS.model_most_sum
            parts = [(taker, giver, amount // unit) for taker, giver, amount, _ in lifetimes.held if amount >= unit]
            room = (capacity * self.period - lifetimes.workspace) // unit
            average = sum(amount * (self.start[giver] + self.instance.durations[giver] - self.start[taker])
                          for taker, giver, amount in parts)
            if parts:
                self.model.add(average <= room)

    def minimise_latency(self) -> None:
        """Objective: the time from the first start to the last end of one micro-batch."""
        low = min(earliest for earliest, _ in self._windows.values())
        high = max(latest for _, latest in self._windows.values()) + max(self.instance.durations)
        first = self.model.new_int_var(low, high, "first start")
        last = self.model.new_int_var(low, high, "last end")
        for i, duration in enumerate(self.instance.durations):
            self.model.add(first <= self.start[i])
            self.model.add(last >= self.start[i] + duration)
        self.model.minimize(last - first)

    def hint(self, known: Periodic) -> None:
        """Start the search from a known schedule, squeezed or stretched to this period."""
        for i in self.instance.blocks:
            offset = int(known.offset(i) / known.period * self.period)
            self.model.add_hint(self.offset[i], offset)
            self.model.add_hint(self.shift[i], known.shift(i))
            self.model.add_hint(self.start[i], offset + self.period * known.shift(i))
        for (i, j), literal in self._order.items():
            self.model.add_hint(literal, known.offset(i) < known.offset(j))

    def starts(self, solver: cp_model.CpSolver) -> list[int]:
        """The solution's absolute starts."""
        return [solver.value(self.start[i]) for i in self.instance.blocks]


def _weighted(variables: list[cp_model.IntVar], weights: list[int]) -> cp_model.LinearExpr:
    return cp_model.LinearExpr.weighted_sum(variables, weights)
