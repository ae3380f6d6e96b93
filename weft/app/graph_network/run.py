"""Running a plan of a pass: its network, on a single rank or on each of several."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import torch
from torch import Tensor

from weft.models.graph_network.graph import Graph
from weft.models.graph_network.steps import Pass
from weft.runtime.graph_network.device_tensors import StepLike
from weft.runtime.graph_network.layers import GraphNetwork
from weft.runtime.graph_network.streaming import ChunkWorker
from weft.runtime.graph_network.training import Streamed
from weft.runtime.plan.plan import plan_of
from weft.runtime.ranks.session import Session
from weft.runtime.replay.single_rank import single_rank
from weft.solver.schedule import Schedule


@contextmanager
def streamed(network: GraphNetwork, parameters: Sequence[Mapping[str, Tensor]], graph: Graph, steps: Pass,
             schedule: Schedule, on: Session | torch.device | str = "cpu", *, budget: int | None = None,
             seconds: Callable[[StepLike], float] = lambda step: 0.0) -> Iterator[Streamed]:
    """``network`` on ``graph``, ready to run passes in the order of ``schedule``, a schedule of the problem of
    ``steps``.

    ``on``: this rank among others, or the device of a single rank. ``seconds``: minimum times of steps, to emulate
    links on CPUs.
    """
    if graph.features is None:
        raise ValueError(f"{graph.name}: has no features; give an .npy file with a row a vertex")
    plan = plan_of(schedule)
    labels = None
    if steps.training:
        if graph.labels is None:
            raise ValueError(f"{graph.name}: has no labels to train on")
        labels = torch.from_numpy(graph.labels.astype("int64"))

    def made(session: Session) -> Streamed:
        with warnings.catch_warnings():  # a mapped file is read-only
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            features = torch.from_numpy(graph.features)
        return Streamed(plan, session, ChunkWorker(network, parameters, steps, features, labels, session.device,
                                                   budget=budget, seconds=seconds))

    if isinstance(on, Session):
        yield made(on)
        return
    with single_rank(plan, 0, torch.device(on)) as alone, closing(made(alone)) as found:
        yield found
