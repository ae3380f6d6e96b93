"""Times, and what exceeds a memory, are those of slower and simpler code; both kernels have them alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import KERNELS, KINDS, Case, Kernel, case, shuffled, tight
from weft.solver.orders.timed_rows import NEVER
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.timing import DeadlockError, time_orders

kernels = pytest.mark.parametrize("kernel_class", KERNELS)


@kernels
@given(st.sampled_from(KINDS), st.integers(0, 10**6))
def test_starts_are_those_of_fixed_orders(kernel_class: type[Kernel], kind: str, number: int) -> None:
    some = case(kind, number)
    kernel, n = kernel_class(some.tables), some.micro_batches
    if not kernel.set(some.flat):
        assert some.tables.instance.mixed_pools  # what waits for memory alone may wait for ever
        return
    orders = some.tables.with_waits(some.flat, kernel.starts)
    fixed = FixedOrder(some.tables.instance, n, orders)
    assert kernel.makespan == fixed.makespan
    assert {divmod(v, n): at for v, at in enumerate(kernel.starts.tolist())} == fixed.start
    timed = time_orders(some.problem, n, orders)
    last = max(operation.end for operation in timed)
    assert last == pytest.approx(some.tables.instance.time(kernel.makespan))


def exceeded(some: Case) -> int:
    """By how much the start of every operation exceeds what its device has, where no lane shares it."""
    instance, over = some.tables.instance, 0
    for device in instance.distinct_devices:
        capacity, level = instance.capacity[device], 0
        if capacity is None or not instance.limited(device):
            continue
        for block, _ in some.tables.orders(some.flat)[device]:
            over += max(0, level + instance.take[device][block] - capacity)
            level += instance.change[device][block]
    return over


@kernels
@given(st.sampled_from(KINDS), st.integers(0, 10**6))
def test_overflow_is_the_sum_over_devices(kernel_class: type[Kernel], kind: str, number: int) -> None:
    for some in (case(kind, number), tight(case(kind, number))):
        kernel = kernel_class(some.tables)
        kernel.set(some.flat)
        assert kernel.overflow == exceeded(some)


@kernels
def test_orders_that_wait_in_a_circle_are_told(kernel_class: type[Kernel]) -> None:
    found = 0
    for number in range(40):
        some = case("small", number)
        kernel, flat = kernel_class(some.tables), shuffled(some, number)
        try:
            FixedOrder(some.tables.instance, some.micro_batches, some.tables.orders(flat))
        except DeadlockError:
            found += 1
            assert not kernel.set(flat)
            assert kernel.makespan == kernel.best == NEVER and not kernel.anneal(100, 1.0, 0.1, 1.0, 0)
        else:
            assert kernel.set(flat)
    assert 5 < found < 35


@kernels
def test_rows_of_another_length_are_refused(kernel_class: type[Kernel]) -> None:
    some = case("small", 4)
    kernel = kernel_class(some.tables)
    for flat in (some.flat[:-1], np.append(some.flat, 0)):
        with pytest.raises(ValueError, match=rf"^there are {len(flat)} operations in rows of {len(some.flat)}$"):
            kernel.set(flat)
