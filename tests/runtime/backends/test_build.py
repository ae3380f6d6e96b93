"""The module that runs an assignment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from weft.runtime.backends.assignment import AssignedPart, Assignment, load_assignment, save_assignment
from weft.runtime.backends.build import PlacedModule, assembled, build, captured_of
from weft.runtime.backends.graph import UnitGraph
from weft.runtime.backends.registry import EAGER, BackendError
from weft.runtime.backends.trial import compared


class Attention(nn.Module):
    """One layer with attention."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Self-attention of two heads, and a residual."""
        q, k, v = self.into(x).view(2, 4, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + torch.relu(self.out(a.transpose(1, 2).reshape(2, 4, 8)))


def exported() -> tuple[nn.Module, torch.export.ExportedProgram, torch.Tensor]:
    torch.manual_seed(0)
    model, x = Attention().eval(), torch.randn(2, 4, 8)
    return model, torch.export.export(model, (x,)), x


@pytest.mark.parametrize("kernel", ["sdpa-math", "sdpa-flash"])
def test_kernels_of_attention_compute_the_same(kernel: str) -> None:
    model, program, x = exported()
    captured = captured_of(program)
    graph = UnitGraph(captured)
    found = PlacedModule(captured, assembled(graph, [(kernel if graph.kinds(unit) == ("scaled_dot_product_attention",)
                                                      else EAGER, [unit]) for unit in range(len(graph.units))]))
    torch.testing.assert_close(found(x), model(x))


@pytest.mark.parametrize("kernel", ["sdpa-math", "sdpa-flash"])
def test_kernels_of_attention_take_masks_of_truth(kernel: str) -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    given = torch.randn(2, 3, 4, 8), torch.ones(4, 4, dtype=torch.bool).tril()
    captured = captured_of(torch.export.export(Masked(), given))
    found = PlacedModule(captured, assembled(UnitGraph(captured), [(kernel, [0])]))
    torch.testing.assert_close(found(*given), Masked()(*given))


def test_an_assignment_is_written_read_and_built(tmp_path: Path) -> None:
    model, program, x = exported()
    graph = UnitGraph(captured_of(program))
    parts = tuple(AssignedPart(EAGER, tuple(node.name for node in nodes), 1e-6) for nodes in graph.units)
    made = Assignment("attention", graph.captured.digest, "here", parts, 1e-5, 1e-5, None, None, {EAGER: 1e-5})
    save_assignment(made, tmp_path / "a.json")
    assert load_assignment(tmp_path / "a.json") == made
    found = build(program, tmp_path / "a.json")
    torch.testing.assert_close(found(x), model(x))
    with pytest.raises(BackendError, match=r"is \(3, 4, 8\) torch.float32, but the model was placed for \(2, 4, 8\)"):
        found(torch.randn(3, 4, 8))
    other = torch.export.export(nn.Linear(8, 8), (x,))
    with pytest.raises(BackendError, match="for another graph"):
        build(other, made)
    with pytest.raises(BackendError, match="has no part with the operator"):
        build(program, Assignment("attention", made.digest, "here", parts[1:], 1e-5, 1e-5))


def test_a_part_that_is_not_convex_is_refused() -> None:
    graph = UnitGraph(captured_of(exported()[1]))
    with pytest.raises(BackendError, match="not convex"):
        graph.require_part([0, 2], "mine")


def test_a_backend_that_is_not_known_is_named() -> None:
    from weft.runtime.backends.registry import backends_named

    with pytest.raises(BackendError, match="names 'nobody'"):
        backends_named("nobody", "cpu")
    assert callable(weft.backend) and callable(weft.build)


def test_wrong_numbers_are_refused_with_the_largest_error() -> None:
    right = torch.tensor([1.0, 2.0])
    assert compared([right.clone()], [right]) == (0.0, None)
    error, why = compared([right + 0.2], [right])
    assert error == pytest.approx(0.1) and why is not None and "largest error is 0.1" in why
