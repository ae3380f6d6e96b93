"""Which operators may be computed anywhere and twice, and where the graph must not be cut.

An operator that writes into a tensor (``add_``, ``relu_``, the running statistics of a batch norm) must run on the rank
of that tensor. So no cut may lie between the operator that made a tensor, or was the first to read a buffer, and one
that writes into it or into a view of it; and all readers of a buffer that is written to must be in one stage.

An operator that depends on inputs, buffers and constants alone (masks, positions, rotary angles) is *free*: cheaper to
recompute on each rank that needs it than to send, as every rank has the batch. It must have no weights, draw no random
numbers, write nowhere, and multiply no matrices.

Which operators of a captured model learn, and how much work is saved for the rest.

An operator that depends on no trained parameter (a frozen encoder, frozen embeddings) runs forward only, and no
gradient is sent there; frozen operators behind trained ones have no weight gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from weft.runtime.captured.captured import Captured, CaptureError, is_item, leaves, where

#: Operators that may give a view of their first argument, though their schema does not say so.
MAYBE_VIEWS = {"reshape", "contiguous", "flatten", "to", "type_as", "dropout", "unflatten", "view_as", "matrix_H",
               "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "einsum", "broadcast_tensors", "meshgrid",
               "atleast_1d", "atleast_2d", "atleast_3d", "sum_to_size", "cartesian_prod", "unsafe_chunk",
               "unsafe_split", "unsafe_split_with_sizes", "conj_physical"}
#: Running statistics are written to, though schemas do not say so: the places of the tensors and of the flag.
STATISTICS = {"batch_norm": ((3, 4), 5), "instance_norm": ((3, 4), 5), "_batch_norm_impl_index": ((3, 4), 5)}
#: Operators that draw random numbers, or may, though some torch versions do not tag them so.
RANDOM = {"dropout", "dropout_", "feature_dropout", "alpha_dropout", "rrelu", "bernoulli", "multinomial",
          "scaled_dot_product_attention", "multi_head_attention_forward", "lstm", "gru"}
#: Operators that multiply matrices, and the length of sums up to which they are cheap all the same.
PRODUCTS = {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "convolution", "conv1d", "conv2d", "conv3d",
            "scaled_dot_product_attention", "multi_head_attention_forward", "lstm", "gru", "_grouped_mm"}
SHORT_SUM = 8


def operator_name(node: Node) -> str:
    """``"add_"`` for ``torch.ops.aten.add_.Tensor``; the name of any other called function."""
    schema = getattr(node.target, "_schema", None)
    return schema.name.rpartition("::")[2] if schema is not None else getattr(node.target, "__name__", str(node.target))


def written(node: Node) -> Iterator[Node]:
    """The nodes whose tensors a call writes into."""
    schema = getattr(node.target, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _nodes(_argument(node, place, argument.name))
    places, flag = STATISTICS.get(operator_name(node), ((), 0))
    if places and (len(node.args) <= flag or node.args[flag] is True):
        for place in places:
            yield from _nodes(_argument(node, place, ""))


def is_random(node: Node) -> bool:
    """Whether a call may draw random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) or operator_name(node) in RANDOM


def draws(node: Node) -> bool:
    """Whether a call draws random numbers: not a dropout with rate 0, or in evaluation."""
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

    ``free``: those that may be computed wherever they are used. ``light``: whether operators with nearly free weight
    gradients are layers too (:mod:`~weft.runtime.captured.operators.layers`). :meth:`forbidden` has the places where no
    cut is allowed. Raises :class:`~weft.runtime.captured.captured.CaptureError` for a model that writes into its
    inputs.
    """

    def __init__(self, captured: Captured, light: bool = False) -> None:
        self.captured, self.light = captured, light
        self.base: dict[Node, Node] = {}  # the node whose memory a node's tensor lies in
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
        """The operators, and the reads of trained parameters, whose values have gradients: real numbers that depend on
        a trained parameter."""
        found: set[Node] = set()
        bases: set[Node] = set()  # nodes whose memory has such a value
        grown = True
        while grown:  # a value written into a tensor may be read through another view of it
            before = len(found), len(bases)
            for node in self.captured.graph_module.graph.nodes:
                if node.op == "get_attr":
                    value = self.captured.attribute(node)
                    if isinstance(value, nn.Parameter) and value.requires_grad:
                        found.add(node)
                elif _has_numbers(node) and (self.base[node] in bases or any(arg in found
                                                                             for arg in _followed(node))):
                    found.add(node)
                    bases.update(self.base[target] for target in written(node))
            grown = (len(found), len(bases)) != before
        return found

    def forbidden(self) -> dict[int, Node]:
        """The places where no cut is allowed, each with a node that it would separate from the tensor that is written
        to. A cut at place i has call i as the first of the next stage."""
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
        """Whether a stage may begin with ``node``: a non-free operator that a gradient can go through. A cut before any
        other equals the one before the next such operator, or leaves a stage without work."""
        looks = leaves(node.meta.get("val"))
        return node not in self.free and not is_item(node) and bool(node.users) and any(
            isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()) for value in looks)

    def _memory(self, base: Node) -> Any:
        """The same for all nodes whose tensors share one memory: several may read one buffer."""
        return id(self.captured.attribute(base)) if base.op == "get_attr" else base

    def _base(self, node: Node) -> Node:
        if node.op != "call_function" or not node.args:
            return node
        schema = getattr(node.target, "_schema", None)
        first = next(_nodes(node.args[0]), None)
        if schema is not None and any(r.alias_info is not None and r.alias_info.is_write for r in schema.returns):
            first = next(written(node), first)  # with out=..., it is not the first
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
        """About how many products are summed for each number of the result."""
        first = next((looks for arg in node.all_input_nodes if isinstance(looks := arg.meta.get("val"), Tensor)), None)
        return SHORT_SUM + 1 if first is None or not first.dim() else int(first.shape[-1])


def _followed(node: Node) -> list[Node]:
    """The nodes that a node's gradient goes on to."""
    return [] if operator_name(node) == "detach" else node.all_input_nodes


def _has_numbers(node: Node) -> bool:
    looks = node.meta.get("val")
    if isinstance(looks, Tensor):
        return looks.is_floating_point() or looks.is_complex()
    return node.op == "call_function" and looks is not None


def _argument(node: Node, place: int, name: str) -> Any:
    return node.args[place] if place < len(node.args) else node.kwargs.get(name)


def _nodes(value: Any) -> Iterator[Node]:
    for leaf in leaves(value):
        if isinstance(leaf, Node):
            yield leaf


def work_of(captured: Captured, purity: Purity) -> list[float]:
    """For each of ``captured.calls``, its share of a forward and a backward pass compared with a product with a trained
    weight: the forward, the input's gradient and the weight's take about as long."""
    known = purity.learned

    def is_frozen(node: Node) -> bool:
        return node.op == "get_attr" and isinstance(captured.attribute(node), nn.Parameter) and node not in known

    return [1 / 3 if node not in known else 2 / 3 if any(map(is_frozen, node.all_input_nodes)) else 1.0
            for node in captured.calls]


def first_weight(captured: Captured) -> int:
    """The number of the first operator that reads a parameter: operators before it belong to its stage.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a model that trains none.
    """
    def reads(node: Node, trained: bool) -> bool:
        return any(arg.op == "get_attr" and isinstance(value := captured.attribute(arg), nn.Parameter)
                   and (value.requires_grad or not trained) for arg in node.all_input_nodes)

    if not any(reads(node, trained=True) for node in captured.calls):
        raise CaptureError(f"{type(captured.model).__name__} has no trained parameter that an operator reads: there is "
                           "nothing to train")
    return next(i for i, node in enumerate(captured.calls) if reads(node, trained=False))
