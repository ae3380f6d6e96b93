"""``torch.compile`` of a part: operators fused into kernels, in C++ on a CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch import Tensor

from weft.runtime.backends.graph import Graph, Part
from weft.runtime.backends.patterns import fused, regions
from weft.runtime.backends.registry import backend


def _patterns(graph: Graph) -> Iterator[Collection[int]]:
    yield from regions()(graph)
    yield from fused(graph)


def _missing() -> str | None:
    if torch.cuda.is_available() or shutil.which("g++") or shutil.which("clang++"):
        return None
    return "needs a C++ compiler, and there is no g++ or clang++"


@backend("inductor", patterns=_patterns, trains=True, missing=_missing)
def build(part: Part) -> Callable[..., Sequence[Tensor]]:
    """One compiled graph, for these shapes alone."""
    import torch._inductor.config as config

    config.compile_threads = 1  # no workers beside a process that may be ended at any moment
    torch._dynamo.reset()
    compiled: Callable[..., Sequence[Tensor]] = torch.compile(part.module, fullgraph=True, dynamic=False)
    return compiled
