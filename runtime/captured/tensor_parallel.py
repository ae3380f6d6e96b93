"""Tensor-parallel stages: their parameters are sharded over the ranks of a mesh, which compute each operator together.

All values inside a stage are ``DTensor`` with the captured (global) shapes. Torch infers each result's placement and
the communication for it, so gradients are correct for any placement of parameters, replicated ones included. Inputs and
outputs of the stage are full tensors on each rank. An operator that torch has no sharding rule for is computed in full
on every rank (attention: each rank's heads), as is one that draws random numbers, so that these equal those of a single
process.
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

#: Part of torch's error for a dimension that does not divide evenly among the ranks, such as heads.
UNEVEN = "evenly"
#: Computed by each rank for its heads, or in full: on a CPU torch has no rule, and searches long for one.
ATTENTION = "scaled_dot_product_attention"


def parallelize_stage(module: nn.Module, mesh: Any) -> None:
    """Make ``module``, a stage, compute with the other ranks of ``mesh``; in place."""
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
    """Redirect the users of ``node`` (or ``only`` one) to the result of ``function`` on it."""
    with node.graph.inserting_after(node):
        changed = node.graph.call_function(function, (node,))
    node.replace_all_uses_with(changed, lambda user: user is not changed and only in (None, user))


class _AsWhole:
    """Turns full local tensors into replicated ``DTensor``."""

    def __init__(self, mesh: Any) -> None:
        self.mesh, self.__name__ = mesh, f"enter_{id(self)}"

    def __call__(self, value: Any, how: Any = None) -> Any:
        from torch.distributed.tensor import DTensor, Replicate

        return tree_map(lambda leaf: DTensor.from_local(leaf, self.mesh, how or [Replicate()], run_check=False)
                        if isinstance(leaf, Tensor) and not is_divided(leaf) else leaf, value)


def _leave(value: Any) -> Any:
    """``value`` as full tensors on each rank."""
    return tree_map(whole_of, value)


class _Operator:
    """The operator ``target``, called ``name``, on ``DTensor`` operands; ``whole``: every rank computes it in full."""

    def __init__(self, target: Callable[..., Any], name: str, place: str, mesh: Any, whole: bool = False) -> None:
        self.target, self.name, self.place, self.whole = target, name, place, whole or name == ATTENTION
        self.enter, self.__name__ = _AsWhole(mesh), f"together_{id(self)}"

    def __call__(self, *args: Any, **settings: Any) -> Any:
        if not self.whole:
            try:
                return self.target(*args, **settings)
            except NotImplementedError:  # torch has no sharding rule for it
                self.whole = True
            except RuntimeError as error:
                if UNEVEN not in str(error):
                    raise
                cause = str(error).splitlines()[0].rstrip(".")
                raise CaptureError(f"the operator {self.name}{self.place} cannot be computed on shares ({cause}): have "
                                   "tensor_parallel divide what is a whole number of heads, or groups, for each of the "
                                   "mesh's ranks, and leave the other modules out") from None
        how = self._heads(args, settings)
        if how is not None:
            args = (*(x.to_local() for x in args[:3]), *args[3:])
        args, settings = _leave((args, settings))
        return self.enter(self.target(*args, **settings), how)

    def _heads(self, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """The placement of queries, keys and values if they are sharded by heads, which are independent."""
        if self.name != ATTENTION or not all(map(is_divided, args[:3])) or args[0].dim() != 4:
            return None
        how, *others = [tuple(x.placements) for x in args[:3]]
        masks = [leaf for leaf in tree_leaves((args[3:], settings)) if isinstance(leaf, Tensor)]
        by_head = all(other == how for other in others) and how[0].is_shard(1)
        return how if by_head and all(mask.dim() < 3 or mask.shape[-3] == 1 for mask in masks) else None
