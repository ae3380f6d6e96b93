"""A model as one graph of torch operators: exported, checked, and with the model's own names.

The graph is that of ``torch.export`` before functionalization: its operators are those that the model calls, and its
gradients are the model's. Parameters and buffers are the model's own objects, so training the graph trains the model.

A model on the meta device, or sharded over ranks, is captured as if all of it were on a real device. An export on the
meta device would record ``meta`` as the device argument of operators. So fake tensors on the real device replace the
model's tensors during the export; afterwards the graph gets the model's tensors back.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import TreeSpec, tree_leaves, tree_map

from weft.runtime.captured.errors import quoted_place, raised_at, split_advice, without_graphs
from weft.runtime.captured.marks import checkpointed, marked, own_backwards
from weft.runtime.captured.metadata_reads import FunctionWatch, attribute_of, drop_metadata_reads, preserved_state
from weft.runtime.captured.regions import inline_wrapped_graphs, split_recurrent_layers
from weft.runtime.train.sharding import is_divided

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: Attributes of a graph module that other modules lack; a model's tensors and submodules may have these names.
TAKEN = set(dir(GraphModule(nn.Module(), Graph()))) - set(dir(nn.Module()))
#: Operators that only check metadata, which is known when shapes do not change.
CHECKS = {"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range",
          "sym_constrain_range_for_size"}


class CaptureError(ValueError):
    """The model cannot be captured, or cannot be cut in this way. The message is one sentence with the place and the
    remedy."""


class Treated(Protocol):
    """A transformation of stages before training."""

    def of(self, places: Sequence[int], stages: Mapping[int, GraphModule], light: bool) -> dict[int, GraphModule]:
        """The transformed ``stages`` of the cut at ``places``; ``light`` as in
        :class:`~weft.runtime.captured.purity.Purity`."""


@dataclass(frozen=True)
class Captured:
    """An exported model.

    ``graph_module``: its operators. ``names``: the model's first name of each parameter and buffer, by ``id``.
    ``inputs``: the placeholders, in the order of the leaves of ``(args, kwargs)``, whose structure is ``in_spec``.
    ``out_spec``: the structure of the results. ``treatment``: the transformation of the stages of any cut.
    ``under_autocast``: the model was captured under autocast and must run under it, as the graph has no casts.
    ``checkpoints``: for each call of ``torch.utils.checkpoint``, whether it has its own policy. ``fixed``: sentences on
    values that the model's forward computes anew in each run, and that are constants of the graph.
    """

    model: nn.Module
    graph_module: GraphModule
    names: Mapping[int, str]
    in_spec: TreeSpec
    out_spec: TreeSpec
    treatment: Treated | None = None
    under_autocast: bool = False
    checkpoints: tuple[bool, ...] = ()
    fixed: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None,
           device: torch.device | None = None) -> Captured:
        """Capture ``model``, called with ``args`` and ``kwargs`` of one micro-batch. Tensors on the meta device, and
        tensors sharded over ranks, are captured as if they were on ``device`` (default: the CPU).

        Raises :class:`CaptureError` for a model that ``torch.export`` cannot follow.
        """
        arguments = tuple(args), dict(kwargs or {})
        if not needs_fake_tensors(model):
            return cls._exported(model, *arguments)
        with fake_tensors(model, device or torch.device("cpu"), arguments) as (fakes, originals):
            captured = cls._exported(model, *fakes)
        return captured.with_tensors(originals)

    def with_tensors(self, others: Mapping[int, Tensor]) -> Captured:
        """The same capture with ``others``, by the ``id`` of the tensor that each replaces, in graph and model."""
        replace_tensors(self.graph_module, others)
        replace_tensors(self.model, others)
        return replace(self, names=names_of(self.model))

    @classmethod
    def _exported(cls, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
        from torch.export import export  # slow to import, and not needed for a cached capture

        failed: Exception | None = None
        try:
            with without_graphs(), own_backwards(model) as lost, marked() as marks:
                exported = export(model, args, kwargs, strict=False)
        except Exception as error:  # of many types: the model's own code may raise anything
            failed = error
        if failed is not None:  # outside of the handler, so that torch's long message is not chained to ours
            message, cause = _export_failure(model, args, kwargs, failed)
            raise CaptureError(message) from cause
        if lost:
            raise CaptureError(f"{type(model).__name__} has a backward of its own, {lost[0]}, which an export does not "
                               f"keep: cut without an export, with {split_advice(model)}")
        _rename_clashes(exported)
        try:
            graph_module = exported.module(check_guards=False)
        except TypeError:  # the argument is new in torch 2.9
            graph_module = exported.module()
        assert isinstance(graph_module, GraphModule)
        inline_wrapped_graphs(graph_module)
        split_recurrent_layers(graph_module)
        drop_metadata_reads(graph_module)
        _drop_checks(graph_module)
        captured = cls(model, graph_module, names_of(model), exported.call_spec.in_spec, exported.call_spec.out_spec,
                       under_autocast=autocasts(), checkpoints=tuple(marks.seen))
        captured._require_supported()
        return captured

    @cached_property
    def calls(self) -> tuple[Node, ...]:
        """The operators in the graph's order; cuts lie between them."""
        return tuple(node for node in self.graph_module.graph.nodes if node.op in ("call_function", "call_module"))

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The placeholders."""
        return tuple(node for node in self.graph_module.graph.nodes if node.op == "placeholder")

    @cached_property
    def results(self) -> tuple[Any, ...]:
        """The leaves of the model's result: nodes, numbers and ``None``."""
        node, = self.graph_module.graph.find_nodes(op="output")
        return tuple(node.args[0]) if isinstance(node.args[0], tuple | list) else (node.args[0],)

    @cached_property
    def checkpointed(self) -> Mapping[str, int]:
        """The number of the model's checkpoint that contains each operator, by name; other operators are absent."""
        return checkpointed(self.calls)

    @cached_property
    def digest(self) -> str:
        """The model's identity: a hash of its operators, their connections, and the shapes and dtypes of their tensors.
        """
        lines = [f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {_shapes(node)}"
                 for node in self.graph_module.graph.nodes]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def attribute(self, node: Node) -> Any:
        """The value of a ``get_attr`` node."""
        return attribute_of(self.graph_module, node.target)

    def name_of(self, tensor: Tensor) -> str | None:
        """The model's name of a parameter or buffer; ``None`` for a constant of the graph."""
        return self.names.get(id(tensor))

    def unread(self) -> list[str]:
        """The trained parameters that no operator reads."""
        read = {id(self.attribute(node)) for node in self.graph_module.graph.find_nodes(op="get_attr")}
        return [name for name, parameter in self.model.named_parameters()
                if parameter.requires_grad and id(parameter) not in read]

    def require_fixed(self) -> None:
        """Raise :class:`CaptureError` if a tensor's shape depends on data, so that its cost cannot be planned."""
        for node in self.calls:
            if (fake := tensors(node)) is not None and any(isinstance(n, torch.SymInt) for n in fake.shape):
                place = quoted_place(node.meta.get("stack_trace"))
                raise CaptureError(f"the operator {node.name}{where(node)}{place} gives a tensor whose shape depends "
                                   "on data: use torch.where or a mask in place of picking entries, or cut without an "
                                   f"export, with {split_advice(self.model)}")

    def _require_supported(self) -> None:
        if not self.calls:
            raise CaptureError(f"{type(self.model).__name__} computes nothing: no operator was captured")
        for node in self.calls:
            place = quoted_place(node.meta.get("stack_trace"))
            if "_functorch" in getattr(node.target, "__module__", ""):
                raise CaptureError(f"the operator {node.name}{where(node)}{place} runs inside torch.func.vmap, which "
                                   "an export does not keep: write it with operators of a batch (bmm, einsum), or cut "
                                   f"without an export, with {split_advice(self.model)}")
            if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
                raise CaptureError(f"the operator {node.name}{where(node)}{place} gives a number that depends on "
                                   "data: compute it outside the model and give it as an argument, or cut without an "
                                   f"export, with {split_advice(self.model)}")


def autocasts() -> bool:
    """Whether autocast is enabled now."""
    return any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))


def where(node: Node) -> str:
    """The module that calls ``node``, as words for a message: ``" of encoder.0 (Linear)"``."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path, kind = list(stack.values())[-1]
    kind = kind if isinstance(kind, str) else kind.__name__
    return f" of {path or 'the model'} ({kind.rpartition('.')[2]})"


def graph_name(name: str) -> str:
    """The name of the model's tensor ``name`` in a graph module, where some names are taken."""
    return f"weft_{name}" if name.partition(".")[0] in TAKEN else name


def tensors(node: Node) -> Tensor | None:
    """The fake tensor of the result of ``node``; ``None`` if the result is not one tensor."""
    value = node.meta.get("val")
    return value if isinstance(value, Tensor) else None


def is_item(node: Node) -> bool:
    """Whether ``node`` selects one result of an operator with several."""
    return node.target is operator.getitem


def names_of(model: nn.Module) -> dict[int, str]:
    """The first name of each parameter and buffer, by ``id``."""
    names: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        names.setdefault(id(tensor), name)
    return names


def _rename_clashes(exported: ExportedProgram) -> None:
    """Rename the tensors of ``exported`` whose names are taken in a graph module."""
    signature, tables = exported.graph_signature, (exported.state_dict, exported.constants)
    for spec in (*signature.input_specs, *signature.output_specs):
        old = spec.target
        if old is None or (new := graph_name(old)) == old:
            continue
        spec.target = new
        for table in tables:
            if old in table:
                table[new] = table.pop(old)


def _drop_checks(graph_module: GraphModule) -> None:
    """Remove checks of shapes, and unused operators: each could be a needless value between stages."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        name = getattr(getattr(node.target, "_schema", None), "name", "").rpartition("::")[2]
        if node.op == "call_function" and name in CHECKS and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    graph_module.recompile()


def _shapes(node: Node) -> str:
    return str(tree_map(lambda leaf: (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else str(leaf),
                        node.meta.get("val")))


def _export_failure(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
                    error: Exception) -> tuple[str, Exception | None]:
    """The cause of a failed export and its remedy; if the model itself does not run, also the model's error."""
    name, text = type(model).__name__, raised_at(error)
    if any(known in str(error) for known in ("Unsupported output type", "Unsupported input type", "in output, which")):
        return (f"{name} cannot be exported: {text}: give it and let it return tensors in tuples, lists or dicts, tell "
                "torch.export.register_dataclass of a dataclass, and for a model of transformers give use_cache=False "
                "among kwargs"), None
    called: set[str] = set()
    try:
        with preserved_state(model), torch.enable_grad(), FunctionWatch(
                lambda func, given: called.add(getattr(func, "__name__", ""))):
            model(*args, **kwargs)
    except Exception as own:  # the user's code may raise anything
        return (f"{name} cannot be run on the example: {raised_at(own)}: give args and kwargs as its forward takes "
                "them"), own
    if "_pack_padded_sequence" in called:
        return (f"{name} cannot be exported: it packs sequences, whose shapes depend on their lengths ({text}): pack, "
                "run and unpack within the forward of one submodule, and cut before submodules without an export, as "
                f"with {split_advice(model)}; or run the padded sequences, and mask what is behind the ends"), None
    return (f"{name} cannot be exported: {text}: torch.export must follow the whole forward, so take out what looks at "
            "numbers of tensors there, or cut without an export, before submodules that you name, as with "
            f"{split_advice(model)}"), None


def leaves(value: Any) -> list[Any]:
    """The leaves of nested arguments."""
    return tree_leaves(value)


def is_on_meta(model: nn.Module) -> bool:
    """Whether a parameter or buffer of ``model`` is on the meta device."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def needs_fake_tensors(model: nn.Module) -> bool:
    """Whether a parameter or buffer of ``model`` is on the meta device or sharded over ranks."""
    return is_on_meta(model) or any(map(is_divided, model.parameters()))


@contextmanager
def fake_tensors(model: nn.Module, device: torch.device, given: Any) -> Iterator[tuple[Any, dict[int, Tensor]]]:
    """Inside, fake tensors on ``device`` replace the meta and sharded tensors of ``model``. Yields the nested ``given``
    as fake tensors, and the model's tensors by the ``id`` of the fake ones."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    stand_ins: dict[int, Tensor] = {}
    with mode:
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_meta or is_divided(tensor):
                fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
                stand_ins[id(tensor)] = (nn.Parameter(fake, requires_grad=tensor.requires_grad)
                                         if isinstance(tensor, nn.Parameter) else fake)
    originals = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    back = {id(fake): originals[own] for own, fake in stand_ins.items()}
    replace_tensors(model, stand_ins)
    try:
        yield tree_map(lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf, given), back
    finally:
        replace_tensors(model, back)


def replace_tensors(root: nn.Module, others: Mapping[int, Tensor]) -> None:
    """Replace the tensors of ``root`` with these ids by ``others``: parameters, buffers, and attributes that refer to
    them."""
    for module in root.modules():
        for table in (module._parameters, module._buffers, vars(module)):
            for name, value in list(table.items()):
                if isinstance(value, Tensor) and id(value) in others:
                    table[name] = others[id(value)]  # type: ignore[assignment]
