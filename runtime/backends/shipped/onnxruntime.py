"""ONNX Runtime (``pip install 'weft[onnxruntime]'``): regions of a graph, inference on a CPU."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from weft.runtime.backends.graph import GraphPart
from weft.runtime.backends.patterns import regions_and_fused
from weft.runtime.backends.registry import backend

#: The required packages: the runtime, and those with which torch writes its models.
PACKAGES = ("onnxruntime", "onnx", "onnxscript")


def _missing() -> str | None:
    missing = [name for name in PACKAGES if not find_spec(name)]
    return f"needs {missing[0]}, which is not installed (pip install 'weft[onnxruntime]')" if missing else None


def _version() -> str:
    return "" if _missing() else version("onnxruntime")


def _prepare() -> None:
    """Cache torch's export rules: every export reads them, which takes longer than the export of most parts."""
    with suppress(ImportError, AttributeError):  # a private interface
        rules: Any = import_module("onnxscript._framework_apis.torch_2_5")
        rules.get_torchlib_ops = cache(rules.get_torchlib_ops)
    _exported(torch.nn.ReLU(), (torch.zeros(2),))


def _exported(module: torch.nn.Module, inputs: tuple[Any, ...]) -> Any:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), redirect_stdout(io.StringIO()):
        return torch.onnx.export(module.eval(), inputs, dynamo=True, optimize=True, verbose=False)


@backend("onnxruntime", patterns=regions_and_fused, devices=("cpu",), missing=_missing, version=_version,
         prepare=_prepare)
def build(part: GraphPart) -> Callable[..., Sequence[Tensor]]:
    """A session with as many threads as torch. It reads contiguous input tensors without a copy."""
    runtime: Any = import_module("onnxruntime")
    written = io.BytesIO()
    _exported(part.module, tuple(part.inputs)).save(written)
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.log_severity_level = 3
    session = runtime.InferenceSession(written.getvalue(), options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    places = {node.name: i for i, node in enumerate(part.takes)}
    taken = [places[name] for name in names]  # the exported model omits unread inputs
    results = [given.name for given in session.get_outputs()]

    def run(*given: Tensor) -> Sequence[Tensor]:
        arrays = {name: given[place].detach().contiguous().numpy() for name, place in zip(names, taken, strict=True)}
        return tuple(map(torch.from_numpy, session.run(results, arrays)))

    return run
