"""CUDA graphs: a region's kernels recorded once and launched together, which saves the launch of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.runtime.backends.graph import GraphPart
from weft.runtime.backends.patterns import regions
from weft.runtime.backends.registry import backend

#: Runs before the recording: they choose kernels and allocate workspaces.
WARM = 3


def _missing() -> str | None:
    return None if torch.cuda.is_available() else "needs a GPU"


@backend("cuda-graphs", patterns=regions(), devices=("cuda",), missing=_missing)
def build(part: GraphPart) -> Callable[..., Sequence[Tensor]]:
    """The part recorded on its own inputs, into which each call copies its arguments; it also copies the results, since
    the next call overwrites them."""
    places = [x.clone() for x in part.inputs]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(WARM):
            part.module.forward(*places)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        results = part.module.forward(*places)

    def run(*given: Tensor) -> Sequence[Tensor]:
        for place, x in zip(places, given, strict=True):
            place.copy_(x)
        graph.replay()
        return tuple(result.clone() for result in results)

    return run
