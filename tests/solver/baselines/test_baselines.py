"""The baselines against their published formulas.

On p uniform stages with forward F, backward B = I + W and m micro-batches, m(F + B) is each device's work and A the
activations of one micro-batch on one device.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import chain, loaded_after, loop, pipeline, v, valid
from weft.solver import Schedule, time_orders, validate, violations
from weft.solver.baselines import BASELINES, NotApplicable, baseline, steady_period
from weft.solver.baselines.lib import sequential
from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.problem import Block, BlockKind, Dependency, Device, Number, Problem

SIZES = [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, 2, p, 2 * p, 2 * p + 1, 4 * p, 32)]
TIMES = [(1, 1, 1), (2, 2, 1), (3, 2, 2), (5, 4, 3)]


def idle(schedule: Schedule) -> list[float]:
    """Per device, the time of the step in which it runs nothing."""
    return [schedule.makespan - sum(o.end - o.start for o in order) for order in schedule.device_orders]


def idle_in_span(schedule: Schedule) -> list[float]:
    """Per device, the time between its first start and its last end in which it runs nothing."""
    return [order[-1].end - order[0].start - sum(o.end - o.start for o in order) for order in schedule.device_orders]


# -- published formulas ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize(("name", "held"), [("gpipe", lambda m, left: m), ("1f1b", min)])
@pytest.mark.parametrize(("f", "b"), [(1, 2), (3, 4), (2, 2)])
def test_gpipe_and_one_f_one_b(p: int, m: int, name: str, held: Callable[[int, int], int], f: int, b: int) -> None:
    """Idle (p - 1)(F + B), activations m A in GPipe (Huang et al., NeurIPS 2019), (p - r) A on rank r in 1F1B (Fan et
    al., PPoPP 2021)."""
    schedule = baseline(name, pipeline(chain(p), forward=f, backward=b, activation=3), m)
    assert idle(schedule) == [(p - 1) * (f + b)] * p
    assert list(schedule.peak_memory) == [3 * held(m, p - rank) for rank in range(p)]


@pytest.mark.parametrize("groups", [2, 3, 5])
@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_interleaved(p: int, chunks: int, groups: int) -> None:
    """Idle (p - 1)(F + B) / v; the first rank holds A p (1 + (p - 1)/(p v)) (Narayanan et al., SC 2021).

    F, B and A are a whole device's: a stage has 1/v of them.
    """
    schedule = baseline("interleaved", pipeline(loop(p, chunks), forward=2, backward=4, activation=1), groups * p)
    assert idle(schedule) == [(p - 1) * (2 + 4)] * p  # a stage's F and B are the device's over v
    assert schedule.peak_memory[0] == chunks * p + (p - 1)
    assert max(schedule.peak_memory) == schedule.peak_memory[0]


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m >= p])
@pytest.mark.parametrize(("f", "i", "w"), TIMES)
def test_zb_h1(p: int, m: int, f: int, i: int, w: int) -> None:
    """Idle (p - 1)(F + I - W), activations p A on every rank (Qi et al., ICLR 2024)."""
    schedule = baseline("zb-h1", pipeline(chain(p), forward=f, split=(i, w), activation=3), m)
    assert idle(schedule) == [(p - 1) * (f + i - w)] * p
    assert list(schedule.peak_memory) == [3 * p] * p


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if p > 1 and m >= 2 * p - 1])
def test_zb_v(p: int, m: int) -> None:
    """No idle time within any rank's span at F = I = W; p A, that is 2p of a stage's (Qi et al., ICLR 2024)."""
    schedule = baseline("zb-v", pipeline(v(p), forward=2, split=(2, 2), activation=3), m)
    assert idle_in_span(schedule) == [0] * p
    assert list(schedule.peak_memory) == [2 * p * 3] * p
    assert schedule.bubble.span == 0


@pytest.mark.parametrize(("name", "stages", "n"), [("gpipe", chain(4), 8), ("1f1b", chain(4), 8),
                                                   ("interleaved", loop(4), 8)])
def test_a_split_backward_runs_back_to_back(name: str, stages: list[int], n: int) -> None:
    full = baseline(name, pipeline(stages, forward=1, backward=2), n)
    split = baseline(name, pipeline(stages, forward=1, split=(1, 1)), n)
    order = [split.problem.blocks[o.block].name for o in split.device_orders[0]]
    assert all(order[i + 1] == "w" + name[1:] for i, name in enumerate(order) if name.startswith("b"))
    assert split.makespan <= full.makespan


# -- when they do not apply --------------------------------------------------------------------------------------


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="there is no baseline 'gpip', there are gpipe, 1f1b"):
        baseline("gpip", pipeline(chain(2)), 4)
    with pytest.raises(ValueError, match="micro_batches is 0, it must be at least 1"):
        baseline("gpipe", pipeline(chain(2)), 0)


def test_registry_and_what_a_schedule_says_of_itself() -> None:
    for name, entry in BASELINES.items():
        assert entry.name == name
        assert entry.title
        assert entry.source
    schedule = baseline("1f1b", pipeline(chain(4)), 16)
    assert schedule.solver == {"name": "1f1b"}
    assert (schedule.makespan_bound, schedule.repetend, schedule.status) == (0.0, None, "feasible")


def test_capacities_do_not_stop_a_published_schedule() -> None:
    schedule = baseline("gpipe", pipeline(chain(2), memory=3), 8)
    assert violations(schedule) != []


def test_importing_the_baselines_stays_light() -> None:
    """No solver library, let alone torch, is loaded for them."""
    assert loaded_after("import weft.solver.baselines", "ortools", "torch", "altair") == []


# -- the steady period -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "problem", "period"), [
    ("1f1b", pipeline(chain(4)), 3), ("zb-h1", pipeline(chain(4), split=(1, 1)), 3),
    ("zb-v", pipeline(v(4), split=(1, 1)), 6), ("interleaved", pipeline(loop(4)), 6),
    ("gpipe", pipeline(chain(4)), None), ("gpipe", pipeline(chain(4), forward=2), None),
    ("gpipe", pipeline(chain(4), backward=None), 1),
])
def test_steady_period(name: str, problem: Problem, period: float | None) -> None:
    assert baseline(name, problem, 32).period == period


def test_no_steady_period_in_a_short_or_uneven_schedule() -> None:
    assert baseline("1f1b", pipeline(chain(4)), 4).period is None
    alone = pipeline(chain(1), backward=None)
    uneven = [o._replace(start=o.start + (o.micro_batch > 8), end=o.end + (o.micro_batch > 8))
              for o in time_orders(alone, 16, [[(0, m) for m in range(16)]])]
    assert steady_period(alone, 16, uneven) is None


# -- any block graph ---------------------------------------------------------------------------------------------


def block(name: str, devices: tuple[int, ...], memory: tuple[Number, ...], *after: str, duration: int = 1) -> Block:
    return Block(name, BlockKind.OTHER, devices, duration, memory, (), tuple(Dependency(item) for item in after))


def devices(*memory: Number | None) -> tuple[Device, ...]:
    return tuple(Device(f"gpu{d}", amount) for d, amount in enumerate(memory))


def test_sequential_finds_the_block_order_that_fits() -> None:
    """Two branches of 3 each fit into 4 one after the other only."""
    branches = Problem("p", devices(4), (
        block("a1", (0,), (3,)), block("b1", (0,), (3,)),
        block("a2", (0,), (-2,), "a1"), block("b2", (0,), (-2,), "b1"),
        block("end", (0,), (-2,), "a2", "b2")))
    order = [branches.blocks[i].name for i in sequential.block_order(branches, 3)]
    assert order in (["a1", "a2", "b1", "b2", "end"], ["b1", "b2", "a1", "a2", "end"])
    validate(baseline("greedy", branches, 3))


def test_sequential_looks_beyond_the_first_choice() -> None:
    """The block that frees leads into a dead end: only x before y fits."""
    trap = Problem("p", devices(5, 5), (
        block("x", (0,), (5,)), block("x_end", (0,), (-5,), "x"),
        block("y", (0, 1), (1, -1)), block("y_end", (0,), (-1,), "x_end", "y")))
    assert [trap.blocks[i].name for i in sequential.block_order(trap, 1)].index("x_end") < 2
    validate(baseline("greedy", trap, 4))


def test_not_even_one_micro_batch_fits() -> None:
    with pytest.raises(NotApplicable) as caught:
        baseline("greedy", pipeline(v(2), activation=3, memory=5), 4)
    assert str(caught.value) == ("even one micro-batch at a time does not fit: device 'gpu1' would hold 6 B of its 5 B")


def test_what_is_kept_adds_up_over_the_micro_batches() -> None:
    keeps = Problem("p", devices(10), (block("f", (0,), (3,)), block("b", (0,), (-2,), "f")))
    validate(baseline("greedy", keeps, 8))
    with pytest.raises(NotApplicable, match="device 'gpu0' would hold 11 B of its 10 B"):
        baseline("greedy", keeps, 9)


def test_greedy_ties_with_1f1b_where_that_is_best() -> None:
    for p in (2, 4, 8):
        problem = pipeline(chain(p), memory=p)
        assert baseline("greedy", problem, 4 * p).makespan == baseline("1f1b", problem, 4 * p).makespan


def test_greedy_uses_half_the_memory_when_there_is_no_more() -> None:
    schedule = valid(baseline("greedy", pipeline(v(4), split=(1, 1), memory=4), 16))
    assert schedule.makespan < 16 * 18 / 2  # one at a time takes 17 or 18 each


def test_greedy_with_many_micro_batches_tries_its_settings_on_few() -> None:
    schedule = valid(baseline("greedy", pipeline(chain(4), memory=4), 500))
    assert schedule.makespan == 500 * 3 + 9


def test_amounts_are_exact() -> None:
    decimal = Problem("p", devices(0.3), (block("a", (0,), (0.1,)), block("b", (0,), (0.2,), "a"),
                                          block("c", (0,), (-0.3,), "b")))
    amounts = Amounts.of(decimal)
    assert sum(amounts.take[0].values()) == amounts.room[0]
    assert amounts.amount(3, "GiB") == "0.3 GiB"
    validate(baseline("greedy", decimal, 5))
