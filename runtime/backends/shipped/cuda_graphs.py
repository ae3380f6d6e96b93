"""CUDA graphs: a region's kernels are recorded once and launched together, which saves launch overhead."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.runtime.backends.graph import GraphPart
from weft.runtime.backends.patterns import regions
from weft.runtime.backends.registry import backend

#: Warm-up runs before the recording: they select kernels and allocate workspaces.
WARM = 3


def _missing() -> str | None:
    return None if torch.cuda.is_available() else "needs a GPU"


@backend("cuda-graphs", patterns=regions(), devices=("cuda",), missing=_missing)
def build(part: GraphPart) -> Callable[..., Sequence[Tensor]]:
    """The part as a recorded graph with static inputs. Each call copies its arguments into them, and copies the results
    out, as the next call overwrites them."""
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
