"""Parameters whose metadata alone is read: their dtype, device or shape. Such a read has no gradient.

Also trial runs of a model that restore its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

#: Operators that read only the metadata of their first argument, and operators that read only that of their second.
FIRST = {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
         "new_empty_strided", "new_zeros", "new_ones", "new_full"}
SECOND = {("type_as", ""), ("to", "other"), ("expand_as", ""), ("view_as", ""), ("reshape_as", "")}


def drop_metadata_reads(graph_module: GraphModule) -> None:
    """Make such operators read a tensor without data that has the parameter's metadata; in place."""
    graph, known = graph_module.graph, dict[Node, Node]()
    for node in list(graph.nodes):
        for read in _metadata_argument(node):
            if read.op != "get_attr" or not isinstance(value := attribute_of(graph_module, read.target), nn.Parameter):
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


def used_parameters(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[str]:
    """The names of the parameters of ``model`` that are an argument of any torch function in its forward."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    used: set[str] = set()
    with preserved_state(model), torch.no_grad(), FunctionWatch(lambda func, given: used.update(
            names[id(leaf)] for leaf in tree_leaves(given) if id(leaf) in names)):
        model(*args, **kwargs)
    return used


class FunctionWatch(TorchFunctionMode):
    """Inside, each torch function that is called is passed to ``see``, with its arguments."""

    def __init__(self, see: Callable[[Callable[..., Any], Any], object]) -> None:
        super().__init__()
        self.see = see

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        self.see(func, (args, kwargs))
        return func(*args, **kwargs or {})


def _metadata_argument(node: Node) -> Iterator[Node]:
    schema = getattr(node.target, "_schema", None)
    name = "" if schema is None else schema.name.rpartition("::")[2]
    second = schema is not None and (name, schema.overload_name) in SECOND
    place = 0 if name in FIRST else 1 if second else len(node.args)
    if place < len(node.args) and isinstance(read := node.args[place], Node) and node.args.count(read) == 1:
        yield read


def attribute_of(root: Any, path: object) -> Any:
    """The attribute of a module at a dotted path."""
    for step in str(path).split("."):
        root = getattr(root, step)
    return root


@contextmanager
def preserved_state(*parts: object) -> Iterator[None]:
    """Restore on exit the buffers and gradients of the modules among ``parts``, and the random state."""
    modules = [part for part in parts if isinstance(part, nn.Module)]
    buffers = {buffer: buffer.clone() for module in modules for buffer in module.buffers()}
    gradients = {parameter: parameter.grad for module in modules for parameter in module.parameters()}
    for parameter in gradients:
        parameter.grad = None
    try:
        with torch.random.fork_rng():
            yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers.items():
                buffer.copy_(value)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
