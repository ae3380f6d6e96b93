"""Prices on a type of device against what its collectives and kernels are modelled with."""

from __future__ import annotations

import pytest

from tests.support.communication import tensor_parallel
from weft.models.communication.on_device import prices_on
from weft.models.communication.prices import work_of
from weft.models.communication.program import CommunicationError
from weft.models.hardware.devices import DEVICES
from weft.models.layers.collectives import collective_time


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
