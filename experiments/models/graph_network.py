"""Do graph neural networks train in chunks within a share of their memory, as they do whole, and where does time go?

    python -m experiments.models.graph_network [--parts budgets limited overlap accuracy pyg stages] [--scale 1]

*budgets*: a gated GCN (two layers, 32 wide) on 20,000 vertices and 400,000 edges trains within shares of what the whole
graph at once needs by the planner's count; *limited*: 5 million edges in a process whose data the system limits to a
quarter of that, where the dense evaluation fails. *overlap*: every step is made to take its modelled time at least,
loads in all some times as long as computations in all; serial is one step after another. *accuracy*: GCN on cora and
citeseer (tkipf/gcn's split, first 20 a class to train, last 1,000 to test) streamed and dense in lockstep, fp64. *pyg*:
an epoch streamed, dense and by PyTorch Geometric, CPU seconds of one thread. *stages*: ``weft profile
--graph-network``. Writes ``graph_network.json``; parts, and rows of graphs, that are not asked for keep their figures.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import weft
from experiments.lib.provenance import ROOT, Record, Row
from experiments.lib.script import launched, script
from experiments.step.streams import searched
from tests.support.graph_networks import dense_pass
from weft.app.graph_network.planning import PlannedPasses, grids_of, layer_sizes, passes
from weft.app.graph_network.run import streamed
from weft.app.profile.graph_network import FUSED
from weft.models.graph_network.files import load_graph
from weft.models.graph_network.graph import Graph, drawn_graph
from weft.models.graph_network.layers import Kind
from weft.models.graph_network.steps import Choice, Pass, StreamStep
from weft.runtime.graph_network.layers import GraphNetwork, ready
from weft.runtime.graph_network.training import static_bytes
from weft.solver.baselines import baseline

WIDTH, CLASSES, SHARES = 32, 8, (0.5, 0.25, 0.1, 0.05)
#: Of the least memory, in the overlap part.
ROOM = 2.5
KINDS: tuple[Kind, ...] = ("gcn", "gat", "sage-pool", "gated-gcn")
Parameters = list[dict[str, Tensor]]


def network_of(kind: str, inputs: int, hidden: int, classes: int, dropout: float = 0.0) -> GraphNetwork:
    return GraphNetwork((ready(kind, inputs, hidden), ready(kind, hidden, classes)), inputs, dropout)


def gated(vertices: float, edges: float) -> tuple[GraphNetwork, Graph]:
    """A gated GCN of two layers, and a graph that is drawn for it."""
    return network_of("gated-gcn", WIDTH, WIDTH, CLASSES), drawn_graph(
        round(vertices), round(edges), features=WIDTH, classes=CLASSES)


def plain(step: StreamStep) -> float:
    """A time for planning where nothing is known of the machine: bytes, and what is computed on."""
    return 1e-6 * (1 + step.moved / 4e3 + (step.edges + step.sources + step.targets) / 30)


def pass_of(network: GraphNetwork, parameters: Parameters, graph: Graph, choice: Choice, itemsize: int = 4) -> Pass:
    return Pass(layer_sizes(network, parameters), grids_of(network, graph, choice.chunks), choice, itemsize)


def planned(network: GraphNetwork, parameters: Parameters, graph: Graph, budget: int | None,
            chunks: Sequence[int] | None = None) -> PlannedPasses:
    return passes(partial(pass_of, network, parameters, graph), budget, static_bytes(parameters),
                  vertices=graph.vertices, chunks=chunks)


def running(network: GraphNetwork, parameters: Parameters, graph: Graph, steps: Pass, budget: int
            ) -> AbstractContextManager[Any]:
    """``steps`` in the known order of a stream."""
    problem = steps.problem("pass", budget, static_bytes(parameters), plain)
    return streamed(network, parameters, graph, steps, baseline("stream", problem, 1), budget=budget)


def trained(run: Any, steps: int) -> list[float]:
    """The losses of some steps with Adam."""
    optimizer, losses = run.adam(), []
    for _ in range(steps):
        losses.append(run.run())
        optimizer.step()
    return losses


# -- memory -------------------------------------------------------------------------------------------------------


def budgets(scale: float) -> Iterator[Row]:
    network, graph = gated(20_000 * scale, 400_000 * scale)
    whole = planned(network, network.initial(), graph, None, (1,)).passes[0].least_memory + static_bytes(
        network.initial())
    for share in SHARES:
        budget, parameters = round(share * whole), network.initial()
        found = planned(network, parameters, graph, budget)
        with running(network, parameters, graph, found.passes[0], budget) as run:
            losses, peak = trained(run, 2), run.account.peak
        expected = float(dense_pass(network, network.initial(), graph)[1])
        yield {"share": share, "whole": whole, "budget": budget, "chunks": found.passes[0].choice.chunks,
               "least_proven": found.least_proven, "peak": peak, "of_budget": peak / budget,
               "apart": abs(losses[0] - expected) / expected}


def limited(scale: float) -> Row:
    """Each way in a process of its own."""
    found = {}
    for way in ("streamed", "dense"):
        ended, = launched(within, 1, way, scale, timeout=3600.0)
        found[way] = {"failed": (ended.errors.strip().splitlines() or ["killed"])[-1]} if ended.code else json.loads(
            ended.output.splitlines()[-1])
    return found


def within(way: str, scale: float) -> Row:
    """Two steps of training with 5 million edges where the system gives a quarter of what all at once needs."""
    torch.set_num_threads(1)
    network, graph = gated(100_000 * scale, 5_000_000 * scale)
    parameters = network.initial()
    whole = pass_of(network, parameters, graph, Choice(1)).least_memory + static_bytes(parameters)
    limit = whole // 4
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if way == "dense":
        return {"losses": [float(dense_pass(network, parameters, graph)[1])]}
    began, budget = time.monotonic(), limit // 3
    steps = planned(network, parameters, graph, budget, (8,)).passes[0]
    with running(network, parameters, graph, steps, budget) as run:
        losses, peak = trained(run, 2), run.account.peak
    return {"edges": len(graph.source), "whole": whole, "limit": limit, "budget": budget, "peak": peak,
            "chunks": steps.choice.chunks, "losses": losses, "seconds": round(time.monotonic() - began, 1)}


# -- time ---------------------------------------------------------------------------------------------------------


def emulated(step: Any, computed: float, moved: int, whole: float, loads: float) -> float:
    """What a step takes where all computations take ``whole`` seconds, and all loads ``loads`` times as long."""
    return whole * (plain(step) / computed if step.lane == "compute" else loads * step.moved / moved)


def overlap(asked: Namespace) -> Iterator[Row]:
    network, graph = gated(1200, 12_000)
    for chunks, loads in product(asked.chunks, asked.loads):
        parameters = network.initial()
        static = static_bytes(parameters)
        whole = pass_of(network, parameters, graph, Choice(chunks))  # which loads what it reads as often as it is read
        budget = round(ROOM * whole.least_memory) + static
        computed = sum(plain(step) for step in whole.steps if step.lane == "compute")
        moved = sum(step.moved for step in whole.steps if step.lane == "loads")

        seconds = partial(emulated, computed=computed, moved=moved, whole=4.0 * asked.scale, loads=loads)
        found, steps = min(((searched(each.problem("pass", budget, static, seconds), asked.seconds), each)
                            for each in planned(network, parameters, graph, budget, [chunks]).passes),
                           key=lambda pair: pair[0].makespan)
        with streamed(network, parameters, graph, steps, found, budget=budget, seconds=seconds) as run:
            run.run()
            spans = []
            for _ in range(asked.repeats):
                run.run()
                spans.append(max(one.end for one in run.measured) - min(one.start for one in run.measured))
            peak = run.account.peak
        span, serial = statistics.median(spans), sum(map(seconds, steps.steps))
        lanes = {lane: sum(seconds(step) for step in steps.steps if step.lane == lane)
                 for lane in ("compute", "loads", "stores")}
        yield {"chunks": chunks, "resident": steps.choice.resident, "loads": loads, "room": ROOM, "serial": serial,
               "planned": found.makespan, "bound": found.makespan_bound, "measured": span, "gain": serial / span,
               "over_largest": span / max(lanes.values()), "lanes": lanes,
               "planned_over_measured": found.makespan / span, "within": peak <= budget}


# -- accuracy -----------------------------------------------------------------------------------------------------


def planetoid(folder: Path, name: str, dtype: Any = np.float64) -> tuple[Graph, Tensor, Tensor]:
    """A graph with features over their row's sum, labels of the vertices to train on; all labels; which are tested."""
    graph = load_graph(folder / f"{name}.npz")
    assert graph.features is not None and graph.labels is not None
    features, labels = graph.features.astype(dtype), torch.from_numpy(graph.labels.astype(np.int64))
    train = torch.full_like(labels, -1)
    train[:20 * (int(labels.max()) + 1)] = labels[:20 * (int(labels.max()) + 1)]
    return (replace(graph, features=features / np.maximum(features.sum(1, keepdims=True), 1), labels=train.numpy()),
            labels, (labels >= 0).nonzero()[:, 0][-1000:])


def gcn_run(graph: Graph, chunks: int, dropout: float = 0.5) -> tuple[GraphNetwork, AbstractContextManager[Any], int]:
    """A GCN as in Kipf and Welling's paper on ``graph``, to be streamed."""
    assert graph.features is not None and graph.labels is not None
    network = network_of("gcn", graph.features.shape[1], 16, int(graph.labels.max()) + 1, dropout)
    parameters = network.initial(0, torch.from_numpy(graph.features).dtype)
    steps = pass_of(network, parameters, graph, Choice(chunks, fused=True), graph.features.itemsize)
    budget = round(steps.least_memory * 1.1) + static_bytes(parameters)
    return network, running(network, parameters, graph, steps, budget), budget


def accuracy(asked: Namespace, names: Sequence[str]) -> Iterator[Row]:
    for name in names:
        graph, labels, tested = planetoid(asked.data, name)
        network, made, budget = gcn_run(graph, 3, asked.dropout)
        whole = network.initial(0, torch.float64)
        other = torch.optim.Adam([{"params": list(own.values()), "weight_decay": decay}
                                  for own, decay in zip(whole, (5e-4, 0.0), strict=True)], lr=0.01)
        apart = 0.0
        with made as run:
            optimizer = run.adam(0.01, (5e-4,))
            for epoch in range(asked.epochs):
                loss, expected = run.run(), float(dense_pass(network, whole, graph, run.seeds(epoch))[1])
                apart = max(apart, abs(loss - expected) / expected)
                optimizer.step()
                other.step()
            run.run(training=False)
            right = (run.outputs.argmax(1) == labels)[tested].double().mean()
            peak = run.account.peak
        yield {"graph": name, "epochs": asked.epochs, "dropout": asked.dropout, "accuracy": float(right),
               "loss": loss, "largest_apart": apart, "chunks": 3, "within": peak <= budget}


def pyg(folder: Path, names: Sequence[str]) -> Iterator[Row]:
    """CPU seconds of an epoch, fp32, one thread: median of some."""
    if names:
        from torch_geometric.nn import GCNConv  # type: ignore[import-not-found, import-untyped, unused-ignore]

    torch.set_num_threads(1)
    for name in names:
        graph, labels, _ = planetoid(folder, name, np.float32)
        x, train = torch.from_numpy(graph.features), torch.from_numpy(graph.labels)
        edges = torch.stack([torch.from_numpy(graph.source), torch.from_numpy(graph.target)]).long()
        layers = torch.nn.ModuleList([GCNConv(x.shape[1], 16, cached=True),
                                      GCNConv(16, int(labels.max()) + 1, cached=True)])

        def step(x: Tensor = x, edges: Tensor = edges, layers: Any = layers, train: Tensor = train) -> None:
            hidden = layers[0](functional.dropout(x, 0.5), edges).relu()
            y = layers[1](functional.dropout(hidden, 0.5), edges)
            functional.cross_entropy(y, train, ignore_index=-1).backward()  # type: ignore[no-untyped-call]

        row: Row = {"graph": name, "pyg": lap(step, torch.optim.Adam(layers.parameters(), lr=0.01))}
        for chunks in (1, 3):
            with gcn_run(graph, chunks)[1] as run:
                row[f"chunks_{chunks}"] = lap(run.run, run.adam())
        yield {**row, "ratio": row["chunks_3"] / row["pyg"]}


def lap(run: Callable[[], object], optimizer: Any, repeats: int = 7) -> float:
    laps = []
    for _ in range(repeats + 1):
        began = time.process_time()
        run()
        optimizer.step()
        if isinstance(optimizer, torch.optim.Optimizer):
            optimizer.zero_grad()
        laps.append(time.process_time() - began)
    return statistics.median(laps[1:])


# -- stages -------------------------------------------------------------------------------------------------------


def stages(folder: Path, scale: float) -> Iterator[Row]:
    graphs = []
    for name in ("cora", "citeseer", "pubmed"):
        if (folder / f"{name}.npz").is_file():
            graph = load_graph(folder / f"{name}.npz")
            if graph.features is None:  # pubmed's are 500 wide, of 3 classes
                draw = np.random.default_rng(0)
                graph = replace(graph, features=draw.random((graph.vertices, 500), dtype=np.float32),
                                labels=draw.integers(0, 3, graph.vertices))
            graphs.append(replace(graph, name=name))
    for name, vertices, edges in (("power-law", 20_000, 200_000), ("dense random", 2_000, 1_000_000)):
        graphs.append(replace(drawn_graph(round(vertices * scale), round(edges * scale), skewed=name == "power-law",
                                          features=64, classes=CLASSES), name=name))
    for graph, kind in product(graphs, KINDS):
        found = weft.profile_graph_network(kind, graph, repeats=3, device="cpu")
        each, fused = found.seconds(fused=False), found.seconds(fused=True)
        yield {"graph": graph.name, "kind": kind, "seconds": each, "most": max(each, key=lambda stage: each[stage]),
               "fused": sum(each.values()) / sum(fused.values()) if fused[FUSED] else None,
               "edges_alone": sum(each[stage] for stage in ("scatter", "apply_edge", "gather")) / fused[FUSED]
               if fused[FUSED] else None}


PARTS = ["budgets", "limited", "overlap", "accuracy", "pyg", "stages"]


@script("graph_network.json", parts=PARTS, scale=1.0, graphs=("cora", "citeseer"), epochs=200, chunks=(4, 6),
        loads=(1.0, 0.7), repeats=3, seconds=20.0, dropout=0.5, data=ROOT.parent / "shared" / "data" / "planetoid")
def main(options: Namespace, record: Record) -> None:
    data, scale = options.data, options.scale
    there = [name for name in options.graphs if (data / f"{name}.npz").is_file()]
    made: Mapping[str, Callable[[], Any]] = {
        "budgets": lambda: [*budgets(scale)], "limited": lambda: limited(scale),
        "overlap": lambda: [*overlap(options)], "accuracy": lambda: [*accuracy(options, there)],
        "pyg": lambda: [*pyg(data, there)], "stages": lambda: [*stages(data, scale)]}
    before = json.loads(options.output.read_text()) if options.output.exists() else {}
    found = {name: before[name] for name in PARTS if name in before}
    for part in options.parts:
        rows = made[part]()
        if part in ("accuracy", "pyg"):  # rows of other graphs stay
            known = {row["graph"]: row for row in (*found.get(part, ()), *rows)}
            rows = [known[name] for name in sorted(known)]
        found[part] = rows
        print(part, json.dumps(rows), flush=True)
        record.write(found)
