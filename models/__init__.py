"""The source of problems. A spec, a captured model or an operator graph in; placements with their costs out.

The rooms, from the ground up: ``files`` (limits, reading), ``hardware`` (devices and their peaks), ``spec`` (the user's
input), ``graph`` (operators), ``times`` (times of operators), ``layers`` (costs of layers and links between GPUs),
``zoo`` (published families), ``capture`` (graphs of PyTorch modules), ``candidates`` (stages on single GPUs, as block
problems), ``tensor_parallel`` (layers on several GPUs together), ``layouts`` (tensors on groups of devices) and
``transform`` (plans written by hand). Of :mod:`weft.solver` they use the problem and the planners. Only ``capture``
loads torch; reading a spec loads neither torch nor ortools.

One table prices communication between GPUs: ``weft.models.layers.collectives.group_time(kind, size, group, network,
device=None)``, of any group in the cluster's order of GPUs, such as ``range(0, 64, 8)``: 8 of them at a stride of 8.
``network`` is ``weft.models.layers.cluster.model_cluster(spec.cluster).network``, whose ``seconds(amount, source,
target)`` is a message's time.

The names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.solver.public_names import lazily

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

__getattr__, __dir__ = lazily(__name__)
