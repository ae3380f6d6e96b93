"""Problems check themselves, and say which entry is at fault."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

import networkx as nx
import pytest

from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem, ProblemError


def block(name: str = "a", devices: tuple[int, ...] = (0,), duration: Any = 1, **fields: Any) -> Block:
    return Block(name, BlockKind.FORWARD, devices, duration, **fields)


def problem(*blocks: Block, devices: int = 4, links: tuple[Link, ...] = ()) -> Problem:
    return Problem("p", tuple(Device(f"gpu{d}") for d in range(devices)), blocks, links)


def linked(link: Link) -> Problem:
    return problem(block("a"), block("b", (1,), after=(Dependency("a", 1, "wire"),)), links=(link,))


def laned(name: str, owner: str) -> Problem:
    return Problem("p", (Device(name, lane_of=owner), Device("gpu", 8), Device("copy", lane_of="gpu")),
                   (block(devices=(0, 1), memory=(1, 2)), block("b", (1,)), block("c", (2,))))


@pytest.mark.parametrize(("build", "message"), [
    (lambda: block(devices=()), "block 'a': devices is empty, a block runs on at least one device"),
    (lambda: block(devices=(1, 1)), "block 'a': devices [1, 1] names a device twice"),
    (lambda: block(duration=0), "block 'a': duration is 0, it must be greater than 0"),
    (lambda: block(duration=-2.5), "block 'a': duration is -2.5, it must be greater than 0"),
    (lambda: block(duration=math.nan), "block 'a': duration is nan, it must be a finite number"),
    (lambda: block(duration=math.inf), "block 'a': duration is inf, it must be a finite number"),
    (lambda: block(duration="3"), "block 'a': duration is '3', it must be a finite number"),
    (lambda: block(duration=True), "block 'a': duration is True, it must be a finite number"),
    (lambda: block(duration=10**400), "block 'a': duration is"),
    (lambda: block(duration=1e308), "block 'a': duration is 1e+308, it must be a finite number of at most 1e+60"),
    (lambda: block(duration=1e-320), "block 'a': duration is 1e-320, it must be 0 or at least 1e-60"),
    (lambda: block(memory=(-1e-320,)), "block 'a': memory is -1e-320, it must be 0 or at least 1e-60"),
    (lambda: block(workspace=(1e101,)), "block 'a': workspace is 1e+101, it must be a finite number of at most"),
    (lambda: block(after=(Dependency("b", lag=1e-200),)), "block 'a': after 'b': lag is 1e-200, it must be 0 or"),
    (lambda: block("a\x1b[2J"), "block 'a\\x1b[2J': the name holds the character '\\x1b', which cannot be shown"),
    (lambda: block("\ud800"), "block '\\ud800': the name holds the character '\\ud800', which cannot be shown"),
    (lambda: Device("\ufffe"), "device '\\ufffe': the name holds the character '\\ufffe', which cannot be shown"),
    (lambda: Link("a\0", 0, 1), "link 'a\\x00': the name holds the character '\\x00', which cannot be shown"),
    (lambda: Device("x" * 1001), f"device '{'x' * 57}...': the name has 1001 characters, at most 1000 are allowed"),
    (lambda: block(after=(Dependency("x" * 1001),)), f"block 'a': after '{'x' * 57}...': the name has 1001 characters"),
    (lambda: Device(3), "device: the name is 3, it must be text"),  # type: ignore[arg-type]
    (lambda: block(memory=(math.nan,)), "block 'a': memory is nan, it must be a finite number"),
    (lambda: block(memory=(1, 2)), "block 'a': memory has 2 entries for 1 devices"),
    (lambda: block(devices=(0, 1, 2), memory=(1, 2)), "block 'a': memory has 2 entries for 3 devices"),
    (lambda: block(workspace=(-1,)), "block 'a': workspace is -1, it must be 0 or more"),
    (lambda: block(after=(Dependency("b", lag=-1),)), "block 'a': after 'b': lag is -1, it must be 0 or more"),
    (lambda: block(after=(Dependency("b", lag=math.nan),)), "block 'a': after 'b': lag is nan, it must be a finite"),
    (lambda: block(after=(Dependency("b", distance=-1),)), "block 'a': after 'b': distance is -1, it must be 0 or"),
    (lambda: Device("gpu0", -1), "device 'gpu0': memory is -1, it must be 0 or more"),
    (lambda: Device("gpu0", math.nan), "device 'gpu0': memory is nan, it must be a finite number"),
    (lambda: Device("nic", lane_of=3),  # type: ignore[arg-type]
     "device 'nic': lane_of: the name is 3, it must be text"),
    (lambda: Device("nic", 4, lane_of="gpu0"),
     "device 'nic': memory is 4, but a lane has none of its own: leave it out"),
    (lambda: Device("nic", static=2, lane_of="gpu0"), "device 'nic': static is 2, but a lane has none of its own"),
    (lambda: laned("nic", "gpu9"), "device 'nic': lane_of is 'gpu9', but there is no device of that name"),
    (lambda: laned("nic", "nic"), "device 'nic': lane_of is 'nic', but no device is a lane of itself"),
    (lambda: laned("nic", "copy"), "device 'nic': lane_of is 'copy', which is a lane itself: name the device both are "
                                   "engines of, 'gpu'"),
    (lambda: problem(), "blocks is empty, a problem has at least one block"),
    (lambda: problem(block(), devices=0), "devices is empty, a problem has at least one device"),
    (lambda: problem(block(), block()), "blocks: the name 'a' is used twice"),
    (lambda: problem(block(devices=(7,))), "block 'a': devices names device 7, but there are 4 devices (0 to 3)"),
    (lambda: problem(block(devices=(-1,))), "block 'a': devices names device -1, but there are 4 devices (0 to 3)"),
    (lambda: problem(block(after=(Dependency("b"),))), "block 'a': after 'b': there is no block of that name"),
    (lambda: problem(block(after=(Dependency("a"),))), "the blocks wait for each other in a cycle: a -> a"),
    (lambda: linked(Link("other", 0, 1)), "block 'b': after 'a': there is no link named 'wire'"),
    (lambda: linked(Link("wire", 1, 0)), "block 'b': after 'a': link 'wire' goes from device 1 to device 0, but the "
                                         "blocks run on [0] and [1]"),
    (lambda: linked(Link("wire", 0, 9)), "link 'wire': target names device 9, but there are 4 devices (0 to 3)"),
])
def test_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ProblemError) as caught:
        build()
    assert str(caught.value).startswith(message)


def test_duplicate_devices_and_links() -> None:
    with pytest.raises(ProblemError, match="devices: the name 'x' is used twice"):
        Problem("p", (Device("x"), Device("x")), (block(),))
    with pytest.raises(ProblemError, match="links: the name 'wire' is used twice"):
        linked(Link("wire", 0, 1)).__class__("p", (Device("x"), Device("y")), (block(),),
                                             (Link("wire", 0, 1), Link("wire", 1, 0)))


def test_a_cycle_is_named_and_the_way_out_said() -> None:
    ring = [block(name, after=(Dependency(before),)) for name, before in (("a", "c"), ("b", "a"), ("c", "b"))]
    with pytest.raises(ProblemError) as caught:
        problem(*ring)
    assert "a -> b -> c -> a" in str(caught.value)
    assert "give it a distance of 1" in str(caught.value)


def test_a_cycle_over_micro_batches_is_fine() -> None:
    ring = problem(block("a", after=(Dependency("b", distance=1),)), block("b", after=(Dependency("a"),)))
    assert ring.topological_order == (0, 1)


def test_one_amount_stands_for_all_devices() -> None:
    gang = block(devices=(2, 0), memory=(3,), workspace=(1, 2))
    assert (gang.memory_on(0), gang.memory_on(2), gang.memory_on(1)) == (3, 3, 0)
    assert (gang.workspace_on(0), gang.workspace_on(2), gang.workspace_on(1)) == (2, 1, 0)


def test_topological_order_does_not_need_file_order() -> None:
    backwards = problem(block("c", after=(Dependency("b"),)), block("b", (1,), after=(Dependency("a"),)), block("a"))
    assert backwards.topological_order == (2, 1, 0)
    assert backwards.blocks_on == ((0, 2), (1,), (), ())


def test_topological_order_takes_ties_in_file_order() -> None:
    draw = random.Random(1)
    for _ in range(50):
        order = draw.sample(range(8), 8)
        waits = [(i, j) for i, j in combinations(order, 2) if draw.random() < 0.2]
        graph: nx.DiGraph[int] = nx.DiGraph(waits)
        graph.add_nodes_from(range(8))
        found = problem(*(block(f"b{j}", after=tuple(Dependency(f"b{i}") for i, after in waits if after == j))
                          for j in range(8)))
        assert found.topological_order == tuple(nx.lexicographical_topological_sort(graph))


def test_a_device_and_its_lanes_are_a_pool() -> None:
    made = laned("nic", "gpu")
    assert made.has_lanes
    assert made.pool_of == (1, 1, 1)
    assert made.lanes_of == ((), (0, 2), ())
    assert made.pool_places == ({}, {0: (0, 1), 1: (0,), 2: (0,)}, {})


def test_without_lanes_each_device_is_its_own_pool() -> None:
    made = problem(block(devices=(1, 3)), block("b", (1,)), devices=4)
    assert not made.has_lanes
    assert made.pool_of == (0, 1, 2, 3)
    assert made.lanes_of == ((), (), (), ())
    assert made.pool_places == tuple({i: (place,) for i, place in here.items()} for here in made.places_on)
