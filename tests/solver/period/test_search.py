"""The repetend: published and hand-checked periods, what bounds them, and how schedules are re-timed."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from tests.support.builders import chain, judged, pipeline, v
from tests.support.tessel_shapes import TESSEL_PROBLEMS, shape
from weft.solver import Budget, Schedule, time_orders, validate
from weft.solver.period import Bracket, shorten_latency
from weft.solver.period.improvers.starts import one_at_a_time, periodic_seed
from weft.solver.period.periodic import repeat, retime
from weft.solver.period.search import find_period
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Number, Problem
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.relations.min_dist import least_open_period, takes_before_giving
from weft.solver.step.edges import complete
from weft.solver.ticks import TickProblem

BEST_PERIODS = {"chain": 4, "m": 6, "nn": 8, "k": 6}


def search(problem: Problem) -> Bracket:
    instance = TickProblem.of(problem)
    return find_period(instance, one_at_a_time(instance), Budget(deterministic=30.0))


def m_shape(devices: int, memory: Number, forward: list[int], embedding: int = 1) -> Problem:
    """Embedding over all devices (1 forward, twice that backward), then a chain with backward = 2 forward."""
    everywhere = tuple(range(devices))
    blocks = [Block("e", BlockKind.FORWARD, everywhere, embedding)]
    for d in range(devices):
        blocks.append(Block(f"f{d}", BlockKind.FORWARD, (d,), forward[d], (1,), (), (Dependency(blocks[-1].name),)))
    for d in reversed(range(devices)):
        before = (Dependency(blocks[-1].name),)
        blocks.append(Block(f"b{d}", BlockKind.BACKWARD, (d,), 2 * forward[d], (-1,), (), before))
    blocks.append(Block("d", BlockKind.BACKWARD, everywhere, 2 * embedding, (), (), (Dependency(blocks[-1].name),)))
    return Problem("m", tuple(Device(f"gpu{d}", memory) for d in range(devices)), tuple(blocks))


@pytest.mark.parametrize(("kind", "devices", "memory"), [entry for entry in TESSEL_PROBLEMS if entry[2] is not None])
def test_every_training_problem_of_tessel_reaches_its_best_period(kind: str, devices: int, memory: int) -> None:
    found = search(shape(kind, devices, memory))
    assert found.proven
    assert found.best.period == found.refuted == BEST_PERIODS[kind]


@pytest.mark.parametrize(("devices", "memory", "period"), [(4, 4, 7), (8, 8, 7), (8, 4, 9)])
def test_tight_m_shapes_have_a_period_above_their_load_and_it_is_proven_exactly(devices: int, memory: int,
                                                                              period: int) -> None:
    found = search(m_shape(devices, memory, [1] * devices))
    assert TickProblem.of(m_shape(devices, memory, [1] * devices)).heaviest_load == 6
    assert found.best.period == found.refuted == period


def test_unequal_durations_are_settled_by_the_closure_alone() -> None:
    durations = [81, 97, 118, 88, 104, 110, 93, 85]
    problem = Problem("v", tuple(Device(f"gpu{d}", 5) for d in range(8)), tuple(
        [Block(f"f{d}", BlockKind.FORWARD, (d,), durations[d], (1,), (), (Dependency(f"f{d - 1}"),) if d else ())
         for d in range(8)]
        + [Block(f"b{d}", BlockKind.BACKWARD, (d,), 2 * durations[d], (-1,), (),
                 (Dependency(f"b{d + 1}" if d < 7 else "f7"),)) for d in reversed(range(8))]))
    found = search(problem)
    assert found.proven
    instance = TickProblem.of(problem)
    assert least_open_period(instance, sum(instance.durations)) == found.best.period


def test_a_link_that_carries_one_transfer_at_a_time_bounds_the_period() -> None:
    def problem(link: str | None) -> Problem:
        sends = [Dependency("a", 3, link), Dependency("b", 3, link)]
        return Problem("linked", (Device("gpu0"), Device("gpu1")), (
            Block("a", BlockKind.FORWARD, (0,), 1), Block("b", BlockKind.FORWARD, (0,), 1),
            Block("c", BlockKind.FORWARD, (1,), 1, after=(sends[0],)),
            Block("d", BlockKind.FORWARD, (1,), 1, after=(sends[1],))), (Link("wire", 0, 1),))

    assert search(problem(None)).best.period == 2
    assert search(problem("wire")).best.period == 6


def test_where_a_block_gives_before_another_takes_only_the_load_is_proven() -> None:
    problem = Problem("odd", (Device("gpu0", 1), Device("gpu1", 1)), (
        Block("take", BlockKind.OTHER, (0,), 1, (1,)), Block("give", BlockKind.OTHER, (0,), 1, (-1,)),
        Block("other", BlockKind.OTHER, (1,), 1, after=(Dependency("take"),))))
    instance = TickProblem.of(problem)
    assert not takes_before_giving(instance)
    assert find_period(instance, one_at_a_time(instance), Budget(deterministic=5)).refuted == instance.heaviest_load


def test_retiming_keeps_the_order_and_finds_its_least_period() -> None:
    instance = TickProblem.of(pipeline(chain(2)))
    slow = retime(instance, 100, [0, 10, 20, 30])  # one micro-batch at a time, with idle time
    assert slow.period == 6
    overlapped = retime(instance, 100, [0, 110, 120, 230])  # b1 and b0 one period after their forwards
    assert overlapped.period == 3


@pytest.mark.parametrize("scale", [1, 2**20, 10**9 + 7])
def test_bytes_and_nanoseconds_leave_the_period_as_it_is(scale: int) -> None:
    """Tight memory: a common unit of all amounts, or of all times, changes nothing."""
    plain = pipeline(v(4), forward=1, backward=2, memory=5)
    blocks = [replace(block, duration=block.duration * scale, memory=tuple(amount * scale for amount in block.memory))
              for block in plain.blocks]
    devices = [replace(device, memory=5 * scale) for device in plain.devices]
    found = search(replace(plain, devices=tuple(devices), blocks=tuple(blocks)))
    assert found.proven and found.best.period * found.best.instance.tick / scale == search(plain).best.period


def test_amounts_and_times_of_many_digits_are_searched() -> None:
    """Without a common unit, sums of amount x time do not fit into 64 bits."""
    draw = random.Random(0)
    plain = pipeline(v(4), forward=1, backward=2, memory=1)
    takes = {block.name[1:]: draw.randrange(10**10, 2 * 10**10) for block in plain.blocks}
    blocks = [replace(block, duration=draw.randrange(10**8, 2 * 10**8),
                      memory=tuple(int(amount) * takes[block.name[1:]] for amount in block.memory))
              for block in plain.blocks]
    devices = [replace(device, memory=6 * 10**10) for device in plain.devices]
    found = search(replace(plain, devices=tuple(devices), blocks=tuple(blocks)))
    judged(found.best)
    assert found.proven


def test_the_latency_shrinks_and_the_period_stays() -> None:
    instance = TickProblem.of(shape("k", 4, 20))
    found = find_period(instance, one_at_a_time(instance), Budget(deterministic=5)).best
    shorter = shorten_latency(found, Budget(), deterministic=5)
    assert shorter.period == found.period == 6
    assert shorter.latency == 16 <= found.latency


@pytest.mark.parametrize("edge", [0, 1, 2])
def test_a_completed_repetend_is_valid_for_any_number_of_micro_batches(edge: int) -> None:
    problem = m_shape(4, 4, [80, 101, 119, 92], 30)
    instance = TickProblem.of(problem)
    found = search(problem).best
    completion = complete(instance, found, 1000, Budget(deterministic=5), edge=edge)
    assert completion is not None
    repeated = FixedOrder(instance, 40, repeat(found, 40)).makespan
    for micro_batches in (completion.micro_batches, 40, 41):
        operations = time_orders(problem, micro_batches, completion.unrolled(micro_batches))
        validate(Schedule(problem, micro_batches, operations, 0.0))
        if micro_batches == 40:
            assert max(operation.end for operation in operations) <= repeated


def test_decimal_durations_are_exact_and_others_are_rounded_up() -> None:
    exact = TickProblem.of(pipeline(v(2), forward=0.1, split=(0.3, 0.25)))
    assert exact.tick == Fraction(1, 20)
    assert exact.inflation == 1
    rough = TickProblem.of(pipeline(chain(2), forward=0.123456789012345, backward=9876.54321))
    assert rough.inflation > 1
    assert rough.inflation < 1 + Fraction(1, 10**4)
    for block, ticks in zip(rough.problem.blocks, rough.durations, strict=True):
        assert Fraction(str(block.duration)) <= ticks * rough.tick


@pytest.mark.parametrize("memory", [2, 4])
def test_a_baseline_shows_the_period_that_its_steady_state_has(memory: int) -> None:
    instance = TickProblem.of(pipeline(chain(4), forward=1, backward=2, memory=memory))
    assert periodic_seed(instance, "1f1b").period == (3 if memory == 4 else 12)  # 1F1B itself wants a memory of 4
    assert periodic_seed(instance, None).period == 12


@pytest.mark.parametrize(("depth", "further"), [(2, 0), (4, 0), (8, 42)])
def test_an_embedding_on_all_devices_adds_its_time_to_the_period_of_the_chain(depth: int, further: int) -> None:
    """Time in which a block holds every device is cut out; what is left is the chain alone, under the same memory.

    With little memory the chain's devices idle enough to meet twice a period for nothing; with much they do not.
    """
    forward = [97, 113, 88, 104, 91, 120, 99, 85]
    embedded = m_shape(8, depth, forward, embedding=10)
    first, *rest = embedded.blocks[1:-1]
    alone = search(replace(embedded, blocks=(replace(first, after=()), *rest)))
    found = search(embedded)
    assert found.proven and alone.proven
    assert found.best.period == alone.best.period + 30 + further


def test_sixteen_devices_with_embeddings_and_a_split_backward_are_proven() -> None:
    """Four blocks that hold all sixteen devices: open after 25 s without the contraction."""
    sizes = [97, 113, 88, 104, 91, 120, 99, 85, 110, 93, 101, 118, 82, 95, 107, 90]
    found = search(nn_shape(sizes, memory=8))
    assert found.proven and found.best.period.denominator == 1


def nn_shape(forward: list[int], memory: int) -> Problem:
    """Encoder and decoder embeddings over all devices, a chain with F = I = W and unequal stages."""
    p, everywhere = len(forward), tuple(range(len(forward)))
    blocks = [Block("e", BlockKind.FORWARD, everywhere, 30)]

    def add(name: str, kind: BlockKind, on: tuple[int, ...], duration: int, amount: int, after: str) -> None:
        blocks.append(Block(name, kind, on, duration, (amount,), (), (Dependency(after),)))

    for d in range(p):
        if d == p // 2:
            add("e2", BlockKind.FORWARD, everywhere, 30, 0, blocks[-1].name)
        add(f"f{d}", BlockKind.FORWARD, (d,), forward[d], 2, blocks[-1].name)
    last = blocks[-1].name
    for d in reversed(range(p)):
        if d == p // 2 - 1:
            add("d2", BlockKind.BACKWARD, everywhere, 60, 0, last)
            last = "d2"
        add(f"i{d}", BlockKind.INPUT_GRAD, (d,), forward[d], -1, last)
        add(f"w{d}", BlockKind.WEIGHT_GRAD, (d,), forward[d], -1, f"i{d}")
        last = f"i{d}"
    add("d", BlockKind.BACKWARD, everywhere, 60, 0, last)
    return Problem("nn", tuple(Device(f"gpu{d}", memory) for d in range(p)), tuple(blocks))
