"""Writes a program step by step: each captured operator by the rule that is registered under its aten name.

A rule is a function of the writer and the step; :func:`rule` registers it for one or several aten operators. A rule
that raises :class:`UnknownError` says that it does not know the operator with these arguments: it is computed whole.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from weft.models.capture.exported import Exported, Meta, Named, Ref, Step, refs
from weft.models.transform.backward import OWN, TRUTHS
from weft.models.transform.program import (
    Annotation,
    Axis,
    PlanError,
    PlanOperation,
    PlanProgram,
    ProgramBuilder,
    ProgramTensor,
)

_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
          "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16}
#: Operators that compute nothing.
_NOTHING = {"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size"}
#: Operators that may give a view of what they read.
_VIEWS = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "t", "expand",
          "slice", "select", "split", "chunk", "split_with_sizes", "unbind", "narrow", "as_strided", "detach", "alias",
          "contiguous", "to", "dropout", "numpy_T", "mT", "swapaxes", "broadcast_tensors", "diagonal", "movedim",
          "unfold", "view_as", "reshape_as", "expand_as", "swapdims", "broadcast_to", "positive", "feature_dropout",
          "type_as", "mH", "adjoint"}


class UnknownError(Exception):
    """No rule fits; the message says why, where there is more to say."""


class Writer:
    """Writes a program step by step. ``names``: the tensor that a name of the export stands for now."""

    def __init__(self, exported: Exported) -> None:
        self.exported = exported
        self.builder = ProgramBuilder(exported.name)
        self.names: dict[str, str] = {}
        self.unknown: dict[str, list[str]] = {}
        self.shared: dict[str, set[str]] = {}  # names whose tensors may share their storage
        self.used: set[str] = set()  # names of dimensions of this step's operators
        self.carried: dict[str, str] = {}  # by what is made, the buffer that it is in the next step
        floats = [exported.metas[source.name].dtype for source in exported.sources
                  if "float" in exported.metas[source.name].dtype]
        self.main = floats[0] if floats else "float32"  # the type of the parameters, or of the first numbers
        for source in exported.sources:
            meta = exported.metas[source.name]
            name = source.name if source.role == "input" else source.target
            self.names[source.name] = name
            self.builder.tensors[name] = ProgramTensor(
                name, meta.shape, "input" if source.role == "input" else "parameter", _BYTES.get(meta.dtype, 8),
                source.role == "parameter" and meta.requires_grad, "" if meta.dtype == self.main else meta.dtype)

    def build(self) -> PlanProgram:
        for kind, steps in self.unknown.items():
            some = ", ".join(steps[:4]) + (" ..." if len(steps) > 4 else "")
            self.builder.notes.append(f"{kind} ({some}) is not known: every device computes all of it")
        outputs = dict.fromkeys(self.names[name] for name in self.exported.results if name in self.names)
        last = {held: made for made, held in self.carried.items()}
        for made in last.values():
            self.builder.tensors[made] = replace(self.builder.tensors[made], gradient=False)
        program = self.builder.build(*dict.fromkeys((*outputs, *last.values())))
        return replace(program, carried={made: held for held, made in last.items()})

    def write(self, step: Step) -> None:
        space, _, rest = step.target.removeprefix("torch.ops.").partition(".")
        kind = rest.split(".")[0] if space == "aten" else f"{space}.{rest.split('.')[0]}"
        in_place = kind.endswith("_") and not kind.endswith("__")
        reads = step.reads
        if kind in _NOTHING:
            return
        if reads and not in_place and (kind in _VIEWS or self.may_be_view(space, kind)):
            alike = set(step.made)
            for name in reads:
                alike |= self.shared.get(name, {name})
            self.shared.update(dict.fromkeys(alike, alike))
        if in_place and reads and len(self.shared.get(reads[0], ())) > 1:
            raise PlanError(f"{self.exported.name}: {step.name} ({kind}) writes into {reads[0]!r}, which shares its "
                            "memory with views; write it without writing in place")
        if in_place and reads and self.role(reads[0]) in ("input", "parameter", "constant"):
            raise PlanError(f"{self.exported.name}: {step.name} ({kind}) writes into {reads[0]!r}, which is given from "
                            "outside; write it without writing in place")
        self.used = set()
        known = len(self.builder.operations), dict(self.builder.tensors), dict(self.names)
        rule = None if self.is_complex(step) else RULES.get(kind.removesuffix("_") if in_place else kind)
        try:
            own = OWN.get(kind.rpartition(".")[2])
            if own is not None:
                self.own(step, kind.rpartition(".")[2], own)
            elif rule is None:
                raise UnknownError
            else:
                rule(self, step)
            if not step.grad:
                self.without_gradient(step, known[1])
        except (UnknownError, PlanError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
            del self.builder.operations[known[0]:]
            self.builder.tensors, self.names = known[1], known[2]
            self.whole(step, kind)
            if not step.grad:
                self.without_gradient(step, known[1])
        self.typed(step, known[1])
        if in_place and reads and step.outputs[0] is not None:
            if self.role(reads[0]) == "buffer":
                self.keeps(reads[0], self.names[step.outputs[0]])
            self.names[reads[0]] = self.names[step.outputs[0]]

    @staticmethod
    def may_be_view(space: str, kind: str) -> bool:
        """Whether an operator without a rule may give a view; operators of other libraries must not."""
        return space == "aten" and kind not in RULES and not kind.startswith("new_") and not kind.endswith("_like")

    def is_complex(self, step: Step) -> bool:
        """Whether complex numbers come in or out: their sums of squares and their gradients are not those of real
        ones, so that no rule is of them."""
        return any("complex" in self.exported.metas[name].dtype for name in (*step.reads, *step.made)
                   if name in self.exported.metas)

    def role(self, name: str) -> str | None:
        """What a name of the export starts as, if it is no operator's."""
        return next((source.role for source in self.exported.sources if source.name == name), None)

    def keeps(self, buffer: str, made: str) -> None:
        """A buffer, by its name in the export, is ``made`` in the next step."""
        target = next(source.target for source in self.exported.sources if source.name == buffer)
        self.carried = {one: held for one, held in self.carried.items() if held != target} | {made: target}
        self.names[buffer] = made

    def typed(self, step: Step, before: Mapping[str, ProgramTensor]) -> None:
        """Elements of what a step made are as large as those that it gives; what is no number has no gradient."""
        metas = [self.exported.metas[name] for name in step.made]
        if not metas:
            return
        makers = {name: operation for operation in self.builder.operations for name in operation.outputs}
        for name, tensor in list(self.builder.tensors.items()):
            if name not in before and name in makers:
                dtype = self.exported.metas[name].dtype if name in self.exported.metas else self.dtype_of(
                    makers[name], metas[0].dtype)
                self.builder.tensors[name] = replace(
                    tensor, itemsize=_BYTES.get(dtype, tensor.itemsize), dtype="" if dtype == self.main else dtype,
                    gradient=tensor.gradient and ("float" in dtype or "complex" in dtype))

    def dtype_of(self, operation: PlanOperation, given: str) -> str:
        """The type of what an operator makes that the export has no name for; ``given``: of what its step gives."""
        if operation.kind in TRUTHS:
            return "bool"
        if operation.kind == "places":
            return "int64"
        if operation.kind in ("full", "range", "cast", "where"):
            return str(operation.attributes["dtype"])
        types = [self.builder.tensors[name].dtype or self.main for name in operation.inputs]
        return types[0] if types and not any("float" in one for one in types) else (
            given if "float" in given else next((one for one in types if "float" in one), given))

    def without_gradient(self, step: Step, before: Mapping[str, ProgramTensor]) -> None:
        """What a step under ``torch.no_grad`` makes has none; what it passes on as it is cannot be told apart."""
        if any(name in self.names and self.names[name] in before and before[self.names[name]].gradient
               for name in step.made):
            raise UnknownError
        for name, tensor in self.builder.tensors.items():
            if name not in before:
                self.builder.tensors[name] = replace(tensor, gradient=False)

    def own(self, step: Step, kind: str, how: Annotation) -> None:
        """A user's operator, by the annotation that was registered under its name; it takes tensors alone."""
        reads = [self.tensor(argument) for argument in step.arguments]
        made = step.made
        if step.keywords or len(made) != len(how.outputs):
            raise UnknownError
        self.builder.several(step.name, kind, how, reads, outputs=made)
        if any(self.shape(name) != self.exported.metas[name].shape for name in made):
            raise UnknownError
        self.names.update({name: name for name in made})

    def whole(self, step: Step, kind: str) -> None:
        """An operator that is not cut."""
        self.used = set()
        self.unknown.setdefault(kind, []).append(step.name)
        made, reads = step.made, list(dict.fromkeys(self.names[name] for name in step.reads))
        sides = [[tuple((self.fresh(),) for _ in shape) for shape in shapes] for shapes in (
            [self.builder.tensors[name].shape for name in reads], [self.exported.metas[name].shape for name in made])]
        marks = {name: "^" for side in sides for tensor in side for axis in tensor for name in axis}
        sizes = {axis[0]: size for name, tensor in zip(made, sides[1], strict=True)
                 for axis, size in zip(tensor, self.exported.metas[name].shape, strict=True)}
        called = {} if self.is_complex(step) else self.called(step, reads)
        self.builder.several(step.name, f"aten.{kind}", Annotation(tuple(sides[0]), tuple(sides[1]), marks), reads,
                             sizes=sizes, outputs=made, **called)
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

    def every(self, tensor: str) -> list[Axis]:
        """A name for each dimension of a tensor, of one element too."""
        return [(self.fresh(),) for _ in self.shape(tensor)]

    def first(self, step: Step) -> tuple[str, list[Axis]]:
        """The tensor that a step reads first, with names as of :meth:`axes`."""
        x = self.tensor(step.arguments[0])
        return x, self.axes(self.shape(x))

    def tensor(self, value: Any) -> str:
        if not isinstance(value, Ref):
            raise UnknownError
        return self.names[value.name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.builder.tensors[name].shape

    def given(self, step: Step) -> Meta:
        """What the export says of what a step gives."""
        return self.exported.metas[step.given]

    def add(self, step: Step, kind: str, inputs: Sequence[tuple[str, Iterable[Axis]]], output: Iterable[Axis], *,
            reduced: Iterable[str] = (), frozen: Iterable[str] = (), sizes: Mapping[str, int] | None = None,
            name: str | None = None, **attributes: Any) -> str:
        """An operator of ``step``, which makes what the step gives unless it has a ``name``: one that begins with a dot
        stands behind the step's own."""
        marks = {**dict.fromkeys(reduced, "+"), **dict.fromkeys(frozen, "^")}
        how = Annotation(tuple(tuple(axes) for _, axes in inputs), (tuple(output),), marks)
        full = step.name if name is None else f"{step.name}{name}" if name.startswith(".") else name
        made = self.builder.add(full, kind, how, [tensor for tensor, _ in inputs], sizes=sizes, **attributes)
        if name is None:
            self.gives(step, made)
        return made

    def call(self, step: Step, inputs: Sequence[tuple[str, Iterable[Axis]]], output: Iterable[Axis], *,
             frozen: Iterable[str], sizes: Mapping[str, int] | None = None, linear: bool = False,
             name: str | None = None, place: int = 0) -> str:
        """The captured operator itself, which is called on the tensors of a part as on the whole ones. ``linear``: its
        gradient does not depend on what it reads. ``name``: of what it gives at ``place``, where that is not all that
        the step gives."""
        called = self.called(step, [tensor for tensor, _ in inputs]) | ({"linear": True} if linear else {})
        if name is not None:
            called["given"] = (place,)
        return self.add(step, step.kind, inputs, output, frozen=frozen, sizes=sizes, name=name, **called)

    def called(self, step: Step, reads: Sequence[str]) -> dict[str, Any]:
        """What calls the operator of a step: its target and its arguments, tensors by their places in ``reads``."""
        def written(value: Any) -> Any:
            if isinstance(value, Ref):
                return {"tensor": reads.index(self.names[value.name])}
            if isinstance(value, Named):
                return {"constant": value.name} if value.kind == "constant" else None  # it runs where its inputs are
            if isinstance(value, Mapping):
                return {key: written(entry) for key, entry in value.items()}
            return [written(entry) for entry in value] if isinstance(value, list | tuple) else value

        return {"target": step.target, "arguments": written(step.arguments), "keywords": written(step.keywords),
                "given": tuple(i for i, name in enumerate(step.outputs) if name is not None)}

    def require_numbers(self, step: Step) -> None:
        """True and false are not added up as numbers are; and what is computed in another precision is a cast."""
        metas = [self.exported.metas[name] for name in refs(step.arguments)]
        given = step.outputs[0]
        made = "" if given is None else self.exported.metas[given].dtype
        if any(meta.dtype == "bool" for meta in metas) or (
                "float" in made and any("float" in meta.dtype for meta in metas)
                and all(meta.dtype != made for meta in metas)):
            raise UnknownError

    def stopped(self, name: str) -> None:
        """No gradient flows back through what the export calls ``name``."""
        made = self.names[name]
        self.builder.tensors[made] = replace(self.builder.tensors[made], gradient=False)

    def seed(self) -> str:
        """What chance is drawn from in a step: one whole number, an input of the program."""
        if "seed" not in self.builder.tensors:
            self.builder.tensors["seed"] = ProgramTensor("seed", (), "input", 8, False, "int64")
            self.builder.notes.append("dropout draws by the place of an element in the whole, from the input 'seed', "
                                      "so that parts draw what the whole does; it does not draw what torch would")
        return "seed"

    def gives(self, step: Step, made: str) -> None:
        if self.given(step).shape != self.shape(made):
            raise UnknownError
        self.names[step.given] = made


#: Writes the operators of a step.
Rule: TypeAlias = Callable[[Writer, Step], None]
#: By the name of the aten operator, without its overload.
RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Register a rule for aten operators by name."""
    def registered(found: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, found))
        return found

    return registered


def read_program(path: str | os.PathLike[str]) -> PlanProgram:
    """The program in a ``.pt2`` file of ``torch.export.save``. Raises
    :class:`~weft.models.capture.exported.ExportFault`; nothing of the file is run."""
    from weft.models.capture.exported_file import read_exported

    return program_of(read_exported(path))


def program_of(exported: Exported) -> PlanProgram:
    """The program of an exported module; parameters go by their names in the module.

    ``notes`` of the result name the operators that are not known, and are computed whole.
    """
    writer = Writer(exported)
    for step in exported.steps:
        writer.write(step)
    return writer.build()
