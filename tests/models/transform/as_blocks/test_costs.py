"""Work of operators by hand, shares of given seconds, and the roofline."""

from __future__ import annotations

import pytest

from tests.support.programs import attention, convolutions, transformer
from weft.models.hardware.devices import DEVICES
from weft.models.transform.as_blocks.costs import GivenCosts, ModelledCosts, part_work
from weft.models.transform.program import PlanError, PlanProgram


def work(program: PlanProgram, name: str, **sizes: int) -> tuple[float, int, int]:
    operation = program.by_name[name]
    found = part_work(program, operation, {**operation.sizes, **sizes})
    return found.flops, found.bytes_read, found.bytes_written


def test_products_count_two_operations_an_element() -> None:
    program = transformer(batch=4, sequence=8, width=16, heads=4)
    assert work(program, "l0.up") == (2 * 4 * 8 * 16 * 64, 8 * (4 * 8 * 16 + 64 * 16), 8 * 4 * 8 * 64)
    assert work(program, "l0.up", f=16) == (2 * 4 * 8 * 16 * 16, 8 * (4 * 8 * 16 + 16 * 16), 8 * 4 * 8 * 16)
    assert work(program, "l0.act")[0] == 4 * 8 * 64


def test_attention_is_two_products_and_each_gradient_three() -> None:
    program = transformer(batch=4, sequence=8, width=16, heads=4)
    seen = 4.5 / 8  # of eight keys, by a query on average
    assert work(program, "l0.attend")[0] == 4 * 4 * 4 * 8 * 8 * 4 * seen
    gradient = next(one for one in program.operations if one.kind == "attention_grad0")
    assert work(program, gradient.name)[0] == 6 * 4 * 4 * 8 * 8 * 4 * seen
    plain = attention(batch=4, sequence=8, width=8, heads=4)
    assert work(plain, "scores")[0] + work(plain, "mixed")[0] == 4 * 4 * 4 * 8 * 8 * 2


def test_convolutions_and_their_gradients_count_the_same() -> None:
    program = convolutions(batch=4, channels=4, side=6)
    whole = 2 * 4 * 4 * 6 * 6 * 2 * 3 * 3
    kinds = {one.kind: work(program, one.name)[0] for one in program.operations
             if "conv1" in one.name and one.kind != "einsum"}
    assert kinds == {"convolution": whole, "convolution_grad_input": whole, "convolution_grad_weight": whole}


def test_given_seconds_are_shared_by_parts() -> None:
    program = transformer()
    costs = GivenCosts({"l0.up": 8.0, "l0.*": 2.0}, other=0.5)
    operation = program.by_name["l0.up"]
    assert costs.seconds(program, operation, operation.sizes) == 8.0
    assert costs.seconds(program, operation, {**operation.sizes, "f": operation.sizes["f"] // 4}) == 2.0
    assert costs.seconds(program, program.by_name["l0.down"], program.by_name["l0.down"].sizes) == 2.0
    assert costs.seconds(program, program.by_name["head"], program.by_name["head"].sizes) == 0.5


def test_the_roofline_grows_with_work_and_has_a_floor() -> None:
    costs, small, large = ModelledCosts("a100"), transformer(), transformer(batch=2048, width=256)
    up = [costs.seconds(one, one.by_name["l0.up"], one.by_name["l0.up"].sizes) for one in (small, large)]
    assert up[0] == pytest.approx(DEVICES["a100"].launch["forward"], rel=0.1) and up[1] > 10 * up[0]
    assert all(costs.seconds(small, one, one.sizes) > 0 for one in small.operations)


def test_what_means_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="there is no device 'b100'; there are v100"):
        ModelledCosts("b100")
    with pytest.raises(PlanError, match="'up' takes -1 seconds"):
        GivenCosts({"up": -1})
    with pytest.raises(PlanError, match="'other' takes nan seconds"):
        GivenCosts({}, float("nan"))
