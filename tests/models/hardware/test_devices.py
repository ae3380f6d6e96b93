"""What devices compute in, and what they refuse."""

from __future__ import annotations

import pytest

from weft.models.graph.operators import Work
from weft.models.hardware.devices import DEVICES, DeviceError
from weft.models.times.roofline import pass_seconds


@pytest.mark.parametrize("name", ["h100", "h800", "h200", "b200"])
def test_newer_gpus_compute_in_fp8_at_twice_the_rate_of_bf16(name: str) -> None:
    device = DEVICES[name]
    assert device.peak("float8_e4m3fn") == pytest.approx(2 * device.peak("bfloat16"), rel=1e-3)


@pytest.mark.parametrize("name", ["v100", "v100-16gb", "a100", "a100-40gb", "a100-80gb", "cpu"])
def test_fp8_is_refused_by_name_where_there_are_no_units_for_it(name: str) -> None:
    with pytest.raises(DeviceError, match=f"^{name} does not compute in float8_e4m3fn, only in float64, "):
        pass_seconds(DEVICES[name], "linear", Work(flops=10**9), "float8_e4m3fn", "forward")


def test_whole_numbers_are_computed_by_element_wise_kernels() -> None:
    assert DEVICES["v100"].peak("int64") == DEVICES["v100"].vector_flops
