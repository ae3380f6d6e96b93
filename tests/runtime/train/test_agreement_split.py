"""Backwards that the plan splits: modules that the executor can split, and others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support.agreements import CPU, WIDTH, a_plan, sign, training_of
from weft.runtime import measure_stages, measured_problem, plan_of
from weft.runtime.checkpoint.signature import SignatureError
from weft.runtime.train.agreement import Allowed
from weft.solver.baselines import baseline


class Conv1D(nn.Module):
    """A linear layer as GPT-2's code has it."""

    def __init__(self, inputs: int = WIDTH, outputs: int = WIDTH) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs) / 9), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Subclass(nn.Linear):
    """Like its parent, as far as anybody can tell."""


class Product(nn.Module):
    """Uses a bare parameter."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.table if len(self.table) == WIDTH else x + self.table


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def tied_to_an_embedding() -> nn.Module:
    made = nn.ModuleDict({"table": nn.Embedding(WIDTH, WIDTH), "head": nn.Linear(WIDTH, WIDTH)})
    made["head"].weight = made["table"].weight
    return made


SPLIT: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "linear, norm, embedding": lambda: nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm((4, 4)), nn.Embedding(99, 9)]),
    "embedding and norm alone": lambda: nn.ModuleList([nn.Embedding(99, 9), nn.LayerNorm((4, 4))]),
    "frozen": lambda: nn.ModuleList([frozen(Conv1D()), nn.Linear(4, 4)]),
    "convolution": lambda: nn.Conv1d(3, 3, 3),
    "positions": lambda: nn.ModuleList([Product(1, WIDTH), nn.Linear(20, 20)]),
    "tied to an embedding": tied_to_an_embedding,
    "nothing": nn.Identity,
}
UNSPLIT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "as GPT-2": (Conv1D, r"100% of its weights \(36 of 36\) .*: weight \(Conv1D\), as it defers"),
    "half": (lambda: nn.Sequential(Conv1D(), nn.Linear(WIDTH, WIDTH)), r"50% of its weights .*: 0.weight \(Conv1D"),
    "subclass": (lambda: Subclass(WIDTH, WIDTH), r"weight \(Subclass\)"),
    "parametrized": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), "parametrizations.weight"),
    "convolution": (lambda: nn.Conv1d(3, 3, 3, padding=1, padding_mode="circular"), r"weight \(Conv1d\)"),
    "attention": (lambda: nn.MultiheadAttention(4, 2), r"in_proj_weight \(MultiheadAttention\), out_proj.weight"),
    "complex": (lambda: nn.Linear(4, 4, dtype=torch.complex64), r"weight \(Linear\)"),
    "bare": (lambda: Product(WIDTH, WIDTH), r"table \(Product\)"),
    "many": (lambda: nn.Sequential(*(Conv1D() for _ in range(9))), r"3.weight \(Conv1D\) and 5 more"),
}


@pytest.mark.parametrize("kind", SPLIT)
def test_modules_that_the_executor_can_split_are_not_refused(kind: str) -> None:
    assert sign(a_plan(), nn.Linear(WIDTH, WIDTH), SPLIT[kind]())[1] == []


@pytest.mark.parametrize("kind", UNSPLIT)
def test_modules_that_the_executor_cannot_split_are_refused_by_name(kind: str) -> None:
    """GPT-2 was planned with W of 21 ms that took 0.04."""
    make, says = UNSPLIT[kind]
    modules = nn.Linear(WIDTH, WIDTH), make()
    with pytest.raises(SignatureError, match=rf"^stage 1: the plan splits its backward, but of .*{says}") as raised:
        sign(a_plan(), *modules)
    assert str(raised.value).endswith("or go on with --allow-unsplit")
    told = sign(a_plan(), *modules, allowed=Allowed(unsplit=True))[1]
    assert len(told) == 1 and told[0].startswith("stage 1: the plan splits its backward")
    assert sign(a_plan(split=None), *modules)[1] == []  # a full backward needs no splitting


def test_a_planned_w_that_takes_no_time_may_run_in_i() -> None:
    assert sign(a_plan(split=(100, 1)), Conv1D(), Conv1D())[1] == []


def test_stages_measured_as_they_run_are_not_refused() -> None:
    """Their I holds what cannot be deferred, and their W is as short as it is."""
    whole = training_of([Conv1D(), nn.Linear(WIDTH, WIDTH)], [0, 0], 0)
    costs = measure_stages(whole, device=CPU, repeats=1)
    assert [cost.deferred for cost in costs] == [0, WIDTH * (WIDTH + 1)]
    plan = plan_of(baseline("greedy", measured_problem(costs, backward="split"), 2))
    assert sign(plan, Conv1D(), nn.Linear(WIDTH, WIDTH))[1] == []
    with pytest.raises(SignatureError, match=r"^stage 1: when its W was measured, the weight gradients of 42 "
                                             r"parameters waited for it, but now the executor defers those of 0"):
        sign(plan, Conv1D(), Conv1D())
