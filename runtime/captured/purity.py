"""Side effects and gradients of operators: which may be computed twice, where cuts are forbidden, which are trained.

An operator that writes in place (``add_``, ``relu_``, the running statistics of a batch norm) must run on the rank of
the tensor. So no cut may lie between the producer of a tensor (the first reader of a buffer) and an operator that
writes into it or into a view of it, and all readers of a mutated buffer must be in one stage.

An operator that depends only on inputs, buffers and constants (masks, positions, rotary angles) is *free*: as every
rank has the batch, recomputing it on each rank is cheaper than sending it. A free operator has no weights, draws no
random numbers, writes nowhere, and multiplies no matrices.

An operator that depends on no trained parameter (a frozen encoder, frozen embeddings) has no backward, and no gradient
is sent to it. A frozen operator after trained ones has an input gradient and no weight gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from weft.runtime.captured.captured import Captured, CaptureError, is_item, leaves, where

#: Operators that may return a view of their first argument without an alias annotation in their schema.
MAYBE_VIEWS = {"reshape", "contiguous", "flatten", "to", "type_as", "dropout", "unflatten", "view_as", "matrix_H",
               "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "einsum", "broadcast_tensors", "meshgrid",
               "atleast_1d", "atleast_2d", "atleast_3d", "sum_to_size", "cartesian_prod", "unsafe_chunk",
               "unsafe_split", "unsafe_split_with_sizes", "conj_physical"}
#: Operators that write running statistics without an alias annotation in their schema: the positions of these tensors
#: among the arguments, and that of the training flag.
STATISTICS = {"batch_norm": ((3, 4), 5), "instance_norm": ((3, 4), 5), "_batch_norm_impl_index": ((3, 4), 5)}
#: Operators that may draw random numbers and that some torch versions do not tag as random.
RANDOM = {"dropout", "dropout_", "feature_dropout", "alpha_dropout", "rrelu", "bernoulli", "multinomial",
          "scaled_dot_product_attention", "multi_head_attention_forward", "lstm", "gru"}
#: Operators that multiply matrices, and the longest inner dimension for which they are cheap all the same.
PRODUCTS = {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "convolution", "conv1d", "conv2d", "conv3d",
            "scaled_dot_product_attention", "multi_head_attention_forward", "lstm", "gru", "_grouped_mm"}
SHORT_SUM = 8


def operator_name(node: Node) -> str:
    """``"add_"`` for ``torch.ops.aten.add_.Tensor``; the name of any other called function."""
    schema = getattr(node.target, "_schema", None)
    return schema.name.rpartition("::")[2] if schema is not None else getattr(node.target, "__name__", str(node.target))


def written(node: Node) -> Iterator[Node]:
    """The argument nodes whose tensors a call writes into."""
    schema = getattr(node.target, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _nodes(_argument(node, place, argument.name))
    places, flag = STATISTICS.get(operator_name(node), ((), 0))
    if places and (len(node.args) <= flag or node.args[flag] is True):
        for place in places:
            yield from _nodes(_argument(node, place, ""))


def is_random(node: Node) -> bool:
    """Whether an operator may draw random numbers, for some arguments."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) or operator_name(node) in RANDOM


def draws(node: Node) -> bool:
    """Whether a call draws random numbers; a dropout with rate 0, or in evaluation, does not."""
    if node.op != "call_function" or not is_random(node):
        return False
    schema = node.target._schema  # type: ignore[union-attr]
    given = {argument.name: node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
             for i, argument in enumerate(schema.arguments)}
    if given.get("train") is False or given.get("training") is False:
        return False
    names = [name for name in ("p", "dropout_p", "dropout") if name in given]
    return not names or any(given[name] not in (None, 0, 0.0) for name in names)


class Purity:
    """Properties of the operators of ``captured``.

    ``free``: the free operators. ``base``: for each node, the node that owns the memory of its tensor. ``place``: the
    position of each operator. ``light``: whether light operators, with short weight gradients, become layers too
    (:mod:`~weft.runtime.captured.operators.layers`).

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a model that writes into its inputs.
    """

    def __init__(self, captured: Captured, light: bool = False) -> None:
        self.captured, self.light = captured, light
        self.base: dict[Node, Node] = {}
        self.place = {node: i for i, node in enumerate(captured.calls)}
        for node in captured.graph_module.graph.nodes:
            self.base[node] = self._base(node)
        self.writers: dict[Any, list[Node]] = {}
        for node in captured.calls:
            for target in written(node):
                base = self.base[target]
                if base.op == "placeholder":
                    raise CaptureError(f"the operator {node.name}{where(node)} writes into the input {base.name!r}, "
                                       "which every rank has its own copy of: give the model a clone of it")
                self.writers.setdefault(self._memory(base), []).append(node)
        self.free: set[Node] = set()
        for node in captured.calls:
            if self._is_free(node):
                self.free.add(node)

    @cached_property
    def learned(self) -> set[Node]:
        """The nodes whose values have gradients: reads of trained parameters, and floating-point results that depend on
        one."""
        found: set[Node] = set()
        bases: set[Node] = set()  # owners of memory with such a value
        grown = True
        while grown:  # until nothing changes: a value written into a tensor may be read through another view of it
            before = len(found), len(bases)
            for node in self.captured.graph_module.graph.nodes:
                if node.op == "get_attr":
                    value = self.captured.attribute(node)
                    if isinstance(value, nn.Parameter) and value.requires_grad:
                        found.add(node)
                elif _is_differentiable(node) and (self.base[node] in bases or any(
                        arg in found for arg in _differentiated(node))):
                    found.add(node)
                    bases.update(self.base[target] for target in written(node))
            grown = (len(found), len(bases)) != before
        return found

    def forbidden(self) -> dict[int, Node]:
        """The places where a cut is forbidden, each with an in-place operator that the cut would separate from the
        tensor. A cut at place i makes call i the first of the next stage."""
        found: dict[int, Node] = {}
        for memory, writers in self.writers.items():
            members = [self.place[node] for node in self.captured.calls
                       if self._memory(self.base[node]) == memory or node in writers or (
                           isinstance(memory, int) and any(self._memory(self.base[arg]) == memory
                                                           for arg in node.all_input_nodes))]
            last = max(members) if isinstance(memory, int) else max(self.place[node] for node in writers)
            for place in range(min(members) + 1, last + 1):
                found.setdefault(place, writers[-1])
        return found

    def writers_of(self, node: Node) -> list[Node]:
        """The operators that write into the memory of the result of ``node``."""
        return self.writers.get(self._memory(self.base[node]), [])

    def begins(self, node: Node) -> bool:
        """Whether a stage may begin with ``node``: it is not free, and a gradient can pass through it. A cut before any
        other operator equals the one before the next such operator, or leaves a stage without work."""
        results = leaves(node.meta.get("val"))
        return node not in self.free and not is_item(node) and bool(node.users) and any(
            isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()) for value in results)

    def _memory(self, base: Node) -> Any:
        """A key that is equal for all nodes whose tensors share memory, as several nodes may read one buffer."""
        return id(self.captured.attribute(base)) if base.op == "get_attr" else base

    def _base(self, node: Node) -> Node:
        if node.op != "call_function" or not node.args:
            return node
        schema = getattr(node.target, "_schema", None)
        first = next(_nodes(node.args[0]), None)
        if schema is not None and any(r.alias_info is not None and r.alias_info.is_write for r in schema.returns):
            first = next(written(node), first)  # with out=..., it is not the first argument
        shares = operator_name(node) in MAYBE_VIEWS or is_item(node)
        if schema is not None and any(result.alias_info is not None for result in schema.returns):
            shares = True
        return self.base[first] if shares and first is not None else node

    def _is_free(self, node: Node) -> bool:
        schema = getattr(node.target, "_schema", None)
        if is_item(node):
            return all(self._is_source(arg) for arg in node.all_input_nodes)
        if schema is None or schema.is_mutable or any(True for _ in written(node)):
            return False
        if is_random(node):
            return False
        if operator_name(node) in PRODUCTS and self._summed(node) > SHORT_SUM:
            return False
        return all(self._is_source(arg) for arg in node.all_input_nodes)

    def _is_source(self, node: Node) -> bool:
        if node.op == "get_attr":
            value = self.captured.attribute(node)
            return isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and id(value) not in self.writers
        return node.op == "placeholder" or node in self.free

    def _summed(self, node: Node) -> int:
        """The approximate inner dimension of a product: the last dimension of its first tensor."""
        first = next((fake for arg in node.all_input_nodes if isinstance(fake := arg.meta.get("val"), Tensor)), None)
        return SHORT_SUM + 1 if first is None or not first.dim() else int(first.shape[-1])


def _differentiated(node: Node) -> list[Node]:
    """The inputs that receive a gradient from ``node``."""
    return [] if operator_name(node) == "detach" else node.all_input_nodes


def _is_differentiable(node: Node) -> bool:
    value = node.meta.get("val")
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex()
    return node.op == "call_function" and value is not None


def _argument(node: Node, place: int, name: str) -> Any:
    return node.args[place] if place < len(node.args) else node.kwargs.get(name)


def _nodes(value: Any) -> Iterator[Node]:
    for leaf in leaves(value):
        if isinstance(leaf, Node):
            yield leaf


def work_of(captured: Captured, purity: Purity) -> list[float]:
    """For each of ``captured.calls``, the part of forward, input gradient and weight gradient that it computes, each a
    third: 1/3 without gradients, 2/3 with a frozen weight, otherwise 1."""
    learned = purity.learned

    def is_frozen(node: Node) -> bool:
        return node.op == "get_attr" and isinstance(captured.attribute(node), nn.Parameter) and node not in learned

    return [1 / 3 if node not in learned else 2 / 3 if any(map(is_frozen, node.all_input_nodes)) else 1.0
            for node in captured.calls]


def first_weight(captured: Captured) -> int:
    """The place of the first operator that reads a parameter; operators before it belong to its stage.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a model without trained parameters.
    """
    def reads(node: Node, trained: bool) -> bool:
        return any(arg.op == "get_attr" and isinstance(value := captured.attribute(arg), nn.Parameter)
                   and (value.requires_grad or not trained) for arg in node.all_input_nodes)

    if not any(reads(node, trained=True) for node in captured.calls):
        raise CaptureError(f"{type(captured.model).__name__} has no trained parameter that an operator reads: there is "
                           "nothing to train")
    return next(i for i, node in enumerate(captured.calls) if reads(node, trained=False))
