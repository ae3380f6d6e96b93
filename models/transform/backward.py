"""Gradients and optimizer steps as operators of a program, so that plans split, place and order them like any others.

The gradient of an operator splits as the operator does: a name that the operator cuts is cut in it too, and where the
gradient does not have the name, its parts are terms of a sum. So a weight that all parts of a batch read has terms of
its gradient on every device, and what adds them up is derived, not written.

Kinds of operators: what the gradient of each reads, and a user's own.

A kind is computed by torch (:mod:`weft.runtime.by_hand.kernels`), its gradient by autograd over it; here is what a plan
must bring for it. Where an operator's ``target`` is a captured one, that itself is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from weft.models.transform.program import (
    Annotation,
    Dimensions,
    PlanError,
    PlanOperation,
    PlanProgram,
    ProgramTensor,
    mirrored,
)
from weft.solver.spelling import near


def gradient_name(tensor: str) -> str:
    """The name of a tensor's gradient."""
    return f"d({tensor})"


def with_backward(program: PlanProgram, outputs: Sequence[str] | None = None) -> PlanProgram:
    """``program`` with the operators that compute the gradients of its parameters, and of inputs that want one.

    ``outputs``: where gradients begin, by default all outputs that one flows back through; what they begin with is an
    input of the result for each, :func:`gradient_name`. The gradients are outputs beside the program's own. Raises
    :class:`~weft.models.transform.program.PlanError` for an operator whose kernel has no gradient.
    """
    terms: dict[str, list[str]] = {}
    tensors = dict(program.tensors)
    operations = list(program.operations)
    sums = dict(program.sums)

    def made(name: str, like: str) -> str:
        tensors[name] = replace(tensors[like], name=name, source="operator")
        return name

    if outputs is None:
        outputs = [name for name in program.outputs if program.tensors[name].gradient]
    for output in outputs:
        if output not in program.tensors:
            raise PlanError(f"there is no tensor {output!r} for gradients to begin at; the outputs are "
                            f"{', '.join(program.outputs)}")
        seed = f"{gradient_name(output)} given"
        tensors[seed] = replace(tensors[output], name=seed, source="input", gradient=False)
        terms[output] = [seed]
    for operation in reversed(program.operations):
        if not any(terms.get(name) for name in operation.outputs):
            continue
        if len(operation.outputs) > 1:
            raise PlanError(f"operator {operation.name!r} has several outputs and no gradient")
        output = _total(operation.outputs[0], terms[operation.outputs[0]], tensors, sums)
        for i, name in enumerate(operation.inputs):
            if not tensors[name].gradient:
                continue
            found = gradient(operation.kind, i, len(operation.inputs), operation.attributes)
            if found is None:
                raise PlanError(f"operator {operation.name!r}: the kernel {operation.kind!r} has no gradient of its "
                                f"input {i}")
            sides = {"i": list(operation.reads), "o": list(operation.gives)}
            others = [sides[which[0]][int(which[1:])] for which in found.reads]
            read = [output, *(name for name, _ in others)]
            given = [operation.annotation.outputs[0], *(dimensions for _, dimensions in others)]
            how = mirrored(given, [operation.annotation.inputs[i]], [
                one for one in operation.annotation.names if operation.annotation.role(one) == "frozen"])
            term = made(f"{gradient_name(name)} by {operation.name}.{i}", name)
            operations.append(PlanOperation(term, found.kind, how, tuple(read), (term,), operation.sizes,
                                            found.attributes,
                                            operation.follows or operation.name, "backward"))
            terms.setdefault(name, []).append(term)
    wanted = [_total(name, terms[name], tensors, sums) for name, tensor in program.tensors.items()
              if tensor.source in ("parameter", "input") and tensor.gradient and name in terms]
    return replace(program, operations=tuple(operations), tensors=tensors, sums=sums,
                   outputs=(*program.outputs, *wanted))


#: The options of the optimizers that weft has, beside ``rate``.
_OPTIONS: Mapping[str, tuple[str, ...]] = {"sgd": (), "adam": ("betas", "eps", "decay", "step")}


def _require_options(kind: str, given: Mapping[str, Any]) -> None:
    """Refuse options that ``kind`` does not have, and a learning rate that is missing or no number."""
    if kind not in _OPTIONS:  # one of the user's own
        return
    known = ("rate", *_OPTIONS[kind])
    for name in given:
        if name not in known:
            raise PlanError(f"with_update: {kind} has no option {name!r}{near(name, known)}; its options are "
                            f"{', '.join(known)}")
    rate = given.get("rate")
    if rate is None:
        raise PlanError(f'with_update: {kind} needs a learning rate: with_update(program, "{kind}", rate=1e-3)')
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise PlanError(f"with_update: rate is {rate!r}, it must be a finite number, 0 or more")


def with_update(program: PlanProgram, kind: str = "sgd", **attributes: Any) -> PlanProgram:
    """``program`` with an optimizer's step for each parameter that has a gradient: ``sgd`` (``rate``), or ``adam``
    (``rate``, ``betas``, ``eps``, ``decay`` as of AdamW; ``step``, which is 1: ``None`` reads the number of the step
    from an input of that name).

    Names of its dimensions are those of the parameter in the first operator that reads it, which it follows. What it
    makes is the parameter (and the state) of the next step. Raises :class:`PlanError` for an optimizer that is not
    known, one without a ``rate``, and an option that it does not have.
    """
    require_known(kind, {})
    _require_options(kind, attributes)
    tensors, operations, carried = dict(program.tensors), list(program.operations), dict(program.carried)
    outputs = list(program.outputs)
    counted = kind == "adam" and attributes.get("step", 1) is None
    if counted:
        tensors["step"] = ProgramTensor("step", (), "input", 8, False, "int64")
    for name, tensor in program.tensors.items():
        back = gradient_name(name)
        if tensor.source != "parameter" or back not in outputs:
            continue
        reader = program.by_name[program.readers[name][0]]
        own = reader.annotation.inputs[reader.inputs.index(name)]
        states = [f"{name}.{what}" for what in ("mean", "square")] if kind == "adam" else []
        for state in states:
            tensors[state] = ProgramTensor(state, tensor.shape, "state", tensor.itemsize, False)
        results = [f"{one}'" for one in (name, *states)]
        for result in results:
            tensors[result] = ProgramTensor(result, tensor.shape, "operator", tensor.itemsize, False)
        count: tuple[Dimensions, ...] = ((),) if counted else ()
        how = Annotation((*((own,) * (2 + len(states))), *count), (own,) * len(results), {})
        inputs = (name, back, *states, *(["step"] if counted else []))
        operations.append(PlanOperation(f"update({name})", kind, how, inputs, tuple(results),
                                        reader.sizes, attributes, reader.name, "update"))
        carried |= dict(zip(results, (name, *states), strict=True))
        outputs += results
        outputs.remove(back)
    if len(operations) == len(program.operations):
        raise PlanError("no parameter has a gradient that is not used yet: call with_backward first, with_update once")
    return replace(program, operations=tuple(operations), tensors=tensors, outputs=tuple(outputs), carried=carried)


def recomputing(program: PlanProgram, names: Sequence[str]) -> PlanProgram:
    """``program`` whose backward reads nothing that the operators ``names`` made: they run again just before.

    Raises :class:`~weft.models.transform.program.PlanError` for operators of a backward.
    """
    again: dict[str, str] = {}
    tensors, found = dict(program.tensors), list(program.operations)
    copies: list[PlanOperation] = []
    for operation in program.operations:
        if operation.name not in names:
            continue
        if operation.phase != "forward":
            raise PlanError(f"operator {operation.name!r} is of the {operation.phase}: only forwards are recomputed")
        for name in operation.outputs:
            again[name] = f"{name} again"
            tensors[again[name]] = replace(tensors[name], name=again[name])
        copies.append(replace(operation, name=f"{operation.name} again", phase="recomputed",
                              inputs=tuple(again.get(name, name) for name in operation.inputs),
                              outputs=tuple(again[name] for name in operation.outputs),
                              follows=operation.follows or operation.name))
    back = [i for i, operation in enumerate(found) if operation.phase == "backward"]
    reads = {name for i in back for name in found[i].inputs}
    needed: set[str] = {again[name] for name in reads & set(again)}
    kept: list[PlanOperation] = []
    for copy in reversed(copies):
        if needed & set(copy.outputs):
            kept.append(copy)
            needed |= set(copy.inputs)
    for i in back:
        found[i] = replace(found[i], inputs=tuple(again.get(name, name) for name in found[i].inputs))
    first = min((i for i in back if set(found[i].inputs) & needed), default=len(found))
    found[first:first] = reversed(kept)
    made = {name for operation in found for name in operation.outputs}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.source != "operator" or name in made
               or name in program.sums}
    return replace(program, operations=tuple(found), tensors=tensors)


def _total(name: str, terms: Sequence[str], tensors: dict[str, ProgramTensor],
           sums: dict[str, tuple[str, ...]]) -> str:
    """The whole gradient of a tensor: the only term, or their sum."""
    total = gradient_name(name)
    if total not in sums:
        tensors[total] = replace(tensors[name], name=total, source="operator")
        sums[total] = tuple(terms)
    return total


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
    """That of input ``i`` of ``count``. Raises :class:`~weft.models.transform.program.PlanError` for an unknown
    kind."""
    require_known(kind, attributes)
    if kind in OWN:
        return _of_all(kind)(i, count, attributes)
    return (_called if "target" in attributes else _GRADIENTS[kind])(i, count, attributes)


def require_known(kind: str, attributes: Mapping[str, Any]) -> None:
    """Raises :class:`~weft.models.transform.program.PlanError` for a kind that there is no kernel of."""
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
    return Gradient("slice", (), {"target": "torch.ops.aten.slice.Tensor", "given": (0,), "keywords": {}, "arguments": [
        {"tensor": 0}, attributes["axis"], low, low + attributes["lengths"][i]]})


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
    "join": _join, "dropout": _of_input("dropout", "i1"),
    "softmax": _of_input("softmax_grad", "o0"), "log_softmax": _of_input("log_softmax_grad", "o0"),
    "top_k": _of_input("top_k_grad", "i0"), "cross_entropy": _of_input("cross_entropy_grad", "i0", "i1"),
    "embedding": _of_input("embedding_grad", "i1"), "attention": _attention, "norm": _norm,
    "index": _indexed("index_grad"), "index_grad": _indexed("index"),
    "gather": _indexed("gather_grad"), "gather_grad": _indexed("gather"),
    "convolution": _product("convolution_grad_input", "convolution_grad_weight"),
    "convolution_transposed": _product("convolution", "convolution_transposed_grad_weight"),
}
