"""A plan of a pass, run: the network that it is of, on one rank alone or on each of several."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import torch
from torch import Tensor

from weft.models.graph_network.graph import Graph
from weft.models.graph_network.steps import Pass
from weft.runtime.graph_network.held import StepLike
from weft.runtime.graph_network.layers import GraphNetwork
from weft.runtime.graph_network.training import Streamed
from weft.runtime.plan.plan import plan_of
from weft.runtime.ranks.session import Session
from weft.runtime.replay.single_rank import single_rank
from weft.solver.schedule import Schedule


@contextmanager
def streamed(network: GraphNetwork, parameters: Sequence[Mapping[str, Tensor]], graph: Graph, steps: Pass,
             schedule: Schedule, *, budget: int | None = None, labels: Tensor | None = None,
             session: Session | None = None, device: torch.device | str = "cpu",
             seconds: Callable[[StepLike], float] = lambda step: 0.0) -> Iterator[Streamed]:
    """``network`` on ``graph``, ready to run passes in the order of ``schedule``, a schedule of the problem of
    ``steps``.

    ``labels``: in place of the graph's, such as those of the vertices to train on. ``session``: this rank among others;
    without one it is alone. ``seconds``: what steps take at least, to emulate links on CPUs.
    """
    if graph.features is None:
        raise ValueError(f"{graph.name}: has no features; give an .npy file with a row a vertex")
    plan = plan_of(schedule)
    if labels is None and steps.training and graph.labels is not None:
        labels = torch.from_numpy(graph.labels.astype("int64"))
    if labels is None and steps.training:
        raise ValueError(f"{graph.name}: has no labels to train on")

    def made(session: Session) -> Streamed:
        with warnings.catch_warnings():  # a mapped file is read only, and never written
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            features = torch.from_numpy(graph.features)
        return Streamed(network, parameters, plan, session, {step.name: step for step in steps.steps}, steps.grids,
                        features, labels if steps.training else None, steps.owner, selected=steps.selected,
                        fused=steps.choice.fused, budget=budget, seconds=seconds)

    if session is not None:
        yield made(session)
        return
    with single_rank(plan, 0, torch.device(device)) as alone, closing(made(alone)) as found:
        yield found
