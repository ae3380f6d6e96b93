"""Where do problems come from? A spec, a captured model or an operator graph in; placements with their costs out.

The rooms, from the ground up: ``files`` (limits, reading), ``hardware`` (devices and their peaks), ``spec`` (what a
user writes), ``graph`` (operators), ``times`` (how long operators take), ``layers`` (what layers cost and what joins
GPUs), ``zoo`` (published families), ``capture`` (graphs of PyTorch modules), ``candidates`` (stages on single GPUs, as
block problems), ``tensor_parallel`` (layers on several GPUs together), ``layouts`` (tensors on groups of devices) and
``transform`` (plans written by hand). Of :mod:`weft.solver` they use the problem and the planners. Nothing but
``capture`` loads torch; reading a spec loads neither torch nor ortools.

The names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.solver.public_names import listed, loaded

if TYPE_CHECKING:
    from weft.models.candidates.estimate import Estimate, estimate_spec
    from weft.models.candidates.memory_candidates import spec_candidates
    from weft.models.capture.capture import capture_file, capture_module
    from weft.models.graph.operator_files import load_graph, save_graph
    from weft.models.graph.operators import Operator, OperatorGraph
    from weft.models.hardware.devices import DEVICES
    from weft.models.spec.sections import Spec
    from weft.models.spec.spec import SpecError, demo_spec, load_spec, parse_spec
    from weft.models.zoo.graphs import model_graph
    from weft.models.zoo.published import PUBLISHED

__all__ = [
    "DEVICES", "PUBLISHED", "Estimate", "Operator", "OperatorGraph", "Spec", "SpecError", "capture_file",
    "capture_module", "demo_spec", "estimate_spec", "load_graph", "load_spec", "model_graph", "parse_spec",
    "save_graph", "spec_candidates",
]

#: The module of each public name.
_HOME = {
    "DEVICES": "hardware.devices", "PUBLISHED": "zoo.published", "Estimate": "candidates.estimate",
    "Operator": "graph.operators", "OperatorGraph": "graph.operators", "Spec": "spec.sections",
    "SpecError": "spec.spec", "capture_file": "capture.capture", "capture_module": "capture.capture",
    "demo_spec": "spec.spec", "estimate_spec": "candidates.estimate", "load_graph": "graph.operator_files",
    "load_spec": "spec.spec", "model_graph": "zoo.graphs", "parse_spec": "spec.spec",
    "save_graph": "graph.operator_files", "spec_candidates": "candidates.memory_candidates",
}


def __getattr__(name: str) -> Any:
    return loaded(__name__, _HOME, name)


def __dir__() -> list[str]:
    return listed(__name__)
