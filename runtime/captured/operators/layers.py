"""Operators of a captured graph as layers, so that a split backward can defer their weight gradients to W.

A layer includes the functions that compute its weights from parameters alone (a transpose, a cast, ``-exp(A_log)``, a
concatenation); torch differentiates them in W.

:mod:`~weft.runtime.captured.operators.makers` has the operators with a formula. Any other operator that reads weights,
draws no random numbers and writes nowhere can be run again in W (:class:`~weft.runtime.train.deferred.Again`), except
slow ones. A light operator (:data:`~weft.runtime.train.formulas.LIGHT`) becomes a layer only if ``purity.light`` is
set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten, tree_unflatten

from weft.runtime.captured.captured import is_item
from weft.runtime.captured.operators.makers import MAKERS, NOT_AGAIN, DeferredCall, arguments
from weft.runtime.captured.purity import Purity, is_random, operator_name, written
from weft.runtime.captured.regions import UnderAutocast
from weft.runtime.train.deferred import Again, DeferredOperator, Formula, is_hooked
from weft.runtime.train.formulas import LIGHT, Linear, Product

#: Operators that may transpose a matrix, as a linear layer does.
TRANSPOSES = {"t", "transpose", "numpy_T", "permute", "swapaxes", "mT"}


class OperatorLayer(NamedTuple):
    """A module that computes an operator, and its inputs ``xs``."""

    module: nn.Module
    xs: tuple[Node, ...]


class Layers:
    """The layers among ``nodes``, the nodes of a stage in the graph's order; ``given`` are its outputs.

    ``layers``: by operator. ``absorbed``: nodes that are computed only inside layers. With ``purity.light``, light
    weight gradients are deferred too.
    """

    def __init__(self, nodes: Sequence[Node], given: Sequence[Node], purity: Purity) -> None:
        self.purity, self.attribute, self.light = purity, purity.captured.attribute, purity.light
        self.nodes, self._given = dict.fromkeys(nodes), set(given)
        self.functions: set[Node] = set()  # of parameters alone
        self.layers: dict[Node, OperatorLayer] = {}
        self.absorbed: set[Node] = set()
        self._inside: dict[Node, set[Node]] = {}  # by layer, the functions that compute its weights
        made: dict[Node, DeferredCall] = {}
        for node in self.nodes:
            if node.op == "call_function":
                self._classify(node, made)
        for node, it in made.items():
            self._inside[node] = {f for weight in it.weights for f in self._closure(weight)}
        self._absorb(made)
        self.layers.update((node, self._layer(it)) for node, it in made.items())

    # -- selection -----------------------------------------------------------------------------------------------------

    def _classify(self, node: Node, made: dict[Node, DeferredCall]) -> None:
        """Record ``node`` if it is a layer, or a function of parameters."""
        if (getattr(node.target, "_schema", None) is None and not is_item(node)) or operator_name(node) == "detach":
            return  # a detached weight has no gradient to defer
        if (self.purity.captured.under_autocast or isinstance(node.target, UnderAutocast)) and self._casts(node):
            return
        if (only := self._only_result(node)) is not None:
            made[node] = only
            self.absorbed.add(node.all_input_nodes[0])
            return
        reads = [arg for arg in node.all_input_nodes if self._is_weight(arg)]
        if not reads or not self._is_pure(node):
            return
        maker = MAKERS.get(operator_name(node))
        it = None
        if maker is not None and isinstance(node.meta.get("val"), Tensor) and not self._has_complex(node):
            it = maker(arguments(node), self._weigh)
        if it is None and not self.purity.writers_of(node) and all(
                self._is_weight(arg) or self._is_constant(arg) for arg in node.all_input_nodes):
            self.functions.add(node)
            return
        if it is None:
            it = self._again(node)
        if it is not None and self._is_wanted(it):
            made[node] = it

    def _casts(self, node: Node) -> bool:
        """Whether autocast casts inputs of ``node``. W runs outside of autocast, so only a linear layer, which handles
        that, can be deferred."""
        if operator_name(node) == "linear" and all(arg.op == "get_attr" for arg in node.all_input_nodes[1:]):
            return False
        values = [self.attribute(each) if each.op == "get_attr" else each.meta.get("val")
                  for each in (node, *node.all_input_nodes)]
        return len({leaf.dtype for each in values for leaf in tree_flatten(each)[0]
                    if isinstance(leaf, Tensor) and leaf.is_floating_point()}) > 1

    def _has_complex(self, node: Node) -> bool:
        """Whether ``node`` has complex operands or results, which formulas do not conjugate."""
        values = [self.attribute(each) if each.op == "get_attr" else each.meta.get("val")
                  for each in (node, *node.all_input_nodes)]
        return any(isinstance(each, Tensor) and each.is_complex() for each in values)

    def _is_wanted(self, it: DeferredCall) -> bool:
        parameters = [p for weight in it.weights for p in self._leaves(weight)]
        if any(p.is_complex() or is_hooked(p) for p in parameters):
            return False
        return not isinstance(it.formula, LIGHT) or (self.light and any(p.requires_grad for p in parameters))

    def _is_pure(self, node: Node) -> bool:
        """Whether ``node`` can be run again in W on unchanged inputs: no in-place operator writes to them later, and
        they are not views of a buffer, which may change before W."""
        if is_item(node):
            return node.args[0] in self.functions
        if operator_name(node) == "batch_norm":  # it writes only running statistics, which its gradients do not read
            return True
        if is_random(node) or any(True for _ in written(node)):
            return False
        place = self.purity.place[node]
        return not any(self.purity.base[arg].op == "get_attr" or self.purity.place[writer] > place
                       for arg in node.all_input_nodes for writer in self.purity.writers_of(arg))

    def _only_result(self, node: Node) -> DeferredCall | None:
        """A layer if ``node`` selects the only used result of an operator that reads weights and has several results.
        """
        if not is_item(node) or not (isinstance(source := node.args[0], Node) and source in self.nodes):
            return None
        if source.op != "call_function" or len(source.users) > 1 or source in self.functions or not any(
                map(self._is_weight, source.all_input_nodes)) or not self._is_pure(source):
            return None
        it = self._again(source, node.args[1])  # type: ignore[arg-type]
        return it if it is not None and self._is_wanted(it) else None

    def _again(self, node: Node, item: int | None = None) -> DeferredCall | None:
        """``node`` (or result number ``item`` of it) as an operator that W runs again; ``None`` if that is impossible.
        """
        if operator_name(node) in NOT_AGAIN or any(True for _ in written(node)):
            return None
        if item is None and not isinstance(node.meta.get("val"), Tensor):
            return None
        weights = [arg for arg in node.all_input_nodes if self._is_weight(arg)]
        xs = [arg for arg in node.all_input_nodes if not self._is_weight(arg)]
        if not all(isinstance(arg.meta.get("val"), Tensor) or arg.op == "get_attr" for arg in (*weights, *xs)):
            return None
        return DeferredCall(Again(_Call.of(node, xs, weights, item)), weights, xs)

    def _is_weight(self, node: Any) -> bool:
        if not isinstance(node, Node):
            return False
        return node in self.functions or (
            node.op == "get_attr" and isinstance(self.attribute(node), nn.Parameter))

    def _is_constant(self, node: Node) -> bool:
        """Whether ``node`` is the same in every micro-batch: a constant, or computed from constants alone."""
        if node.op == "get_attr":
            return isinstance(self.attribute(node), Tensor) and not any(True for _ in self.purity.writers_of(node))
        return node in self.purity.free and all(self._is_constant(arg) for arg in node.all_input_nodes)

    def _weigh(self, value: Any) -> Tensor | None:
        if not self._is_weight(value):
            return None
        fake = self.attribute(value) if value.op == "get_attr" else value.meta.get("val")
        return fake if isinstance(fake, Tensor) else None

    def _absorb(self, made: dict[Node, DeferredCall]) -> None:
        """Absorb functions of parameters that only layers read; with ``light``, others become layers themselves."""
        for node in reversed(self.nodes):
            if node not in self.functions:
                continue
            users = [user for user in node.users if user in self.nodes]
            if node not in self._given and users and all(
                    user in self.absorbed or node in self._inside.get(user, ()) for user in users):
                self.absorbed.add(node)
            elif self.light and isinstance(node.meta.get("val"), Tensor):
                made[node] = DeferredCall(_PlainWeight(), [node], [])
                if self._is_wanted(made[node]):
                    self._inside[node] = {f for arg in node.all_input_nodes for f in self._closure(arg)}
                else:
                    del made[node]

    # -- functions of parameters ---------------------------------------------------------------------------------------

    def _closure(self, node: Node) -> list[Node]:
        """All nodes that ``node`` depends on, itself included, in the graph's order."""
        ancestors: set[Node] = set()
        waiting = [node]
        while waiting:
            if (each := waiting.pop()) not in ancestors:
                ancestors.add(each)
                waiting += each.all_input_nodes
        return [each for each in self.nodes if each in ancestors]

    def _leaves(self, weight: Node) -> list[nn.Parameter]:
        """The parameters that ``weight`` depends on."""
        return list({id(p): p for node in self._closure(weight) if node.op == "get_attr"
                     and isinstance(p := self.attribute(node), nn.Parameter)}.values())

    def _layer(self, it: DeferredCall) -> OperatorLayer:
        it = self._untransposed(it)
        direct = [self.attribute(weight) for weight in it.weights if weight.op == "get_attr"]
        if len(direct) == len(it.weights) and len({id(p) for p in direct}) == len(direct):
            if type(it.formula) is Linear:
                return OperatorLayer(_linear(*direct), tuple(it.xs))
            names = ("weight", "bias", *(f"p{i}" for i in range(2, len(direct))))
            return OperatorLayer(DeferredOperator(it.formula, dict(zip(names, direct, strict=False))), tuple(it.xs))
        parameters = list({id(p): p for weight in it.weights for p in self._leaves(weight)}.values())
        return OperatorLayer(DeferredOperator(it.formula, {f"p{i}": p for i, p in enumerate(parameters)},
                                              self._function(it.weights, parameters)), tuple(it.xs))

    def _untransposed(self, it: DeferredCall) -> DeferredCall:
        """``it`` as a linear layer if it is a product with a transposed parameter; otherwise unchanged."""
        weight, *bias = it.weights if it.weights else [None]
        if type(it.formula) is not Product or weight is None or operator_name(weight) not in TRANSPOSES:
            return it
        matrix = weight.args[0]
        fake, biases = self._weigh(matrix), [self._weigh(b) for b in bias]
        if fake is None or fake.dim() != 2 or not isinstance(matrix, Node) or matrix.op != "get_attr" or any(
                b is None or b.dim() != 1 for b in biases) or weight.meta["val"].shape != fake.shape[::-1]:
            return it
        if [d % 2 for d in tree_flatten(weight.args[1:])[0]] not in (
                [[1, 0]] if operator_name(weight) == "permute" else [[], [0, 1], [1, 0]]):
            return it
        return DeferredCall(Linear(), [matrix, *bias], it.xs)

    def _function(self, weights: Sequence[Node], parameters: Sequence[nn.Parameter]) -> Callable[..., Any]:
        """A module that computes ``weights`` from ``parameters``."""
        graph, root = Graph(), nn.Module()
        entered = {id(p): graph.placeholder(f"p{i}") for i, p in enumerate(parameters)}
        wanted = {node for weight in weights for node in self._closure(weight)}
        env: dict[Node, Node] = {}
        for node in self.nodes:
            if node not in wanted:
                continue
            value = self.attribute(node) if node.op == "get_attr" else None
            if id(value) in entered:
                env[node] = entered[id(value)]
            elif node.op == "get_attr":
                root.register_buffer(node.name, value, persistent=False)
                env[node] = graph.get_attr(node.name)
            else:
                env[node] = graph.node_copy(node, lambda arg: env[arg])
        graph.output(tuple(env[weight] for weight in weights))
        return GraphModule(root, graph, class_name="Weights")


class _PlainWeight(Formula):
    """The identity of a weight, for a reader that is not a layer."""

    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        return weights[0], ()

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Sequence[Tensor | None]:
        return [gradient.clone()]


@dataclass(frozen=True)
class _Slot:
    """A tensor argument of a call: its number among the weights or the inputs."""

    of_weights: bool
    number: int


@dataclass(frozen=True)
class _Call:
    """A call of ``target`` with tensors for the slots among ``leaves``; ``item``: the number of the returned result, if
    there are several."""

    target: Callable[..., Tensor]
    leaves: tuple[Any, ...]
    spec: Any = field(repr=False)
    item: int | None

    @classmethod
    def of(cls, node: Node, xs: Sequence[Node], weights: Sequence[Node], item: int | None) -> _Call:
        slots = {**{x: _Slot(False, i) for i, x in enumerate(xs)}, **{w: _Slot(True, i) for i, w in enumerate(weights)}}
        called: Any = (node.args, dict(node.kwargs))
        leaves, spec = tree_flatten(map_arg(called, lambda arg: slots[arg]))  # type: ignore[arg-type,return-value]
        return cls(node.target, tuple(leaves), spec, item)  # type: ignore[arg-type]

    def __call__(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        args, kwargs = tree_unflatten([(weights if leaf.of_weights else xs)[leaf.number]
                                       if isinstance(leaf, _Slot) else leaf for leaf in self.leaves], self.spec)
        result: Any = self.target(*args, **kwargs)
        return result if self.item is None else result[self.item]  # type: ignore[no-any-return]


def _linear(weight: nn.Parameter, bias: nn.Parameter | None = None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = weight
    if bias is not None:
        linear.bias = bias
    return linear
