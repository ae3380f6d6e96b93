"""The kernels of scaled dot product attention, one backend each: torch selects by priority, not by measured speed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.runtime.backends.graph import GraphPart
from weft.runtime.backends.registry import Build, backend

#: For each kernel the backend's name, torch's constant, and the kinds of device that support it.
KERNELS = (("sdpa-math", SDPBackend.MATH, ("cpu", "cuda")), ("sdpa-flash", SDPBackend.FLASH_ATTENTION, ("cpu", "cuda")),
           ("sdpa-efficient", SDPBackend.EFFICIENT_ATTENTION, ("cuda",)),
           ("sdpa-cudnn", SDPBackend.CUDNN_ATTENTION, ("cuda",)))
_aten = torch.ops.aten


def _in_context(kernel: SDPBackend) -> Build:
    """The part under torch's context manager that selects ``kernel``."""
    def build(part: GraphPart) -> Callable[..., Sequence[Tensor]]:
        def run(*given: Tensor) -> Sequence[Tensor]:
            with sdpa_kernel(kernel):
                results: Sequence[Tensor] = part.module.forward(*given)
            return results

        return run

    return build


def _called(kernel: SDPBackend) -> Build:
    """On a CPU a direct call of the kernel's operator, as the context manager takes longer than a small attention."""
    def build(part: GraphPart) -> Callable[..., Sequence[Tensor]]:
        if part.inputs and isinstance(part.inputs[0], Tensor) and part.inputs[0].is_cuda:
            return _in_context(kernel)(part)
        for node in part.module.graph.find_nodes(op="call_function",
                                                 target=_aten.scaled_dot_product_attention.default):
            _call_kernel(node, kernel)
        part.module.recompile()
        forward: Callable[..., Sequence[Tensor]] = part.module.forward
        return forward

    return build


def _call_kernel(node: Node, kernel: SDPBackend) -> None:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    mask, graph = given.get("attn_mask"), node.graph
    with graph.inserting_before(node):
        if mask is not None:
            mask = graph.call_function(_additive, (mask, given["query"]))
    named = {"attn_mask": mask, "scale": given.get("scale")}
    target = (_aten._scaled_dot_product_attention_math.default if kernel == SDPBackend.MATH else
              _aten._scaled_dot_product_flash_attention_for_cpu.default)
    plain = (*(given[name] for name in names[:3]),)
    if kernel == SDPBackend.MATH:
        args, kwargs = (*plain, named["attn_mask"], 0.0, given.get("is_causal", False)), {"scale": named["scale"]}
    else:
        args, kwargs = (*plain, 0.0, given.get("is_causal", False)), named
    with graph.inserting_before(node):
        several = graph.call_function(target, args, kwargs)
        first = graph.call_function(operator.getitem, (several, 0))
    node.replace_all_uses_with(first)
    graph.erase_node(node)


def _additive(mask: Tensor, query: Tensor) -> Tensor:
    """``mask`` in additive form, which the kernels' operators require."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _supports(part: GraphPart) -> bool:
    """Whether no attention in ``part`` has grouped heads, which the kernels' operators do not support."""
    return all(not node.kwargs.get("enable_gqa") for node in part.module.graph.nodes)


for _name, _kernel, _devices in KERNELS:
    backend(_name, patterns=[("scaled_dot_product_attention",)], supports=_supports, devices=_devices, trains=True,
            build=_called(_kernel) if "cpu" in _devices else _in_context(_kernel))
