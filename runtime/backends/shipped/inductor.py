"""``torch.compile`` of a part: operators fused into kernels, in C++ on a CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.runtime.backends.graph import GraphPart
from weft.runtime.backends.patterns import regions_and_fused
from weft.runtime.backends.registry import backend


def _missing() -> str | None:
    if torch.cuda.is_available() or shutil.which("g++") or shutil.which("clang++"):
        return None
    return "needs a C++ compiler, and there is no g++ or clang++"


def _prepare() -> None:
    with torch.no_grad():
        _compiled(torch.nn.ReLU())(torch.zeros(2))


@backend("inductor", patterns=regions_and_fused, trains=True, missing=_missing, prepare=_prepare)
def build(part: GraphPart) -> Callable[..., Sequence[Tensor]]:
    """The part compiled as one graph, with static shapes."""
    return _compiled(part.module)


def _compiled(module: torch.nn.Module) -> Callable[..., Sequence[Tensor]]:
    import torch._inductor.config as config

    config.compile_threads = 1  # no worker processes, as a trial may be killed at any time
    compiled: Callable[..., Sequence[Tensor]] = torch.compile(module, fullgraph=True, dynamic=False)
    return compiled
