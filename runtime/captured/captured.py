"""A model as one graph of torch operators: exported, checked, and with the model's own names.

The graph is that of ``torch.export``, before it is made functional, so that operators are those that the model calls
and its gradients those of the model. Parameters and buffers are the model's own objects: training the graph trains the
model.

A model on the meta device, or of which each rank has shares, captured as if it were whole on a real one.

On the meta device an operator with a device argument would get ``meta``, and so would the graph. So, while the model is
exported, tensors without memory that claim to be on the real device replace its own; afterwards the graph gets the
model's own again.
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

from weft.runtime.captured.looks import FunctionWatch, attribute_of, untouched, without_looks
from weft.runtime.captured.marks import checkpointed, marked, own_backwards
from weft.runtime.captured.regions import in_layers, unwrapped
from weft.runtime.captured.told import quoted_place, raised_at, split_advice, without_graphs
from weft.runtime.train.sharding import is_divided

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: Attributes of a graph module that other modules lack: a model may have tensors and submodules of these names.
TAKEN = set(dir(GraphModule(nn.Module(), Graph()))) - set(dir(nn.Module()))
#: Operators that only check facts that are known when shapes do not change.
CHECKS = {"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range",
          "sym_constrain_range_for_size"}


class CaptureError(ValueError):
    """A model that cannot be captured, or not cut in that way; the message says where and what to do, in one
    sentence."""


class Treated(Protocol):
    """A change to stages before they train."""

    def of(self, places: Sequence[int], stages: Mapping[int, GraphModule], light: bool) -> dict[int, GraphModule]:
        """``stages`` of the cut at ``places``, changed; ``light`` as in
        :class:`~weft.runtime.captured.purity.Purity`."""


@dataclass(frozen=True)
class Captured:
    """An exported model.

    ``graph_module``: its operators; ``names``: of each parameter and buffer, by ``id``, the model's own first name for
    it; ``inputs``: the placeholders, in the order of the leaves of ``(args, kwargs)`` as ``in_spec`` has them;
    ``out_spec``: how the results are put together. ``treatment``: what is done to the stages that it is cut into.
    ``under_autocast``: it was captured so, and must run so: the graph says of which types tensors are, but has no
    casts. ``checkpoints``: of each call of ``torch.utils.checkpoint`` in the model, whether it had a policy of its own.
    ``fixed``: sentences on what the model's own forward does anew in each run, and the graph does not.
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
        """``model`` called with ``args`` and ``kwargs``, which have the size of one micro-batch. Tensors on the meta
        device, or divided among ranks, are captured as if they were on ``device`` (default: the CPU).

        Raises :class:`CaptureError` for a model that ``torch.export`` cannot follow.
        """
        given = tuple(args), dict(kwargs or {})
        if not is_elsewhere(model):
            return cls._exported(model, *given)
        with faked(model, device or torch.device("cpu"), given) as (standing_in, own):
            found = cls._exported(model, *standing_in)
        return found.exchanging(own)

    def exchanging(self, others: Mapping[int, Tensor]) -> Captured:
        """The same with ``others`` in place of the tensors with these ids, in the graph and in the model."""
        exchanged(self.graph_module, others)
        exchanged(self.model, others)
        return replace(self, names=names_of(self.model))

    @classmethod
    def _exported(cls, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
        from torch.export import export  # slow to import, and a kept capture needs none

        failed: Exception | None = None
        try:
            with without_graphs(), own_backwards(model) as lost, marked() as marks:
                exported = export(model, args, kwargs, strict=False)
        except Exception as error:  # of many types: the model's own code may raise anything
            failed = error
        if failed is not None:  # outside, so that torch's long message is not shown with ours
            why, own = _why(model, args, kwargs, failed)
            raise CaptureError(why) from own
        if lost:
            raise CaptureError(f"{type(model).__name__} has a backward of its own, {lost[0]}, which an export does not "
                               f"keep: cut without an export, with {split_advice(model)}")
        _rename_clashes(exported)
        try:
            graph_module = exported.module(check_guards=False)
        except TypeError:  # before torch 2.9 there were no guards in the graph
            graph_module = exported.module()
        assert isinstance(graph_module, GraphModule)
        unwrapped(graph_module)
        in_layers(graph_module)
        without_looks(graph_module)
        _drop_checks(graph_module)
        found = cls(model, graph_module, names_of(model), exported.call_spec.in_spec, exported.call_spec.out_spec,
                    under_autocast=autocasts(), checkpoints=tuple(marks.seen))
        found._require_read()
        return found

    @cached_property
    def calls(self) -> tuple[Node, ...]:
        """The operators in their order: cuts are between them."""
        return tuple(node for node in self.graph_module.graph.nodes if node.op in ("call_function", "call_module"))

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The placeholders."""
        return tuple(node for node in self.graph_module.graph.nodes if node.op == "placeholder")

    @cached_property
    def results(self) -> tuple[Any, ...]:
        """The graph's results: nodes, and numbers or ``None`` among them, as leaves of the model's result."""
        node, = self.graph_module.graph.find_nodes(op="output")
        return tuple(node.args[0]) if isinstance(node.args[0], tuple | list) else (node.args[0],)

    @cached_property
    def checkpointed(self) -> Mapping[str, int]:
        """The model's own checkpoint that each operator is in, by name; operators outside of checkpoints are absent."""
        return checkpointed(self.calls)

    @cached_property
    def digest(self) -> str:
        """The model's identity: operators, their connections, and their tensors' shapes and types."""
        lines = [f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {_looks(node)}"
                 for node in self.graph_module.graph.nodes]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def attribute(self, node: Node) -> Any:
        """The attribute that a ``get_attr`` node reads."""
        return attribute_of(self.graph_module, node.target)

    def name_of(self, tensor: Tensor) -> str | None:
        """The model's own name of a parameter or buffer; ``None`` for a constant of the graph."""
        return self.names.get(id(tensor))

    def unread(self) -> list[str]:
        """The trained parameters that no operator reads."""
        read = {id(self.attribute(node)) for node in self.graph_module.graph.find_nodes(op="get_attr")}
        return [name for name, parameter in self.model.named_parameters()
                if parameter.requires_grad and id(parameter) not in read]

    def require_fixed(self) -> None:
        """Raise :class:`CaptureError` if the shape of any tensor depends on data: its cost could not be planned."""
        for node in self.calls:
            if (looks := tensors(node)) is not None and any(isinstance(n, torch.SymInt) for n in looks.shape):
                place = quoted_place(node.meta.get("stack_trace"))
                raise CaptureError(f"the operator {node.name}{where(node)}{place} gives a tensor whose shape depends "
                                   "on data: use torch.where or a mask in place of picking entries, or cut without an "
                                   f"export, with {split_advice(self.model)}")

    def _require_read(self) -> None:
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
    """The module that ``node`` was called in, for a sentence."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path, kind = list(stack.values())[-1]
    kind = kind if isinstance(kind, str) else kind.__name__
    return f" of {path or 'the model'} ({kind.rpartition('.')[2]})"


def graph_name(name: str) -> str:
    """The name of the model's tensor ``name`` in a graph module: the same, unless it clashes with the module's own."""
    return f"weft_{name}" if name.partition(".")[0] in TAKEN else name


def tensors(node: Node) -> Tensor | None:
    """The result of ``node``, without data, if it is one tensor."""
    looks = node.meta.get("val")
    return looks if isinstance(looks, Tensor) else None


def is_item(node: Node) -> bool:
    """Whether it takes one of several results."""
    return node.target is operator.getitem


def names_of(model: nn.Module) -> dict[int, str]:
    """The first name of each parameter and buffer, by ``id``."""
    found: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found.setdefault(id(tensor), name)
    return found


def _rename_clashes(exported: ExportedProgram) -> None:
    """Rename tensors of ``exported`` whose names its module could not have."""
    signature, held = exported.graph_signature, (exported.state_dict, exported.constants)
    for spec in (*signature.input_specs, *signature.output_specs):
        old = spec.target
        if old is None or (new := graph_name(old)) == old:
            continue
        spec.target = new
        for names in held:
            if old in names:
                names[new] = names.pop(old)


def _drop_checks(graph_module: GraphModule) -> None:
    """Remove checks of shapes, and unused operators: each might be one more value between stages."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        name = getattr(getattr(node.target, "_schema", None), "name", "").rpartition("::")[2]
        if node.op == "call_function" and name in CHECKS and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    graph_module.recompile()


def _looks(node: Node) -> str:
    return str(tree_map(lambda leaf: (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else str(leaf),
                        node.meta.get("val")))


def _why(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
         error: Exception) -> tuple[str, Exception | None]:
    """Why an export failed, and what to do: if the model itself does not run, its own error."""
    name, said = type(model).__name__, raised_at(error)
    if any(known in str(error) for known in ("Unsupported output type", "Unsupported input type", "in output, which")):
        return (f"{name} cannot be exported: {said}: give it and let it return tensors in tuples, lists or dicts, tell "
                "torch.export.register_dataclass of a dataclass, and for a model of transformers give use_cache=False "
                "among kwargs"), None
    called: set[str] = set()
    try:
        with untouched(model), torch.enable_grad(), FunctionWatch(
                lambda func, given: called.add(getattr(func, "__name__", ""))):
            model(*args, **kwargs)
    except Exception as own:  # of the user's own code
        return (f"{name} cannot be run on the example: {raised_at(own)}: give args and kwargs as its forward takes "
                "them"), own
    if "_pack_padded_sequence" in called:
        return (f"{name} cannot be exported: it packs sequences, whose shapes depend on their lengths ({said}): pack, "
                "run and unpack within the forward of one submodule, and cut before submodules without an export, as "
                f"with {split_advice(model)}; or run the padded sequences, and mask what is behind the ends"), None
    return (f"{name} cannot be exported: {said}: torch.export must follow the whole forward, so take out what looks at "
            "numbers of tensors there, or cut without an export, before submodules that you name, as with "
            f"{split_advice(model)}"), None


def leaves(value: Any) -> list[Any]:
    """All leaves of nested arguments."""
    return tree_leaves(value)


def is_on_meta(model: nn.Module) -> bool:
    """Whether a parameter or buffer of ``model`` has no numbers."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def is_elsewhere(model: nn.Module) -> bool:
    """Whether a parameter or buffer of ``model`` is not whole on this rank."""
    return is_on_meta(model) or any(map(is_divided, model.parameters()))


@contextmanager
def faked(model: nn.Module, device: torch.device, given: Any) -> Iterator[tuple[Any, dict[int, Tensor]]]:
    """Inside, tensors of ``model`` that are not whole on this rank are replaced; yields ``given``, which is nested, to
    match, and the model's own tensors by the ``id`` of their stand-ins."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    stand_ins: dict[int, Tensor] = {}
    with mode:
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_meta or is_divided(tensor):
                fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
                stand_ins[id(tensor)] = (nn.Parameter(fake, requires_grad=tensor.requires_grad)
                                         if isinstance(tensor, nn.Parameter) else fake)
    owned = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    back = {id(fake): owned[own] for own, fake in stand_ins.items()}
    exchanged(model, stand_ins)
    try:
        yield tree_map(lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf, given), back
    finally:
        exchanged(model, back)


def exchanged(root: nn.Module, others: Mapping[int, Tensor]) -> None:
    """Put ``others`` in place of the tensors of ``root`` with these ids: parameters, buffers, and attributes that are
    one of them."""
    for module in root.modules():
        for held in (module._parameters, module._buffers, vars(module)):
            for name, value in list(held.items()):
                if isinstance(value, Tensor) and id(value) in others:
                    held[name] = others[id(value)]  # type: ignore[assignment]
