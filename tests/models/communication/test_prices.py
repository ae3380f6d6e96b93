"""Seconds of stages by bytes, operations and launches."""

from __future__ import annotations

import pytest

from tests.support.communication import pipelined, tensor_parallel
from weft.communication import data_parallel, fuse, reorder, split
from weft.models.communication.prices import EngineWork, Prices, prices_on, require_named, work_of
from weft.models.communication.program import CommunicationError, CommunicationProgram
from weft.models.hardware.devices import DEVICES
from weft.models.layers.collectives import collective_time

PRICES = Prices(bandwidth=100.0, memory=1000.0, launch=7.0, kernel=3.0, flops=10.0, link=50.0)


def works(program: CommunicationProgram, stage: str, prices: Prices = PRICES,
          written: CommunicationProgram | None = None) -> tuple[EngineWork, ...]:
    return work_of(program, program.stage(stage), prices, written)


def seconds(program: CommunicationProgram, stage: str) -> float:
    return sum(work.seconds for work in works(program, stage))


def test_collectives_pass_parts_round_a_ring() -> None:
    program = tensor_parallel(4)  # the sum has 16 * 16 elements of 4 bytes
    made = split(program, "total", 0)
    assert works(program, "total") == (EngineWork((("network", 0),), 2 * 1024 * 3 / 4 / 100, 7.0),)
    assert seconds(made, "total") == seconds(made, "gather(total)") == seconds(program, "total") / 2
    chained = split(program, "total", into="reduce")
    assert seconds(chained, "total") == seconds(chained, "broadcast(total)") == 1024 / 100


def test_slices_take_their_share_and_sends_go_over_the_link() -> None:
    program = pipelined(2)
    made = reorder(split(program, "total", 0), ["there", "biased", "dropped", "out"], "gather(total)")
    assert works(program, "there") == (EngineWork((("link", 0),), 8 * 12 * 4 / 50, 7.0),)
    assert seconds(made, "there") == seconds(program, "there") / 2
    assert works(program, "out") == (EngineWork((("compute", 1),), 3 * 8 * 12 * 4 / 1000, 3.0),)
    assert seconds(made, "out") == seconds(program, "out") / 2
    assert works(made, "slice(residual)") == ()


def test_a_fused_stage_moves_what_it_reads_and_leaves_once() -> None:
    program = data_parallel("adam", 4, (16, 16))
    size = 16 * 16 * 4
    fused = fuse(program, [stage.name for stage in program.stages if stage.kind != "all_reduce"], "update")
    # the sum, weight, mean and square are read, the last three written; the count of steps is one number
    assert works(fused, "update") == (EngineWork((("compute", 0),), (7 * size + 4) / 1000, 3.0),)
    apart = sum(seconds(program, stage.name) for stage in program.stages if stage.kind == "pointwise")
    assert apart == pytest.approx((14 * size + 4) / 1000)
    assert works(program, "weight.next") == ()


def test_what_a_norm_stands_between_is_moved() -> None:
    program = data_parallel("lamb", 4, (16, 16))
    size = 16 * 16 * 4
    fused = fuse(program, [stage.name for stage in program.stages if stage.kind != "all_reduce"], "update")
    # first the sum, mean, square and weight are read, two means and the direction written; then the direction and the
    # weight are read, the weight written; beside them the count of steps is read, two norms are written and read
    assert seconds(fused, "update") == (10 * size + 4 + 4 * 4) / 1000


def test_fused_with_collectives_it_is_one_launch_on_the_network() -> None:
    program = data_parallel("lamb", 4, (16, 16))
    made = split(program, "gradient")
    made = reorder(made, [stage.name for stage in made.stages if stage.kind not in ("reduce_scatter", "all_gather")],
                   "gather(gradient)")
    fused = fuse(made, list(made.by_name), "all")
    (work,) = works(fused, "all")
    assert work.engines == (("network", 0),)
    assert work.launch == 3 * 7.0  # and two norms of slices
    assert works(made, "weight.norm") == (EngineWork((("compute", 0),), (16 * 16 + 4) / 1000, 3.0),
                                          EngineWork((("network", 0),), 0.0, 7.0))
    computed = fuse(made, [stage.name for stage in made.stages if stage.kind not in ("reduce_scatter", "all_gather")],
                    "computed")
    (work,) = works(computed, "computed")
    assert work.engines == (("compute", 0), ("network", 0)) and work.launch == 3.0 + 2 * 7.0


def test_matmuls_are_priced_by_operations_or_by_name() -> None:
    program = tensor_parallel(4)
    assert seconds(program, "xw") == 2 * 16 * 16 * 2 / 10
    named = Prices(bandwidth=1.0, memory=1.0, compute={"xw": 5.0, "out": 8.0})
    made = reorder(split(program, "total", 0), ["biased", "dropped", "out"], "gather(total)")
    assert works(made, "xw", named, program) == (EngineWork((("compute", 0),), 5.0, 0.0),)
    assert works(made, "out", named, program) == (EngineWork((("compute", 0),), 2.0, 0.0),)
    with pytest.raises(CommunicationError, match="the matmul 'xw' has no price: give flops"):
        works(program, "xw", Prices(bandwidth=1.0, memory=1.0))


def test_seconds_by_name_are_those_of_fused_parts_too_and_of_no_other_stages() -> None:
    program = tensor_parallel()
    named = Prices(bandwidth=1.0, memory=1e12, flops=1e12, compute={"out": 8.0})
    fused = fuse(program, ["biased", "dropped", "out"], "rest")
    (work,) = works(fused, "rest", named)
    assert 8.0 <= work.seconds < 8.001
    require_named(fused, named)
    for name, why in (("total", "it is of kind all_reduce"), ("autput", "there is no such stage")):
        with pytest.raises(CommunicationError, match=f"seconds of '{name}', but {why}: .* xw, biased, dropped, out"):
            require_named(program, Prices(bandwidth=1.0, memory=1.0, compute={name: 1.0}))


def test_one_rank_has_nothing_to_send() -> None:
    assert works(tensor_parallel(1), "total") == ()


@pytest.mark.parametrize(("wrong", "why"), [
    ({"bandwidth": 0.0}, "bandwidth is 0.0"), ({"flops": -1.0}, "flops is -1.0"), ({"launch": -1.0}, "launch takes -1"),
    ({"compute": {"a": float("nan")}}, "a takes nan seconds")])
def test_prices_that_mean_nothing_are_refused(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(CommunicationError, match=why):
        Prices(**{"bandwidth": 1.0, "memory": 1.0, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("ranks", [4, 16])
def test_an_all_reduce_takes_what_is_modelled(ranks: int, machines: int) -> None:
    device = DEVICES["h100"]
    program = tensor_parallel(ranks, 1024, 64, 4096)
    (work,) = work_of(program, program.stage("total"), prices_on("h100", ranks, machines=machines))
    expected = collective_time("all_reduce", program.tensors["total"].bytes, ranks, device, machines=machines)
    assert work.seconds + work.launch == pytest.approx(expected.seconds, rel=1e-4)


def test_kernels_reach_their_shares_of_the_peaks() -> None:
    device, program = DEVICES["v100"], tensor_parallel(4, 1024, 64, 4096)
    prices = prices_on(device, 4, compute={"out": 1.0})
    (matmul,), (biased,), (out,) = (work_of(program, program.stage(name), prices) for name in ("xw", "biased", "out"))
    assert matmul.seconds == pytest.approx(2 * 1024 * 16 * 4096 / (125e12 * 0.6824))
    assert biased.seconds == pytest.approx((2 * 1024 + 1) * 4096 * 4 / (900e9 * 0.7983))
    assert (out.seconds, matmul.launch) == (1.0, device.launch["forward"])


@pytest.mark.parametrize(("arguments", "why"), [
    (("v1000", 4, 1, "float16"), "there is no device 'v1000'"), (("v100", 4, 3, "float16"), "3 machines do not divide"),
    (("v100", 4, 1, "int3"), "v100 has no peak of int3")])
def test_what_is_not_known_is_refused(arguments: tuple[str, int, int, str], why: str) -> None:
    device, ranks, machines, dtype = arguments
    with pytest.raises(CommunicationError, match=why):
        prices_on(device, ranks, machines=machines, dtype=dtype)
