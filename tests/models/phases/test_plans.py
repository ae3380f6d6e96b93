from __future__ import annotations

import itertools
import math

import pytest

from weft.models.phases.plans import Holdings, PhasePlan, Shard, moves_between, shards_of
from weft.models.spec.spec import parse_spec

LISTED = parse_spec("""
model: {layers: [{name: a, forward: 1 ms, backward: 2 ms, parameters: 1000},
                 {name: b, forward: 1 ms, backward: 2 ms, parameters: 500},
                 {name: c, forward: 1 ms, backward: 2 ms, parameters: 2000}]}
cluster: {gpus: 2, memory: 40 GiB, bandwidth: 1 GB/s, latency: 1 ms}
training: {micro_batches: 4}
""")
MOE = parse_spec("""
model: {family: moe, layers: 2, hidden: 256, heads: 4, vocabulary: 1024, sequence: 128, experts: 8}
cluster: {gpus: 4, device: a100, memory: 40 GiB}
training: {micro_batches: 4}
""")


def _chain(*cut: tuple[str, ...]) -> PhasePlan:
    return PhasePlan("", "stages", "full", cut, tuple((gpu,) for gpu in range(len(cut))))


def test_a_layer_that_changes_its_gpu_moves_with_its_optimizer_state() -> None:
    before, after = (shards_of(LISTED, _chain(*cut)) for cut in ((("a",), ("b", "c")), (("a", "b"), ("c",))))
    found = moves_between(LISTED, before, after)
    assert found.bytes == 500 * (2 + 12)
    assert found.seconds == pytest.approx(1e-3 + 7000 / 1e9)
    assert moves_between(LISTED, before, before).bytes == 0


def test_what_every_gpu_has_need_not_move() -> None:
    everywhere = shards_of(LISTED, PhasePlan("", "data", "full"))
    chain = shards_of(LISTED, _chain(("a",), ("b", "c")))
    assert moves_between(LISTED, everywhere, chain).bytes == 0
    back = moves_between(LISTED, chain, everywhere)
    assert back.bytes == 3500 * 14
    assert back.seconds == pytest.approx(1e-3 + 2500 * 14 / 1e9)  # what GPU 0 receives of GPU 1, both ways at once


def test_slices_of_the_optimizer_state_are_brought_together() -> None:
    sliced = shards_of(LISTED, PhasePlan("", "data", "full", sliced=True))
    chain = shards_of(LISTED, _chain(("a",), ("b", "c")))
    assert moves_between(LISTED, sliced, chain).bytes == 3500 * 12 / 2
    assert moves_between(LISTED, shards_of(LISTED, PhasePlan("", "data", "full")), sliced).bytes == 0


def _share_by_cells(one: Shard, other: Shard) -> float:
    """The common share of two shards, counted over the cells of a grid."""
    size = 12
    def has(shard: Shard, cell: tuple[int, int]) -> bool:
        at = cell[0] if shard.dimension in ("", "x") else cell[1]
        return shard.index * size <= at * shard.parts < (shard.index + 1) * size

    cells = [(x, y) for x in range(size) for y in range(size)]
    return sum(has(one, cell) and has(other, cell) for cell in cells) / len(cells)


def test_the_common_share_of_shards_is_that_of_their_cells() -> None:
    shards = [Shard(), *(Shard(dimension, index, parts) for dimension in "xy" for parts in (2, 3, 4)
                         for index in range(parts))]
    for one, other in itertools.product(shards, repeat=2):
        assert math.isclose(one.common(other), _share_by_cells(one, other), abs_tol=1e-12), (one, other)


def test_experts_that_are_divided_otherwise_move() -> None:
    layers = ("embedding", "layer0", "layer1", "head")
    names = [f"layer{layer}.experts.{part}" for layer in range(2) for part in ("up", "down")]

    def held(dimension: str) -> Holdings:
        splits = ((4, tuple((name, dimension) for name in names)),)
        return shards_of(MOE, PhasePlan("", "groups", "full", (layers,), ((0, 1, 2, 3),), splits, ("",)))

    by_expert, by_output = held("experts"), held("output")
    experts = sum(8 * 2 * 256 * 1024 for _ in range(2))
    biases = 2 * 8 * (256 + 1024)
    found = moves_between(MOE, by_expert, by_output)
    assert found.bytes == pytest.approx((experts + biases) * 14 * 3 / 4)
    assert moves_between(MOE, by_output, by_output).bytes == 0
