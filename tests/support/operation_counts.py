"""FLOPs and bytes of whatever torch computes, operation by operation, by the rules that the layers' closed forms state;
written from torch's operations alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

VIEWS = {"view", "_unsafe_view", "slice", "select", "expand", "t", "unsqueeze", "squeeze", "detach", "alias",
         "as_strided", "transpose", "_reshape_alias", "lift_fresh"}
COPIES = {"clone", "cat", "fill_", "masked_fill_", "nan_to_num_", "copy_", "ones", "_to_copy", "zeros", "empty", "sort"}
CHANGED = ("add_", "mul_", "div_", "sub_", "exp_", "masked_fill_", "nan_to_num_")


def size(tensor: Tensor) -> int:
    """Bytes of its elements, of a sparse one also of its indices."""
    if tensor.layout is torch.sparse_csr:
        return sum(map(size, (tensor.crow_indices(), tensor.col_indices(), tensor.values())))
    return tensor.numel() * tensor.element_size()


class OperationCounts(TorchDispatchMode):
    """Inside, ``flops``, ``bytes``, and ``products``, the FLOPs of dense matrix products alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.bytes = self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        given, made = ([leaf for leaf in tree_leaves(part) if isinstance(leaf, Tensor)] for part in (args, result))
        if name in VIEWS or "sparse" in name or name.endswith(("_indices", "values")):
            return result
        if name in ("index_select", "index_add_", "index_reduce_"):
            of, _, index, *added = args
            wide = of[0].numel() * len(index)
            moved = 2 if name == "index_select" else 3
            assert not added or added[0].numel() == wide
            self.flops += wide if added else 0
            self.bytes += moved * wide * of.element_size() + size(index)
            return result
        if name == "mm":
            left, right = args
            if left.layout is torch.sparse_csr:
                self.flops += 2 * left.values().numel() * right.shape[1]
            else:
                self.products += 2 * left.shape[0] * left.shape[1] * right.shape[1]
                self.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        elif name == "sum":
            self.flops += given[0].numel()
        elif name not in COPIES:
            self.flops += made[0].numel()
        self.bytes += sum(map(size, given)) + sum(map(size, made))
        return result
