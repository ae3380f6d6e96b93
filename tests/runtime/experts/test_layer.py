from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.expert_ranks import EXPERTS, HIDDEN, given, layer_of, masks, placements
from tests.support.ranks import finished
from weft.runtime.experts.layer import ExpertLayer, ExpertPlacement, grouped_product


def dense(layer: ExpertLayer, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Every token through every expert, weighed by the masked gate; and its auxiliary loss."""
    weights = torch.softmax(layer.gate.logits(x), -1) * mask
    experts = [layer.expert(e) for e in range(EXPERTS)]
    results = torch.stack([F.gelu(x @ expert.up) @ expert.down for expert in experts], 1)
    return (weights.unsqueeze(-1) * results).sum(1), weights.sum() * 0.1


@pytest.fixture(scope="module", params=[2, 4])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("experts")
    finished(request.param, "tests.support.expert_ranks", str(folder), "layers")
    return [torch.load(folder / f"layers-{rank}.pt") for rank in range(request.param)]


@pytest.mark.parametrize("placed", ["even", "replicated", "mixed", "one rank"])
@pytest.mark.parametrize("chosen", ["all", "expert 3 without tokens", "all on one", "one each"])
def test_ranks_compute_what_a_dense_mixture_does(found: list[dict[str, Any]], placed: str, chosen: str) -> None:
    ranks = len(found)
    whole = layer_of(ExpertPlacement.even(EXPERTS, 1), 0)
    gates = []
    for rank in range(ranks):
        before = None if whole.gate.logits.weight.grad is None else whole.gate.logits.weight.grad.clone()
        x = given(rank).requires_grad_()
        y, extra = dense(whole, x, masks(rank)[chosen])
        (y.sin().sum() + extra).backward()  # type: ignore[no-untyped-call]
        mine = found[rank][f"{placed}: {chosen}"]
        torch.testing.assert_close(mine["y"], y.detach(), rtol=0, atol=1e-10)
        torch.testing.assert_close(mine["x"], x.grad, rtol=0, atol=1e-10)
        assert mine["density"] == float(masks(rank)[chosen].sum()) / len(x)
        grad = whole.gate.logits.weight.grad
        assert grad is not None
        gates.append(grad - before if before is not None else grad.clone())
        torch.testing.assert_close(mine["weights"]["gate.logits.weight"], gates[-1], rtol=0, atol=1e-10)
    held = placements(ranks)[placed]
    for name, parameter in whole.named_parameters():
        if name.startswith("experts."):
            holders = held.holders[int(name.split(".")[1])]
            ours = [found[rank][f"{placed}: {chosen}"]["weights"][name] for rank in holders]
            total = sum((grad for grad in ours if grad is not None), start=torch.zeros_like(parameter))
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(total, expected, rtol=0, atol=1e-10)


def test_experts_that_do_not_divide_among_the_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="8 experts do not divide among 3 ranks evenly"):
        ExpertPlacement.even(8, 3)
    with pytest.raises(ValueError, match="expert 1 is on the ranks"):
        ExpertPlacement(2, ((0,), (2,)))


def test_a_gate_of_other_experts_is_refused() -> None:
    from weft.runtime.experts.gate import Gate

    with pytest.raises(ValueError, match="chooses from 4 experts, but 8 are placed"):
        ExpertLayer(Gate(HIDDEN, 4), HIDDEN, 4, ExpertPlacement.even(8, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("counts", [[3, 0, 5], [0, 0, 8], [8, 0, 0], [0, 0, 0]])
def test_each_row_meets_its_own_weights(dtype: torch.dtype, counts: list[int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(sum(counts), 16, dtype=dtype, requires_grad=True)
    weights = [torch.randn(16, 12, dtype=dtype, requires_grad=True) for _ in counts]
    kinds = [kind for kind, count in enumerate(counts) for _ in range(count)]
    found = grouped_product(x, counts, weights)
    rows = [row @ weights[kind] for row, kind in zip(x, kinds, strict=True)]
    wanted = torch.stack(rows) if rows else x.new_empty(0, 12)
    torch.testing.assert_close(found, wanted)
    assert found.requires_grad
    if kinds:
        ours = torch.autograd.grad(found.sin().sum(), [x, *weights], allow_unused=True)
        theirs = torch.autograd.grad(wanted.sin().sum(), [x, *weights], allow_unused=True)
        for mine, other, like in zip(ours, theirs, [x, *weights], strict=True):
            torch.testing.assert_close(torch.zeros_like(like) if mine is None else mine,
                                       torch.zeros_like(like) if other is None else other)
