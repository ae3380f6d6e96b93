"""Kinds of operators: what the gradient of each reads, and a user's own.

A kind is computed by torch (:mod:`weft.runtime.by_hand.kernels`), its gradient by autograd over it; here is what a plan
must bring for it. Where an operator's ``target`` is a captured one, that itself is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from weft.models.transform.annotation import Annotation, PlanError

__all__ = ["OWN", "TRUTHS", "Gradient", "gradient", "require_known"]


@dataclass(frozen=True)
class Gradient:
    """How an input's gradient is computed: the kind, and what it reads beside the output's gradient: ``i`` and a number
    for an input, ``o0`` for the output."""

    kind: str
    reads: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


#: The gradient of an input, by its place, how many inputs there are, and the attributes; ``None``: it has none.
_Of: TypeAlias = Callable[[int, int, Mapping[str, Any]], Gradient | None]

#: Annotations of a user's own operators, by kind.
OWN: dict[str, Annotation] = {}
#: Kinds that make truths.
TRUTHS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_xor", "logical_not",
                    "isnan"})
#: Functions of one element.
_UNARY = ("identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "exp", "square", "sqrt", "log",
          "reciprocal")
#: Functions of one element of each of several tensors that have a gradient; numbers may stand for tensors.
_ELEMENTWISE = ("where", "mul", "maximum", "minimum", "pow", "clamp", "softplus", "leaky_relu", "elu", "huber_loss",
                "smooth_l1_loss", "rsqrt", "sin", "cos", "abs", "erf", "log1p", "expm1", "hardtanh", "hardsigmoid",
                "hardswish", "log_sigmoid")
#: Kinds without a gradient.
_CONSTANT = (*TRUTHS, "floor_divide", "remainder", "floor", "sign", "full", "range", "places", "sgd", "adam",
             "top_k_grad")


def gradient(kind: str, i: int, count: int, attributes: Mapping[str, Any]) -> Gradient | None:
    """That of input ``i`` of ``count``. Raises :class:`~weft.models.transform.annotation.PlanError` for an unknown
    kind."""
    require_known(kind, attributes)
    if kind in OWN:
        return _of_all(kind)(i, count, attributes)
    return (_called if "target" in attributes else _GRADIENTS[kind])(i, count, attributes)


def require_known(kind: str, attributes: Mapping[str, Any]) -> None:
    """Raises :class:`~weft.models.transform.annotation.PlanError` for a kind that there is no kernel of."""
    if kind not in OWN and kind not in _GRADIENTS and "target" not in attributes:
        raise PlanError(f"there is no kernel {kind!r}: register a function of that name with weft.plans.operator")


def _of_all(kind: str) -> _Of:
    """It reads all inputs."""
    return lambda i, count, attributes: Gradient(f"{kind}_grad{i}", tuple(f"i{n}" for n in range(count)), attributes)


def _of_input(kind: str, *reads: str) -> _Of:
    """The first input alone has one."""
    return lambda i, count, attributes: Gradient(kind, reads, attributes) if i == 0 else None


def _called(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient | None:
    """Of a captured operator; that of a linear one reads nothing."""
    if not attributes["target"].startswith("torch.ops.aten."):
        return None
    reads = () if attributes.get("linear") else tuple(f"i{n}" for n in range(count))
    return Gradient(f"called_grad{i}", reads, attributes)


def _elementwise(kind: str) -> _Of:
    def of(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient | None:
        places = attributes.get("constants") or (None,) * count
        place = [at for at, constant in enumerate(places) if constant is None][i]
        if kind == "where" and place == 0:
            return None
        return Gradient(f"{kind}_grad{place}", tuple(f"i{n}" for n in range(count)), attributes)

    return of


def _indexed(kind: str) -> _Of:
    """It reads the indices."""
    return lambda i, count, attributes: Gradient(
        kind, tuple(f"i{n}" for n in range(1, count)), attributes) if i == 0 else None


def _attention(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient | None:
    return None if i == 3 and attributes["mask"] == "truths" else _of_all("attention")(i, count, attributes)


def _norm(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
    if i == 0:
        return Gradient("norm_grad_input", ("i0", "i1") if count > 1 else ("i0",), attributes)
    return Gradient("norm_grad_weight", ("i0",), attributes) if i == 1 else Gradient("einsum")


def _join(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
    low = sum(attributes["lengths"][:i])
    return Gradient("take", (), {"axis": attributes["axis"], "span": (low, low + attributes["lengths"][i], 1)})


def _product(*kinds: str) -> _Of:
    """Of two inputs, each with a kind of its own, which reads the other."""
    return lambda i, count, attributes: Gradient(kinds[i], (f"i{1 - i}",), attributes)


_GRADIENTS: Mapping[str, _Of] = {
    **{kind: _of_input(f"{kind}_grad", "i0") for kind in _UNARY},
    **{kind: _elementwise(kind) for kind in _ELEMENTWISE},
    **dict.fromkeys(_CONSTANT, lambda i, count, attributes: None),
    "einsum": lambda i, count, attributes: Gradient(
        "einsum", tuple(f"i{n}" for n in range(count) if n != i), attributes),
    "add": lambda i, count, attributes: Gradient(
        "einsum", (), {"scale": attributes["signs"][i]} if attributes.get("signs") else {}),
    "reshape": lambda i, count, attributes: Gradient("reshape"),
    "cast": lambda i, count, attributes: Gradient(
        "cast", (), {"dtype": attributes["source"], "source": attributes["dtype"]}),
    "take": _of_input("take_grad"), "join": _join, "dropout": _of_input("dropout", "i1"),
    "softmax": _of_input("softmax_grad", "o0"), "log_softmax": _of_input("log_softmax_grad", "o0"),
    "top_k": _of_input("top_k_grad", "i0"), "cross_entropy": _of_input("cross_entropy_grad", "i0", "i1"),
    "embedding": _of_input("embedding_grad", "i1"), "attention": _attention, "norm": _norm,
    "index": _indexed("index_grad"), "index_grad": _indexed("index"),
    "gather": _indexed("gather_grad"), "gather_grad": _indexed("gather"),
    "convolution": _product("convolution_grad_input", "convolution_grad_weight"),
    "convolution_transposed": _product("convolution", "convolution_transposed_grad_weight"),
}
