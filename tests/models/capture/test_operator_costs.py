"""What a call costs, counted on tensors without data."""

from __future__ import annotations

from itertools import product

import pytest

from weft.models.graph.operators import causal_share

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("rows", "keys"), list(product((1, 3, 8), repeat=2)))
def test_a_causal_query_sees_the_keys_up_to_its_own(rows: int, keys: int) -> None:
    mask = torch.ones(rows, keys).tril()
    assert causal_share(rows, keys) == pytest.approx(float(mask.mean()))


def test_causal_attention_skips_what_is_masked_forward_and_backward() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from weft.models.capture.operator_costs import call_cost

    attend = torch.ops.aten.scaled_dot_product_attention.default
    with FakeTensorMode():
        q, k, v = (torch.empty(2, 4, 64, 16, requires_grad=True) for _ in range(3))
        whole, causal = (call_cost(attend, (q, k, v), {"is_causal": told}, set()) for told in (False, True))
    assert whole.forward.flops == 2 * 2 * 2 * 4 * 64 * 64 * 16
    assert causal.forward.flops == pytest.approx(whole.forward.flops * 65 / 128)
    assert whole.input_grad is not None and causal.input_grad is not None
    assert causal.input_grad.flops == pytest.approx(whole.input_grad.flops * 65 / 128)
    assert causal.forward.bytes_read == whole.forward.bytes_read
