"""Programs of captured PyTorch modules: how each aten operator splits, from its shapes and arguments.

Matrix products, projections, convolutions, embeddings, attention, norms, softmax, pointwise operators, reductions and
views become operators with an annotation; a bias is an operator of its own, so that a product whose sum is cut adds it
once. A dimension that a view merges or cuts is cut as far as its parts stay in one piece. An operator of a user's own
library splits as the annotation says that is registered under its name
(:func:`~weft.models.transform.kernels.operator`). What is not known is frozen: every device computes all of it, and a
note says so.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from weft.models.capture.exported import Exported, Ref, Step
from weft.models.transform.annotation import Annotation, Axis, Dimensions, PlanError
from weft.models.transform.kernels import own_annotation
from weft.models.transform.program import Program, ProgramBuilder, ProgramTensor

__all__ = ["RULES", "program_of", "read_program"]

_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
          "uint8": 1, "bool": 1}


def read_program(path: str | os.PathLike[str]) -> Program:
    """The program in a ``.pt2`` file of ``torch.export.save``. Raises
    :class:`~weft.models.capture.exported.ExportError`; nothing of the file is run."""
    from weft.models.capture.exported_file import read_exported

    return program_of(read_exported(path))


def program_of(exported: Exported) -> Program:
    """The program of an exported module; parameters go by their names in the module.

    ``notes`` of the result name the operators that are not known, and are computed whole.
    """
    writer = _Writer(exported)
    for step in exported.steps:
        writer.write(step)
    return writer.build()


class _UnknownError(Exception):
    """No rule fits; the message says why, where there is more to say."""


class _Writer:
    """Writes a program step by step. ``names``: the tensor that a name of the export stands for now."""

    def __init__(self, exported: Exported) -> None:
        self.exported = exported
        self.builder = ProgramBuilder(exported.name)
        self.names: dict[str, str] = {}
        self.unknown: dict[str, list[str]] = {}
        self.shared: dict[str, set[str]] = {}  # names whose tensors may share their storage
        self.used: set[str] = set()  # names of dimensions of this step's operators
        for source in exported.sources:
            meta = exported.metas[source.name]
            name = source.name if source.role == "input" else source.target
            self.names[source.name] = name
            self.builder.tensors[name] = ProgramTensor(
                name, meta.shape, "input" if source.role == "input" else "parameter", _BYTES.get(meta.dtype, 8),
                source.role == "parameter" and meta.requires_grad)

    def build(self) -> Program:
        for kind, steps in self.unknown.items():
            some = ", ".join(steps[:4]) + (" ..." if len(steps) > 4 else "")
            self.builder.notes.append(f"{kind} ({some}) is not known: every device computes all of it")
        outputs = tuple(dict.fromkeys(self.names[name] for name in self.exported.results if name in self.names))
        return self.builder.build(*outputs)

    def write(self, step: Step) -> None:
        space, _, rest = step.target.removeprefix("torch.ops.").partition(".")
        kind = rest.split(".")[0] if space == "aten" else f"{space}.{rest.split('.')[0]}"
        in_place = kind.endswith("_") and not kind.endswith("__")
        reads = list(_refs((step.arguments, step.keywords)))
        if kind in _VIEWS and reads:
            alike = self.shared.setdefault(reads[0], {reads[0]})
            alike |= {name for name in step.outputs if name is not None}
            self.shared.update(dict.fromkeys(alike, alike))
        if in_place and reads and len(self.shared.get(reads[0], ())) > 1:
            raise PlanError(f"{self.exported.name}: {step.name} ({kind}) writes into {reads[0]!r}, which shares its "
                            "memory with views; write it without writing in place")
        if in_place and reads and reads[0] in {source.name for source in self.exported.sources}:
            raise PlanError(f"{self.exported.name}: {step.name} ({kind}) writes into {reads[0]!r}, which is given from "
                            "outside; write it without writing in place")
        self.used = set()
        known = len(self.builder.operations), dict(self.builder.tensors), dict(self.names)
        rule = RULES.get(kind.removesuffix("_"))
        try:
            own = own_annotation(kind.rpartition(".")[2])
            if own is not None:
                self.own(step, kind.rpartition(".")[2], own)
            elif rule is None:
                raise _UnknownError
            else:
                rule(self, step)
            if not step.grad:
                self.without_gradient(step, known[1])
        except (_UnknownError, PlanError, LookupError, TypeError, ValueError):
            del self.builder.operations[known[0]:]
            self.builder.tensors, self.names = known[1], known[2]
            self.whole(step, kind)
            if not step.grad:
                self.without_gradient(step, known[1])
        if in_place and reads and step.outputs[0] is not None:
            self.names[reads[0]] = self.names[step.outputs[0]]

    def without_gradient(self, step: Step, before: Mapping[str, ProgramTensor]) -> None:
        """What a step under ``torch.no_grad`` makes has none; what it passes on as it is cannot be told apart."""
        if any(name in self.names and self.names[name] in before and before[self.names[name]].gradient
               for name in step.outputs if name is not None):
            raise _UnknownError
        for name, tensor in self.builder.tensors.items():
            if name not in before:
                self.builder.tensors[name] = replace(tensor, gradient=False)

    def own(self, step: Step, kind: str, how: Annotation) -> None:
        """A user's operator, by the annotation that was registered under its name; it takes tensors alone."""
        reads = [self.tensor(argument) for argument in step.arguments]
        made = [name for name in step.outputs if name is not None]
        if step.keywords or len(made) != len(how.outputs):
            raise _UnknownError
        self.builder.several(step.name, kind, how, reads, outputs=made)
        if any(self.shape(name) != self.exported.metas[name].shape for name in made):
            raise _UnknownError
        self.names.update({name: name for name in made})

    def whole(self, step: Step, kind: str) -> None:
        """An operator that is not cut."""
        self.used = set()
        self.unknown.setdefault(kind, []).append(step.name)
        reads = list(dict.fromkeys(self.names[name] for name in _refs((step.arguments, step.keywords))))
        made = [name for name in step.outputs if name is not None]
        sides = [[tuple((self.fresh(),) for _ in shape) for shape in shapes] for shapes in (
            [self.builder.tensors[name].shape for name in reads], [self.exported.metas[name].shape for name in made])]
        marks = {name: "^" for side in sides for tensor in side for axis in tensor for name in axis}
        sizes = {axis[0]: size for name, tensor in zip(made, sides[1], strict=True)
                 for axis, size in zip(tensor, self.exported.metas[name].shape, strict=True)}
        self.builder.several(step.name, f"aten.{kind}", Annotation(tuple(sides[0]), tuple(sides[1]), marks), reads,
                             sizes=sizes, outputs=made)
        self.names.update({name: name for name in made})

    # -- what rules use ------------------------------------------------------------------------------------------------

    def fresh(self, wished: str = "") -> str:
        """A name for a dimension, of this step's own: as wished, or ``d0``, ``d1`` ... in order."""
        if not wished or wished in self.used:
            wished = next(name for i in itertools.count() if (name := f"{wished or 'd'}{i}") not in self.used)
        self.used.add(wished)
        return wished

    def axes(self, shape: Sequence[int]) -> list[Axis]:
        """A name for each dimension; none where there is one element."""
        return [() if size == 1 else (self.fresh(),) for size in shape]

    def tensor(self, value: Any) -> str:
        if not isinstance(value, Ref):
            raise _UnknownError
        return self.names[value.name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.builder.tensors[name].shape

    def add(self, step: Step, kind: str, inputs: Sequence[tuple[str, Iterable[Axis]]], output: Iterable[Axis], *,
            reduced: Iterable[str] = (), frozen: Iterable[str] = (), sizes: Mapping[str, int] | None = None,
            name: str | None = None, last: bool = True, **attributes: Any) -> str:
        """An operator of ``step``; ``last``: what it makes is what the step gives."""
        marks = {**dict.fromkeys(reduced, "+"), **dict.fromkeys(frozen, "^")}
        how = Annotation(tuple(tuple(axes) for _, axes in inputs), (tuple(output),), marks)
        made = self.builder.add(name or step.name, kind, how, [tensor for tensor, _ in inputs], sizes=sizes,
                                **attributes)
        if last:
            self.gives(step, made)
        return made

    def require_numbers(self, step: Step) -> None:
        """True and false are not added up as numbers are; and what is computed in another precision is a cast."""
        metas = [self.exported.metas[name] for name in _refs(step.arguments)]
        given = step.outputs[0]
        made = "" if given is None else self.exported.metas[given].dtype
        if any(meta.dtype == "bool" for meta in metas) or (
                "float" in made and any("float" in meta.dtype for meta in metas)
                and all(meta.dtype != made for meta in metas)):
            raise _UnknownError

    def gives(self, step: Step, made: str) -> None:
        given = step.outputs[0]
        assert given is not None
        if self.exported.metas[given].shape != self.shape(made):
            raise _UnknownError
        self.names[given] = made


@dataclass(frozen=True)
class _Arguments:
    """A step's arguments by place or name."""

    step: Step
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def at(self, place: int, name: str, default: Any = None) -> Any:
        return self.step.arguments[place] if place < len(self.step.arguments) else self.step.keywords.get(name, default)


#: Writes the operators of a step.
Rule: TypeAlias = Callable[[_Writer, Step], None]


# -- products --------------------------------------------------------------------------------------------------------


def _linear(w: _Writer, step: Step) -> None:
    x, weight = (w.tensor(step.arguments[i]) for i in (0, 1))
    bias = _Arguments(step).at(2, "bias")
    axes, out, inner = w.axes(w.shape(x)[:-1]), w.fresh("n"), w.fresh("k")
    _biased(w, step, bias, [*axes, (out,)], [(x, [*axes, (inner,)]), (weight, [(out,), (inner,)])], inner)


def _addmm(w: _Writer, step: Step) -> None:
    if step.keywords.get("alpha", 1) != 1 or step.keywords.get("beta", 1) != 1:
        raise _UnknownError
    bias, x, weight = step.arguments[:3]
    rows, columns, inner = (w.fresh(name) for name in "mnk")
    _biased(w, step, bias, [(rows,), (columns,)],
            [(w.tensor(x), [(rows,), (inner,)]), (w.tensor(weight), [(inner,), (columns,)])], inner)


def _biased(w: _Writer, step: Step, bias: Any, output: Sequence[Axis], inputs: Sequence[tuple[str, Sequence[Axis]]],
            inner: str) -> None:
    if bias is None:
        w.add(step, "einsum", inputs, output, reduced=[inner])
        return
    product = w.add(step, "einsum", inputs, output, reduced=[inner], name=f"{step.name}.product", last=False)
    given = w.tensor(bias)
    w.add(step, "add", [(product, output), (given, output[len(output) - len(w.shape(given)):])], output)


def _matmul(w: _Writer, step: Step) -> None:
    a, b = (w.tensor(step.arguments[i]) for i in (0, 1))
    one, other = w.shape(a), w.shape(b)
    if len(one) < 2 or len(other) < 2:
        raise _UnknownError
    rows, columns, inner = (w.fresh(name) for name in "mnk")
    left, right, batch = _broadcast(w, one[:-2], other[:-2])
    w.add(step, "einsum", [(a, [*left, (rows,), (inner,)]), (b, [*right, (inner,), (columns,)])],
          [*batch, (rows,), (columns,)], reduced=[inner])


def _broadcast(w: _Writer, one: Sequence[int], other: Sequence[int]) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """Axes of two shapes, aligned at their ends, and of what comes out."""
    rank = max(len(one), len(other))
    sides: list[list[Axis]] = [[], [], []]
    for i in range(rank):
        a, b = (shape[i - rank + len(shape)] if i >= rank - len(shape) else None for shape in (one, other))
        axis: Axis = () if max(a or 1, b or 1) == 1 else (w.fresh(),)
        for size, side in ((a, sides[0]), (b, sides[1]), (max(a or 1, b or 1), sides[2])):
            if size is not None:
                side.append(axis if size != 1 else ())
    return sides[0], sides[1], sides[2]


def _convolution(w: _Writer, step: Step) -> None:
    call = _Arguments(step)
    x, weight = (w.tensor(step.arguments[i]) for i in (0, 1))
    stride, padding, dilation = (call.at(i, name, default) for i, name, default in (
        (3, "stride", [1, 1]), (4, "padding", [0, 0]), (5, "dilation", [1, 1])))
    if len(w.shape(x)) != 4 or call.at(6, "groups", 1) != 1 or set(_pair(dilation)) != {1} or isinstance(padding, str):
        raise _UnknownError
    n, c, y, z, o, p, q, u, v = (w.fresh(name) for name in "ncyzopquv")
    given = step.outputs[0]
    assert given is not None
    high, wide = w.exported.metas[given].shape[2:]
    out: list[Axis] = [(n,), (o,), (u,), (v,)]
    bias = call.at(2, "bias")
    made = w.add(step, "convolution", [(x, [(n,), (c,), (y,), (z,)]), (weight, [(o,), (c,), (p,), (q,)])], out,
                 reduced=[c, p, q], frozen=[p, q, y, z, u, v], sizes={u: high, v: wide}, last=bias is None,
                 name=step.name if bias is None else f"{step.name}.product", stride=_pair(stride),
                 padding=_pair(padding))
    if bias is not None:
        w.add(step, "add", [(made, [(n,), (o,), (u,), (v,)]), (w.tensor(bias), [(o,)])], out)


def _pair(value: Any) -> tuple[int, int]:
    found = tuple(value) if isinstance(value, list | tuple) else (value,)
    return (found[0], found[0]) if len(found) == 1 else (found[0], found[1])


# -- pointwise -------------------------------------------------------------------------------------------------------


def _unary(kind: str) -> Rule:
    def rule(w: _Writer, step: Step) -> None:
        x = w.tensor(step.arguments[0])
        axes = w.axes(w.shape(x))
        tanh = kind == "gelu" and _Arguments(step).at(1, "approximate", "none") == "tanh"
        w.add(step, "gelu_tanh" if tanh else kind, [(x, axes)], axes)

    return rule


def _sum_of_two(sign: float) -> Rule:
    def rule(w: _Writer, step: Step) -> None:
        w.require_numbers(step)
        one, other = step.arguments[:2]
        scale = sign * float(step.keywords.get("alpha", 1))
        if isinstance(one, Ref) and isinstance(other, Ref):
            a, b = w.tensor(one), w.tensor(other)
            left, right, out = _broadcast(w, w.shape(a), w.shape(b))
            w.add(step, "add", [(a, left), (b, right)], out, signs=(1.0, scale))
        else:
            _scaled(w, step, one if isinstance(one, Ref) else other,
                    1.0 if isinstance(one, Ref) else scale, float(other if isinstance(one, Ref) else one)
                    * (scale if isinstance(one, Ref) else 1.0))

    return rule


def _scaled(w: _Writer, step: Step, x: Any, scale: float, constant: float) -> None:
    name = w.tensor(x)
    axes = w.axes(w.shape(name))
    w.add(step, "add", [(name, axes)], axes, signs=(scale,), constant=constant)


def _product(w: _Writer, step: Step) -> None:
    one, other = step.arguments[:2]
    if isinstance(one, Ref) and isinstance(other, Ref):
        _times(w, step, w.tensor(one), w.tensor(other))
    else:
        _scaled(w, step, one if isinstance(one, Ref) else other, float(other if isinstance(one, Ref) else one), 0.0)


def _times(w: _Writer, step: Step, a: str, b: str) -> None:
    left, right, out = _broadcast(w, w.shape(a), w.shape(b))
    w.add(step, "einsum", [(a, left), (b, right)], out)


def _quotient(w: _Writer, step: Step) -> None:
    one, other = step.arguments[:2]
    if step.keywords.get("rounding_mode") is not None or not isinstance(one, Ref):
        raise _UnknownError
    if not isinstance(other, Ref):
        _scaled(w, step, one, 1 / float(other), 0.0)
        return
    b = w.tensor(other)
    axes = w.axes(w.shape(b))
    inverse = w.add(step, "reciprocal", [(b, axes)], axes, name=f"{step.name}.inverse", last=False)
    _times(w, step, w.tensor(one), inverse)


def _negative(w: _Writer, step: Step) -> None:
    _scaled(w, step, step.arguments[0], -1.0, 0.0)


def _power(w: _Writer, step: Step) -> None:
    if step.arguments[1] != 2:
        raise _UnknownError
    _unary("square")(w, step)


def _dropout(w: _Writer, step: Step) -> None:
    if step.arguments[1] and step.arguments[2]:
        raise _UnknownError  # random
    _same(w, step)


def _same(w: _Writer, step: Step) -> None:
    """What changes no number: the same tensor by another name."""
    given = step.outputs[0]
    assert given is not None
    if w.exported.metas[given].dtype != w.exported.metas[step.arguments[0].name].dtype:
        raise _UnknownError
    w.gives(step, w.tensor(step.arguments[0]))


# -- softmax, attention, norms, tables, losses -----------------------------------------------------------------------


def _softmax(kind: str) -> Rule:
    def rule(w: _Writer, step: Step) -> None:
        w.require_numbers(step)
        x = w.tensor(step.arguments[0])
        axes: list[Axis] = [(w.fresh(),) for _ in w.shape(x)]
        over = axes[step.arguments[1]][0]
        w.add(step, kind, [(x, axes)], axes, frozen=[over], over=over)

    return rule


def _attention(w: _Writer, step: Step) -> None:
    call = _Arguments(step)
    q, k, v = (w.tensor(step.arguments[i]) for i in range(3))
    if (call.at(3, "attn_mask") is not None or call.at(4, "dropout_p", 0.0) or call.at(7, "enable_gqa", False)
            or len(w.shape(q)) != 4 or w.shape(q)[:2] != w.shape(k)[:2]):
        raise _UnknownError
    b, h, s, t, d, e = (w.fresh(name) for name in "bhstde")
    scale = step.keywords.get("scale", call.at(6, "scale"))
    extra: dict[str, Any] = {} if scale is None else {"scale": float(scale)}
    w.add(step, "attention", [(q, [(b,), (h,), (s,), (d,)]), (k, [(b,), (h,), (t,), (d,)]),
                              (v, [(b,), (h,), (t,), (e,)])], [(b,), (h,), (s,), (e,)], frozen=[t, d, e],
          causal=bool(call.at(5, "is_causal", False)), **extra)


def _norm(centred: bool) -> Rule:
    def rule(w: _Writer, step: Step) -> None:
        call = _Arguments(step)
        x, normalized = w.tensor(step.arguments[0]), step.arguments[1]
        weight = call.at(2, "weight")
        bias, eps = (call.at(3, "bias"), call.at(4, "eps", 1e-5)) if centred else (None, call.at(3, "eps"))
        if len(normalized) != 1 or eps is None or (weight is None and bias is not None):
            raise _UnknownError
        axes: list[Axis] = [(w.fresh(),) for _ in w.shape(x)]
        inputs: list[tuple[str, Sequence[Axis]]] = [(x, axes)]
        inputs += [(w.tensor(one), axes[-1:]) for one in (weight, bias) if one is not None]
        w.add(step, "norm", inputs, axes, frozen=axes[-1], eps=float(eps), centred=centred)

    return rule


def _embedding(w: _Writer, step: Step) -> None:
    call = _Arguments(step)
    table, ids = (w.tensor(step.arguments[i]) for i in (0, 1))
    padding = call.at(2, "padding_idx", -1)
    if call.at(3, "scale_grad_by_freq", False):
        raise _UnknownError
    rows, width = w.fresh("v"), w.fresh("m")
    axes: list[Axis] = [(w.fresh(),) for _ in w.shape(ids)]
    extra = {} if padding < 0 else {"padding": padding}
    w.add(step, "embedding", [(table, [(rows,), (width,)]), (ids, axes)], [*axes, (width,)], reduced=[rows], **extra)


def _cross_entropy(w: _Writer, step: Step) -> None:
    call = _Arguments(step)
    logits, targets = (w.tensor(step.arguments[i]) for i in (0, 1))
    reduction, smoothing = call.at(3, "reduction", 1), call.at(5, "label_smoothing", 0.0)
    if call.at(4, "ignore_index", -100) >= 0:
        raise _UnknownError  # how many targets count is in the numbers
    if call.at(2, "weight") is not None or smoothing or len(w.shape(logits)) != 2 or len(w.shape(targets)) != 1:
        raise _UnknownError
    n, v = w.fresh("n"), w.fresh("v")
    made = w.add(step, "cross_entropy", [(logits, [(n,), (v,)]), (targets, [(n,)])], [(n,)], frozen=[v],
                 name=step.name if reduction == 0 else f"{step.name}.each", last=reduction == 0)
    if reduction:
        w.add(step, "einsum", [(made, [(n,)])], [], reduced=[n],
              scale=1 / w.shape(logits)[0] if reduction == 1 else 1.0)


def _squared_error(w: _Writer, step: Step) -> None:
    a, b = (w.tensor(step.arguments[i]) for i in (0, 1))
    if w.shape(a) != w.shape(b) or _Arguments(step).at(2, "reduction", 1) != 1:
        raise _UnknownError
    axes = w.axes(w.shape(a))
    apart = w.add(step, "add", [(a, axes), (b, axes)], axes, signs=(1.0, -1.0), name=f"{step.name}.apart", last=False)
    w.add(step, "einsum", [(apart, axes), (apart, axes)], [], reduced=[name for axis in axes for name in axis],
          scale=1 / math.prod(w.shape(a)))


def _reduction(mean: bool) -> Rule:
    def rule(w: _Writer, step: Step) -> None:
        w.require_numbers(step)
        call = _Arguments(step)
        x = w.tensor(step.arguments[0])
        rank = len(w.shape(x))
        given = call.at(1, "dim")
        dims = range(rank) if given is None or given == [] else [given] if isinstance(given, int) else given
        gone = {dim % rank for dim in dims} if rank else set()
        axes = w.axes(w.shape(x))
        keep = bool(call.at(2, "keepdim", False))
        out: list[Axis] = [() if i in gone else axis for i, axis in enumerate(axes) if keep or i not in gone]
        count = math.prod(w.shape(x)[i] for i in gone)
        w.add(step, "einsum", [(x, axes)], out, reduced=[name for i in gone for name in axes[i]],
              scale=1 / count if mean else 1.0)

    return rule


# -- views -----------------------------------------------------------------------------------------------------------


def _reshape(w: _Writer, step: Step) -> None:
    x, given = w.tensor(step.arguments[0]), step.outputs[0]
    assert given is not None
    before, after = w.shape(x), w.exported.metas[given].shape
    if w.exported.metas[given].dtype != w.exported.metas[step.arguments[0].name].dtype or not math.prod(before):
        raise _UnknownError
    one, other, frozen, sizes = _common_axes(w, before, after)
    w.add(step, "reshape", [(x, one)], other, frozen=frozen, sizes=sizes)


def _common_axes(w: _Writer, before: Sequence[int],
                 after: Sequence[int]) -> tuple[Dimensions, Dimensions, list[str], dict[str, int]]:
    """Names that both shapes are made of; where sizes do not nest, both sides' are frozen."""
    sides: tuple[list[Axis], list[Axis]] = ([], [])
    frozen: list[str] = []
    sizes: dict[str, int] = {}
    at, to = 0, 0
    while at < len(before) or to < len(after):
        one, other = list(before[at:at + 1]), list(after[to:to + 1])
        while math.prod(one) != math.prod(other):
            if math.prod(one) < math.prod(other):
                one.append(before[at + len(one)])
            else:
                other.append(after[to + len(other)])
        at, to = at + len(one), to + len(other)
        edges = [[math.prod(sizes_[:i]) for i in range(len(sizes_) + 1)] for sizes_ in (one, other)]
        every = sorted({*edges[0], *edges[1]})
        nested = all(b % a == 0 for a, b in itertools.pairwise(every))
        if nested:
            atoms = {low: w.fresh() for low in every[:-1]}
            sizes |= {atoms[low]: high // low for low, high in itertools.pairwise(every)}
            for side, edge in zip(sides, edges, strict=True):
                side += [tuple(atoms[e] for e in every if low <= e < high)
                         for low, high in itertools.pairwise(edge)]
        else:
            for side, lengths in zip(sides, (one, other), strict=True):
                for length in lengths:
                    name = w.fresh()
                    side.append((name,))
                    frozen.append(name)
                    sizes[name] = length
    return tuple(sides[0]), tuple(sides[1]), frozen, sizes


def _permute(order: Callable[[Step, int], Sequence[int]]) -> Rule:
    def rule(w: _Writer, step: Step) -> None:
        x = w.tensor(step.arguments[0])
        axes = w.axes(w.shape(x))
        w.add(step, "einsum", [(x, axes)], [axes[i] for i in order(step, len(axes))])

    return rule


def _swapped(step: Step, rank: int) -> list[int]:
    order = list(range(rank))
    a, b = (int(i) % rank for i in step.arguments[1:3])
    order[a], order[b] = order[b], order[a]
    return order


def _expand(w: _Writer, step: Step) -> None:
    x, given = w.tensor(step.arguments[0]), step.outputs[0]
    assert given is not None
    before, after = w.shape(x), w.exported.metas[given].shape
    out: list[Axis] = [(w.fresh(),) for _ in after]
    own = out[len(after) - len(before):]
    axes = [() if size == 1 else axis for size, axis in zip(before, own, strict=True)]
    w.add(step, "einsum", [(x, axes)], out, sizes={axis[0]: size for axis, size in zip(out, after, strict=True)})


def _slice(w: _Writer, step: Step) -> None:
    call = _Arguments(step)
    x = w.tensor(step.arguments[0])
    axis = call.at(1, "dim", 0) % len(w.shape(x))
    size, stop = w.shape(x)[axis], call.at(3, "end")
    start = call.at(2, "start") or 0
    span = slice(start, stop, call.at(4, "step", 1)).indices(size)
    _taken(w, step, x, axis, span, step.outputs[0], drop=False)


def _select(w: _Writer, step: Step) -> None:
    x = w.tensor(step.arguments[0])
    axis = step.arguments[1] % len(w.shape(x))
    at = step.arguments[2] % w.shape(x)[axis]
    _taken(w, step, x, axis, (at, at + 1, 1), step.outputs[0], drop=True)


def _taken(w: _Writer, step: Step, x: str, axis: int, span: tuple[int, int, int], given: str | None, *,
           drop: bool) -> None:
    """Elements along an axis; the other axes may be cut."""
    if given is None:
        return
    if span[1] - span[0] == w.shape(x)[axis] and span[2] == 1 and not drop:
        w.names[given] = x
        return
    axes: list[Axis] = [(w.fresh(),) for _ in w.shape(x)]
    short = w.fresh()
    out = [*axes[:axis], (short,), *axes[axis + 1:]]
    count = len(range(*span))
    made = w.add(step, "take", [(x, axes)], out, frozen=[axes[axis][0], short], sizes={short: count}, span=span,
                 axis=axis, name=f"{given}.taken" if drop else given, last=False)
    if drop:
        rest = [() if i == axis else one for i, one in enumerate(axes)]
        made = w.add(step, "einsum", [(made, rest)], [one for i, one in enumerate(axes) if i != axis], name=given,
                     last=False)
    if w.exported.metas[given].shape != w.shape(made):
        raise _UnknownError
    w.names[given] = made


def _pieces(w: _Writer, step: Step) -> None:
    """``split`` and ``chunk``: several outputs, each a part."""
    x = w.tensor(step.arguments[0])
    axis = _Arguments(step).at(2, "dim", 0) % len(w.shape(x))
    at = 0
    for given in step.outputs:
        if given is None:
            raise _UnknownError
        size = w.exported.metas[given].shape[axis]
        _taken(w, step, x, axis, (at, at + size, 1), given, drop=False)
        at += size


def _join(w: _Writer, step: Step) -> None:
    tensors = [w.tensor(one) for one in step.arguments[0]]
    rank = len(w.shape(tensors[0]))
    axis = _Arguments(step).at(1, "dim", 0) % rank
    axes: list[Axis] = [(w.fresh(),) for _ in range(rank)]
    inputs, sizes, own = [], [], {}
    for tensor in tensors:
        name = w.fresh()
        inputs.append((tensor, [*axes[:axis], (name,), *axes[axis + 1:]]))
        sizes.append(w.shape(tensor)[axis])
        own[name] = sizes[-1]
    w.add(step, "join", inputs, axes, frozen=[axes[axis][0], *own], sizes={axes[axis][0]: sum(sizes)}, axis=axis,
          lengths=tuple(sizes))


def _unbind(w: _Writer, step: Step) -> None:
    x = w.tensor(step.arguments[0])
    axis = _Arguments(step).at(1, "dim", 0) % len(w.shape(x))
    for at, given in enumerate(step.outputs):
        _taken(w, step, x, axis, (at, at + 1, 1), given, drop=True)


#: Operators that may give a view of what they read.
_VIEWS = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "t", "expand",
          "slice", "select", "split", "chunk", "split_with_sizes", "unbind", "narrow", "as_strided", "detach", "alias",
          "contiguous", "to", "dropout", "diagonal", "movedim", "unfold", "view_as", "reshape_as", "expand_as"}

#: By the name of the aten operator, without its overload.
RULES: Mapping[str, Rule] = {
    "linear": _linear, "addmm": _addmm, "matmul": _matmul, "mm": _matmul, "bmm": _matmul, "conv2d": _convolution,
    **{kind: _unary(kind) for kind in ("relu", "gelu", "silu", "sigmoid", "tanh", "exp", "square", "sqrt", "log",
                                       "reciprocal")},
    "add": _sum_of_two(1.0), "sub": _sum_of_two(-1.0), "mul": _product, "div": _quotient, "neg": _negative,
    "pow": _power, "dropout": _dropout, "contiguous": _same, "clone": _same, "alias": _same, "to": _same,
    "softmax": _softmax("softmax"), "log_softmax": _softmax("log_softmax"), "scaled_dot_product_attention": _attention,
    "layer_norm": _norm(True), "rms_norm": _norm(False), "embedding": _embedding,
    "cross_entropy_loss": _cross_entropy, "mse_loss": _squared_error, "sum": _reduction(False),
    "mean": _reduction(True), "view": _reshape, "reshape": _reshape, "_unsafe_view": _reshape, "flatten": _reshape,
    "unflatten": _reshape, "squeeze": _reshape, "unsqueeze": _reshape,
    "permute": _permute(lambda step, rank: [int(i) % rank for i in step.arguments[1]]),
    "transpose": _permute(_swapped), "t": _permute(lambda step, rank: list(reversed(range(rank)))), "expand": _expand,
    "slice": _slice, "select": _select, "split": _pieces, "chunk": _pieces, "split_with_sizes": _pieces,
    "unbind": _unbind, "cat": _join,
}


def _refs(value: Any) -> Iterable[str]:
    """Names of the tensors in arguments."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _refs(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _refs(item)
