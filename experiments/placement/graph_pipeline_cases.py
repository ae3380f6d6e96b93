"""The models of the GraphPipe evaluation as placement problems, for :mod:`experiments.placement.graph_pipelines`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from weft.models.candidates.placing import Hardware, Replicas, TrainingState, placement_problem
from weft.models.graph.operators import OperatorGraph
from weft.models.hardware.devices import DEVICES
from weft.models.layers.collectives import collective_time, point_to_point
from weft.models.spec.base import Section
from weft.models.spec.families import DlrmModel, MmtModel, UnoModel
from weft.models.times.operator_times import OperatorTime
from weft.models.times.roofline import Roofline
from weft.models.zoo.graphs import model_graph
from weft.solver.cpsat.budget import Budget
from weft.solver.placement.dag.levels.ideals import Ideals
from weft.solver.placement.division import Division
from weft.solver.placement.groups import Groups, groups_of

DEVICE = DEVICES["v100-16gb"]
RESERVE = 1024**3
MACHINE = 4
#: Bytes of a parameter's gradient, in fp32.
GRADIENT = 4
#: Cuts of each model's ideals, as a graph and in a row.
IDEALS: dict[tuple[str, str], Ideals] = {}

#: Sizes of appendix A.2; what it leaves open (what follows the concatenation of CANDLE-Uno, the optimizer) is ours.
#: Then: activations' type, bytes of gradient and Adam state a parameter, samples of the mini-batch for each device.
MODELS: dict[str, tuple[Section, str, int, int]] = {
    "mmt": (MmtModel(family="mmt", branches=4, layers=8, hidden=1024, heads=16, feed_forward=4096, sequence=256),
            "float32", 12, 16),
    "dlrm": (DlrmModel(family="dlrm", tables=(1_000_000,) * 7, dimension=64, bag=100, dense=4096, dense_branches=7,
                       bottom=(4096,) * 4, top=(4096,), interaction="concat"), "float32", 12, 128),
    "uno": (UnoModel(family="uno", features=(4096,) * 7, tower=(4096,) * 4, joint=(1,)), "float32", 12, 128),
}


def parts_of(graph: OperatorGraph) -> dict[str, list[str]]:
    """Transformer layers, and dense layers with their activation; the concatenation goes with what reads it, the
    embedding tables (0.2 % of the work) are one part."""
    found: dict[str, list[str]] = {}
    for operator in graph.operators:
        name = operator.layer
        if operator.kind == "embedding_bag":
            name = "tables"
        elif operator.kind in ("linear", "relu") and not operator.layer.startswith("branch"):
            name = f"{operator.layer}.{operator.name.rsplit('.', 1)[1].replace('relu', 'dense')}"
        elif operator.kind == "concat" and operator.layer != "join":
            name = {"joint": "joint.dense0", "interaction": "top.dense0"}[operator.layer]
        found.setdefault(name, []).append(operator.name)
    return found


@dataclass(frozen=True)
class Found:
    """Stages, those of least load first; a bound on the largest load; and how much was looked at."""

    stages: tuple[Division, ...]
    bound: float
    ideals: int = 0
    cuts: int = 0
    proven: bool = True


class Case:
    """One model on so many devices: its placement problem by micro-batch size."""

    def __init__(self, model: str, devices: int, batch: int, *, replicate: bool) -> None:
        self.model, self.devices, self.batch, self.replicate = model, devices, batch, replicate
        self._costs: dict[int, tuple[OperatorGraph, Mapping[str, OperatorTime]]] = {}
        self._made: dict[int, Groups] = {}
        #: By formulation and size, what its solver found and in how many CPU seconds.
        self.found: dict[tuple[str, int], tuple[Found, float]] = {}
        self.chosen: dict[str, tuple[int, Division]] = {}

    def ideals(self, name: str) -> Ideals:
        """The ideals and cuts, which are the same for all sizes and devices."""
        if (self.model, name) not in IDEALS:
            IDEALS[self.model, name] = Ideals(self.groups(self.batch), Budget(), limit=math.inf, devices=self.devices,
                                        in_a_row=name == "piper", twins=True)
        return IDEALS[self.model, name]

    def sizes(self) -> list[int]:
        return [2**i for i in range(int(math.log2(self.batch)) + 1) if self.batch % 2**i == 0]

    def groups(self, size: int) -> Groups:
        """What is placed, in micro-batches of so many samples."""
        if size not in self._made:
            graph, times = self._cost(size)
            problem = placement_problem(
                graph, [Hardware("gpu", self.devices, DEVICE.memory - RESERVE, times)],
                lambda n: point_to_point(n, DEVICE).seconds, parts=parts_of(graph), micro_batches=self.batch // size,
                training=TrainingState(MODELS[self.model][2], GRADIENT),
                replicas=[self._replicas(graph, size, 2**k) for k in range(1, self.devices.bit_length())
                          if size % 2**k == 0] if self.replicate else ())
            self._made[size] = groups_of(problem)
        return self._made[size]

    def _cost(self, size: int) -> tuple[OperatorGraph, Mapping[str, OperatorTime]]:
        if size not in self._costs:
            section, dtype, _, _ = MODELS[self.model]
            graph = model_graph(section, size, dtype=dtype)
            self._costs[size] = graph, Roofline(DEVICE).times(graph)
        return self._costs[size]

    def _replicas(self, graph: OperatorGraph, size: int, devices: int) -> Replicas:
        gradients = graph.parameter_count() * GRADIENT
        added_up = collective_time("all_reduce", gradients, devices, DEVICE, machines=max(1, devices // MACHINE))
        return Replicas(devices, [self._cost(size // devices)[1]], added_up.seconds / gradients)
