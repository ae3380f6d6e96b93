"""Stages whose parameters are divided among peers, which compute each operator together.

All values inside are ``DTensor``, of the shapes that the graph was captured with: torch finds for each operator the
placement of its result on the peers, and their communication for it; so gradients, those of whole parameters too, are
right for any placement of parameters. Inputs and outputs are whole on each peer. Each computes the whole of an operator
that torch has no rule for (of attention, its own heads), and of one that draws random numbers, which are then those of
one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map

from weft.runtime.captured.captured import CaptureError, is_item, where
from weft.runtime.captured.loss import ResultStage
from weft.runtime.captured.purity import operator_name
from weft.runtime.train.moment import Seeded
from weft.runtime.train.sharding import is_divided, whole_of

#: Part of torch's error for an operator whose shares of heads, or the like, would not be whole.
UNEVEN = "evenly"
#: Computed by each rank for its own heads, or whole: on a CPU torch has no rule, and searches long for one.
ATTENTION = "scaled_dot_product_attention"


def compute_together(module: nn.Module, mesh: Any) -> None:
    """Make ``module``, a stage, compute with the peers of ``mesh``, in place."""
    stage = module.stage if isinstance(module, ResultStage) else module
    for part in list(stage.modules()):
        if isinstance(part, Seeded):
            part.target = _Operator(part.target, str(part.target), "", mesh, whole=True)
        elif isinstance(part, GraphModule):
            _rewritten(part, mesh, part is stage)


def _rewritten(module: GraphModule, mesh: Any, is_stage: bool) -> None:
    graph = module.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and not is_item(node):
            node.target = _Operator(node.target, operator_name(node), where(node), mesh)
        if node.op == "placeholder" or (node.op in ("get_attr", "call_function", "call_module")
                                        and not node.all_input_nodes):
            _through(node, _AsWhole(mesh))
    if is_stage:
        for node in dict.fromkeys(graph.find_nodes(op="output")[0].all_input_nodes):
            _through(node, _leave, only=graph.find_nodes(op="output")[0])
    module.recompile()


def _through(node: Node, function: Callable[..., Any], only: Node | None = None) -> None:
    """Redirect the readers of ``node``, or only ``only``, to the result of ``function`` on it."""
    with node.graph.inserting_after(node):
        changed = node.graph.call_function(function, (node,))
    node.replace_all_uses_with(changed, lambda user: user is not changed and only in (None, user))


class _AsWhole:
    """Turns whole tensors of each peer into replicated values."""

    def __init__(self, mesh: Any) -> None:
        self.mesh, self.__name__ = mesh, f"enter_{id(self)}"

    def __call__(self, value: Any, how: Any = None) -> Any:
        from torch.distributed.tensor import DTensor, Replicate

        return tree_map(lambda leaf: DTensor.from_local(leaf, self.mesh, how or [Replicate()], run_check=False)
                        if isinstance(leaf, Tensor) and not is_divided(leaf) else leaf, value)


def _leave(value: Any) -> Any:
    """The value as a whole tensor on each peer."""
    return tree_map(whole_of, value)


class _Operator:
    """The operator ``target``, called ``name``, on values of peers; ``whole``: torch must not divide it."""

    def __init__(self, target: Callable[..., Any], name: str, place: str, mesh: Any, whole: bool = False) -> None:
        self.target, self.name, self.place, self.whole = target, name, place, whole or name == ATTENTION
        self.enter, self.__name__ = _AsWhole(mesh), f"together_{id(self)}"

    def __call__(self, *args: Any, **settings: Any) -> Any:
        if not self.whole:
            try:
                return self.target(*args, **settings)
            except NotImplementedError:  # torch has no rule for it
                self.whole = True
            except RuntimeError as error:
                if UNEVEN not in str(error):
                    raise
                said = str(error).splitlines()[0].rstrip(".")
                raise CaptureError(f"the operator {self.name}{self.place} cannot be computed on shares ({said}): have "
                                   "tensor_parallel divide what is a whole number of heads, or groups, for each of the "
                                   "mesh's ranks, and leave the other modules out") from None
        how = self._heads(args, settings)
        if how is not None:
            args = (*(x.to_local() for x in args[:3]), *args[3:])
        args, settings = _leave((args, settings))
        return self.enter(self.target(*args, **settings), how)

    def _heads(self, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """The placement of queries, keys and values, where that is by heads, each of which is computed by itself."""
        if self.name != ATTENTION or not all(map(is_divided, args[:3])) or args[0].dim() != 4:
            return None
        how, *others = [tuple(x.placements) for x in args[:3]]
        masks = [leaf for leaf in tree_leaves((args[3:], settings)) if isinstance(leaf, Tensor)]
        by_head = all(other == how for other in others) and how[0].is_shard(1)
        return how if by_head and all(mask.dim() < 3 or mask.shape[-3] == 1 for mask in masks) else None
