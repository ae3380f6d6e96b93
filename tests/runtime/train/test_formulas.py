"""Each formula's gradients are those of torch for the operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.runtime.train.test_deferred import same, weights
from weft.runtime.train import formulas
from weft.runtime.train.deferred import DeferredOperator, Formula

#: Formula, shapes of the weights, shapes of the inputs.
CASES: dict[str, tuple[Callable[[], Formula], list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    "linear": (formulas.Linear, [(3, 5), (3,)], [(2, 4, 5)]),
    "linear of one row": (formulas.Linear, [(3, 5)], [(5,)]),
    "matrix": (formulas.Product, [(5, 3)], [(2, 4, 5)]),
    "addmm": (formulas.Product, [(5, 3), (3,)], [(4, 5)]),
    "addmm, whole": (formulas.Product, [(5, 3), (4, 3)], [(4, 5)]),
    "experts": (formulas.Product, [(2, 5, 3)], [(2, 4, 5)]),
    "experts, bias": (formulas.Product, [(2, 5, 3), (2, 1, 3)], [(2, 4, 5)]),
    "shared experts": (formulas.Product, [(1, 5, 3)], [(2, 4, 5)]),
    "weight first": (formulas.ProductOfWeight, [(3, 5)], [(2, 5, 4)]),
    "einsum": (lambda: formulas.Einsum("b i j, j k -> b k i", False), [(5, 3)], [(2, 4, 5)]),
    "einsum first": (lambda: formulas.Einsum("hd,bnd->bhn", True), [(3, 5)], [(2, 4, 5)]),
    "conv1d": (lambda: formulas.Convolution([1], [1], [1], False, [0], 1), [(4, 3, 2), (4,)], [(2, 3, 7)]),
    "conv2d": (lambda: formulas.Convolution([2, 1], [1, 1], [1, 1], False, [0, 0], 2), [(4, 2, 3, 3)], [(2, 4, 6, 6)]),
    "conv3d": (lambda: formulas.Convolution([1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1), [(2, 3, 2, 2, 2), (2,)],
               [(2, 3, 4, 4, 4)]),
    "transposed": (lambda: formulas.Convolution([2], [1], [1], True, [1], 1), [(3, 4, 3), (4,)], [(2, 3, 7)]),
    "padded": (lambda: formulas.Convolution([1], [1], [1], False, [0], 1, [0, 1]), [(4, 3, 4)], [(2, 3, 7)]),
    "batch norm": (lambda: formulas.BatchNorm(0.1, 1e-5), [(4,), (4,)], [(3, 4, 5, 2)]),
    "shift": (formulas.Shift, [(4, 1)], [(3, 4, 5)])}


def made(name: str) -> tuple[DeferredOperator, list[Tensor]]:
    torch.manual_seed(0)
    make, shapes, inputs = CASES[name]
    own = {f"p{i}": weights(*shape) for i, shape in enumerate(shapes)}
    return DeferredOperator(make(), own), [torch.randn(shape, dtype=torch.float64) for shape in inputs]


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_torchs(name: str) -> None:
    layer, xs = made(name)
    same(layer, *xs)


def test_rows_of_a_table() -> None:
    torch.manual_seed(0)
    same(DeferredOperator(formulas.Table(2), {"weight": weights(6, 3)}), torch.randint(6, (2, 5)))


def test_grouped_products_in_float() -> None:
    torch.manual_seed(0)
    x, weight, ends = torch.randn(9, 8), torch.randn(3, 8, 4), torch.tensor([4, 4, 9], dtype=torch.int32)

    def by_groups(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
        return torch.cat([part @ w for part, w in zip(x.tensor_split(offs[:-1].long()), weight, strict=True)])

    gradient = torch.randn(9, 4)
    own = weight.clone().requires_grad_()
    torch.autograd.backward(by_groups(x, own, ends), gradient)
    found, = formulas.GroupedProduct(by_groups).gradients((x, ends), gradient, [weight], [True])
    assert found is not None and own.grad is not None and torch.allclose(found, own.grad, rtol=1e-5)


@pytest.mark.parametrize(("equation", "fits"), [
    ("bi,ij->bj", True), ("...i,ij->...j", False), ("bi,ij", False), ("bi,ii->b", False), ("bi,ij->bi", False)])
def test_an_einsum_fits_where_each_letter_is_found_again(equation: str, fits: bool) -> None:
    assert formulas.Einsum.fits(equation, first=False) == fits
