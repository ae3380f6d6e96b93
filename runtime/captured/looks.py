"""Parameters of which a model only reads the type, the device or the shape: nothing is learned by that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from weft.runtime.captured.untouched import untouched

__all__ = ["Watch", "looked_at", "without_looks"]

#: Operators that read no numbers of their first argument, and those of the second.
FIRST = {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
         "new_empty_strided", "new_zeros", "new_ones", "new_full"}
SECOND = {("type_as", ""), ("to", "other"), ("expand_as", ""), ("view_as", ""), ("reshape_as", "")}


def without_looks(graph_module: GraphModule) -> None:
    """Let such operators read a tensor that looks like the parameter and has no numbers, in place."""
    graph, known = graph_module.graph, dict[Node, Node]()
    for node in list(graph.nodes):
        for read in _looked(node):
            if read.op != "get_attr" or not isinstance(value := _attribute(graph_module, read), nn.Parameter):
                continue
            if read not in known:
                graph_module.register_buffer(f"looks_of_{read.name}", torch.empty(
                    (), dtype=value.dtype, device=value.device).expand(value.shape), persistent=False)
                with graph.inserting_after(read):
                    known[read] = graph.get_attr(f"looks_of_{read.name}")
                known[read].meta.update(read.meta)
            node.replace_input_with(read, known[read])
    for read in known:
        if not read.users:
            graph.erase_node(read)
    graph_module.recompile()


def looked_at(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[str]:
    """The parameters of ``model`` that its forward looks at in any way, by name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: set[str] = set()
    with untouched(model), torch.no_grad(), Watch(lambda func, given: found.update(
            names[id(leaf)] for leaf in tree_leaves(given) if id(leaf) in names)):
        model(*args, **kwargs)
    return found


class Watch(TorchFunctionMode):
    """Inside, ``see`` is told each of torch's functions that is called, and with what."""

    def __init__(self, see: Callable[[Callable[..., Any], Any], object]) -> None:
        super().__init__()
        self.see = see

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        self.see(func, (args, kwargs))
        return func(*args, **kwargs or {})


def _looked(node: Node) -> Iterator[Node]:
    schema = getattr(node.target, "_schema", None)
    name = "" if schema is None else schema.name.rpartition("::")[2]
    second = schema is not None and (name, schema.overload_name) in SECOND
    place = 0 if name in FIRST else 1 if second else len(node.args)
    if place < len(node.args) and isinstance(read := node.args[place], Node) and node.args.count(read) == 1:
        yield read


def _attribute(root: Any, node: Node) -> Tensor:
    for step in str(node.target).split("."):
        root = getattr(root, step)
    return root  # type: ignore[no-any-return]
