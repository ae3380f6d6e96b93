"""Random graphs of stages: their passes are found, and trained in any order they give one process's gradients."""

from __future__ import annotations

import random
from typing import cast

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.support import any_order, for_all
from tests.support.threads import run_in_threads
from tests.support.training_graphs import MODES, Case, graph_problem, varied
from weft.runtime import Boundary, Ports, Session, StageGraph, Training, plan_of
from weft.runtime.train.worker import StageWorker

WIDTH = 3


@st.composite
def stage_graphs(draw: st.DrawFn, shared: bool) -> Case:
    """Up to seven stages on up to three devices, each waiting for some before it; ``shared``: some on several."""
    count, devices = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    places = st.lists(st.integers(0, devices - 1), min_size=1, max_size=devices if shared else 1, unique=True)
    stages = {}
    for s in range(count):
        waits = draw(st.lists(st.integers(0, s - 1), max_size=3, unique=True)) if s else []
        stages[f"f{s}"] = (draw(places), [f"f{w}" for w in waits])
    made = Case("random", graph_problem("random", {**stages, "last": ([devices - 1], [])}), {})
    return varied(made, draw(st.sampled_from(MODES)))


@given(stage_graphs(shared=True))
def test_the_passes_of_every_stage_are_found(made: Case) -> None:
    graph, blocks = StageGraph.of(made.problem), made.problem.blocks
    before = graph._ancestors
    assert sorted(block for stage in graph.stages for block in stage.blocks.values()) == list(range(len(blocks)))
    for stage in graph.stages:
        forward, gradient = stage.blocks["F"], stage.blocks[stage.backward or ""]
        assert before[gradient] >> forward & 1
        assert {tuple(sorted(blocks[b].devices)) for b in stage.blocks.values()} == {stage.ranks}
        for other in graph.stages:
            if any(item.block == blocks[forward].name for item in blocks[other.blocks["F"]].after):
                assert before[gradient] >> other.blocks[other.backward or ""] & 1
        if "W" in stage.blocks:
            assert blocks[stage.blocks["I"]].name in [item.block for item in blocks[stage.blocks["W"]].after]


class Cell(nn.Module):
    """Adds up what it takes; gives a value for each reader, or the loss where there is none."""

    def __init__(self, takes: int, gives: int) -> None:
        super().__init__()
        self.into, self.out, self.gives = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), gives

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        y = torch.tanh(self.into(torch.stack(xs).sum(0)))
        if not self.gives:
            return ((self.out(y) ** 2).mean(),)
        return tuple(self.out(y) * (i + 1) for i in range(self.gives))


@for_all(stage_graphs(shared=False), st.integers(1, 3), st.booleans(), st.integers(0, 2**32), tries=25)
def test_trained_in_any_order_gradients_are_those_of_one_process(
        made: Case, micro_batches: int, apart: bool, seed: int) -> None:
    """``apart``: every reader gets a value of its own; else all get the same."""
    problem, graph = made.problem, made.graph
    names = [problem.blocks[stage.blocks["F"]] for stage in graph.stages]
    number = {block.name: s for s, block in enumerate(names)}
    takes: list[list[str]] = [[f"data {s}"] for s in range(len(names))]
    gives: list[list[str]] = [[] for _ in names]
    for reader, block in enumerate(names):
        for source in sorted(number[item.block] for item in block.after):
            value = f"x{source} {reader}" if apart else f"x{source}"
            gives[source] += [value] if value not in gives[source] else []
            takes[reader].append(value)
    torch.manual_seed(seed % 1000)
    modules = [Cell(len(takes[s]), len(gives[s])).double() for s in range(len(names))]
    ports = {s: Ports(tuple(takes[s]), tuple(gives[s] or [f"loss {s}"])) for s in range(len(names))}
    losses = [f"loss {s}" for s in range(len(names)) if not gives[s]]

    def data(step: int, micro_batch: int) -> dict[str, Tensor]:
        chance = torch.Generator().manual_seed(micro_batch)
        return {f"data {s}": torch.randn(2, WIDTH, dtype=torch.float64, generator=chance) for s in range(len(names))}

    for m in range(micro_batches):
        values = data(0, m)
        for s, module in enumerate(modules):
            values.update(zip(ports[s].gives, module(*(values[value] for value in takes[s])), strict=True))
        torch.autograd.backward(torch.stack([values[loss] for loss in losses]).sum() / micro_batches)
    wanted = [[p.grad for p in module.parameters()] for module in modules]
    for module in modules:
        module.zero_grad(set_to_none=True)

    plan = plan_of(any_order(problem, micro_batches, random.Random(seed)))
    boundary = Boundary((2, WIDTH), torch.float64)

    def worker(rank: int) -> StageWorker:
        session = _Rank()
        session.rank = rank
        mine = {s: modules[s] for s, stage in enumerate(graph.stages) if rank in stage.ranks}
        return StageWorker(plan, cast(Session, session), Training(
            mine, {value: boundary for row in gives for value in row}, data, ports=ports, losses=losses))

    run_in_threads(plan, worker)
    for module, gradients in zip(modules, wanted, strict=True):
        for parameter, gradient in zip(module.parameters(), gradients, strict=True):
            assert gradient is not None and parameter.grad is not None
            assert torch.allclose(parameter.grad, gradient, rtol=0, atol=1e-10)


class _Rank:
    """What a worker asks of its session."""

    rank, replica, replicas, peer, peers, device = 0, 0, 1, 0, 1, torch.device("cpu")
