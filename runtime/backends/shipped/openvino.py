"""OpenVINO, where it is installed (``pip install 'weft[openvino]'``): inference on a CPU, regions of a graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from weft.runtime.backends.graph import Graph, Part
from weft.runtime.backends.patterns import fused, regions
from weft.runtime.backends.registry import backend


def _patterns(graph: Graph) -> Iterator[Collection[int]]:
    yield from regions()(graph)
    yield from fused(graph)


def _missing() -> str | None:
    return None if find_spec("openvino") else "needs OpenVINO, which is not installed (pip install 'weft[openvino]')"


def _version() -> str:
    try:
        return version("openvino")
    except PackageNotFoundError:
        return ""


@backend("openvino", patterns=_patterns, devices=("cpu",), missing=_missing, version=_version)
def build(part: Part) -> Callable[..., Sequence[Tensor]]:
    """One compiled model with one request, in fp32 and on as many threads as torch has. What it gives is copied: the
    next call writes over it."""
    openvino: Any = import_module("openvino")

    with torch.no_grad():
        exported = torch.export.export(part.module.eval(), tuple(part.inputs), strict=False)
        model: Any = openvino.convert_model(exported.run_decompositions())
    compiled = openvino.compile_model(model, "CPU", {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32"})
    request, count = compiled.create_infer_request(), len(part.gives)

    def run(*given: Tensor) -> Sequence[Tensor]:
        found = request.infer([x.detach().contiguous().numpy() for x in given], share_inputs=True, share_outputs=True)
        return tuple(torch.from_numpy(found[i].copy()) for i in range(count))

    return run
