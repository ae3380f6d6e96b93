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

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import weft
from experiments.lib.provenance import ROOT, begun
from tests.oracles.dense_graph_network import dense
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
from weft.solver.cpsat.budget import Budget
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import Search

WIDTH, CLASSES, SHARES = 32, 8, (0.5, 0.25, 0.1, 0.05)
#: Of the least memory, in the overlap part.
ROOM = 2.5
KINDS: tuple[Kind, ...] = ("gcn", "gat", "sage-pool", "gated-gcn")
Parameters = list[dict[str, Tensor]]


def network_of(kind: str, inputs: int, hidden: int, classes: int, dropout: float = 0.0) -> GraphNetwork:
    return GraphNetwork((ready(kind, inputs, hidden), ready(kind, hidden, classes)), inputs, dropout)


def plain(step: StreamStep) -> float:
    """A time for planning where nothing is known of the machine: bytes, and what is computed on."""
    return 1e-6 * (1 + step.moved / 4e3 + (step.edges + step.sources + step.targets) / 30)


def planned(network: GraphNetwork, parameters: Parameters, graph: Graph, budget: int | None,
            **further: Any) -> PlannedPasses:
    sizes = layer_sizes(network, parameters)
    return passes(lambda choice: Pass(sizes, grids_of(network, graph, choice.chunks), choice), budget,
                  static_bytes(parameters), vertices=graph.vertices, **further)


def edges_of(network: GraphNetwork, graph: Graph) -> list[tuple[Tensor, Tensor]]:
    graphs = [graph.with_loops() if layer.loops else graph for layer in network.layers]
    return [(torch.from_numpy(each.source).long(), torch.from_numpy(each.target).long()) for each in graphs]


def values(parameters: Parameters) -> list[Tensor]:
    return [value for own in parameters for value in own.values()]


def whole_loss(network: GraphNetwork, parameters: Parameters, graph: Graph, labels: Tensor,
               seeds: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """The dense loss, run backward, and the outputs."""
    for value in values(parameters):
        value.grad = None
    assert graph.features is not None
    y = dense(network, parameters, torch.from_numpy(graph.features), edges_of(network, graph), seeds)
    loss = torch.nn.functional.cross_entropy(y, labels, ignore_index=-1)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), y.detach()


# -- memory -------------------------------------------------------------------------------------------------------


def budgets(scale: float) -> list[dict[str, Any]]:
    graph = drawn_graph(round(20_000 * scale), round(400_000 * scale), features=WIDTH, classes=CLASSES)
    network = network_of("gated-gcn", WIDTH, WIDTH, CLASSES)
    labels = torch.from_numpy(graph.labels)
    static = static_bytes(network.initial())
    whole = planned(network, network.initial(), graph, None, chunks=(1,)).passes[0].least_memory + static
    rows = []
    for share in SHARES:
        budget, parameters = round(share * whole), network.initial()
        found = planned(network, parameters, graph, budget)
        steps = found.passes[0]
        schedule = baseline("stream", steps.problem("pass", budget, static, plain), 1)
        with streamed(network, parameters, graph, steps, schedule, budget=budget) as run:
            optimizer, losses = run.adam(), []
            for _ in range(2):
                losses.append(run.run())
                optimizer.step()
            peak = run.account.peak
        other = network.initial()
        mine = torch.optim.Adam(values(other))
        expected = []
        for _ in range(2):
            expected.append(float(whole_loss(network, other, graph, labels)[0]))
            mine.step()
        rows.append({"share": share, "whole": whole, "budget": budget, "chunks": steps.choice.chunks,
                     "least_proven": found.least_proven, "peak": peak, "of_budget": peak / budget,
                     "apart": max(abs(a - b) / b for a, b in zip(losses[:1], expected[:1], strict=True))})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def limited(scale: float) -> dict[str, Any]:
    """Each way in a process of its own."""
    found = {}
    for way in ("streamed", "dense"):
        ended = subprocess.run([sys.executable, "-m", "experiments.models.graph_network", "--within", way, "--scale",
                                str(scale)], capture_output=True, text=True, check=False, cwd=ROOT)
        line = ended.stdout.strip().splitlines()[-1:] if ended.returncode == 0 else []
        found[way] = json.loads(line[0]) if line else {"failed": (ended.stderr.strip().splitlines() or ["killed"])[-1]}
        print(way, json.dumps(found[way]), flush=True)
    return found


def within(way: str, scale: float) -> dict[str, Any]:
    """Two steps of training with 5 million edges where the system gives a quarter of what all at once needs."""
    torch.set_num_threads(1)
    vertices, edges = round(100_000 * scale), round(5_000_000 * scale)
    network = network_of("gated-gcn", WIDTH, WIDTH, CLASSES)
    parameters = network.initial()
    sizes = layer_sizes(network, parameters)
    graph = drawn_graph(vertices, edges, features=WIDTH, classes=CLASSES)
    whole = Pass(sizes, grids_of(network, graph, 1), Choice(1)).least_memory + static_bytes(parameters)
    limit = whole // 4
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    losses, labels, began = [], torch.from_numpy(graph.labels), time.monotonic()
    if way == "dense":
        losses.append(float(whole_loss(network, parameters, graph, labels)[0]))
        return {"losses": losses}
    budget = limit // 3
    steps = planned(network, parameters, graph, budget, chunks=(8,)).passes[0]
    schedule = baseline("stream", steps.problem("pass", budget, static_bytes(parameters), plain), 1)
    with streamed(network, parameters, graph, steps, schedule, budget=budget) as run:
        optimizer = run.adam()
        for _ in range(2):
            losses.append(run.run())
            optimizer.step()
        peak = run.account.peak
    return {"edges": edges, "whole": whole, "limit": limit, "budget": budget, "peak": peak,
            "chunks": steps.choice.chunks, "losses": losses, "seconds": round(time.monotonic() - began, 1)}


# -- time ---------------------------------------------------------------------------------------------------------


def emulated(step: Any, computed: float, moved: int, whole: float, loads: float) -> float:
    """What a step takes where all computations take ``whole`` seconds, and all loads ``loads`` times as long."""
    return whole * (plain(step) / computed if step.lane == "compute" else loads * step.moved / moved)


def searched(problem: Problem, seconds: float) -> Schedule:
    """What a search of so many CPU seconds finds."""
    search = Search(problem, 1, Budget(seconds=seconds, now=time.process_time))
    for _ in search.steps():
        if search.done:
            break
    return search.result()


def overlap(asked: argparse.Namespace) -> list[dict[str, Any]]:
    graph = drawn_graph(1200, 12_000, features=WIDTH, classes=CLASSES)
    network = network_of("gated-gcn", WIDTH, WIDTH, CLASSES)
    rows = []
    for chunks, loads in product(asked.chunks, asked.loads):
        parameters = network.initial()
        static = static_bytes(parameters)
        pass_of = partial(Pass, layer_sizes(network, parameters), grids_of(network, graph, chunks))
        whole = pass_of(Choice(chunks))  # which loads what it reads as often as it is read
        budget = round(ROOM * whole.least_memory) + static
        computed = sum(plain(step) for step in whole.steps if step.lane == "compute")
        moved = sum(step.moved for step in whole.steps if step.lane == "loads")

        seconds = partial(emulated, computed=computed, moved=moved, whole=4.0 * asked.scale, loads=loads)
        found, steps = min((
            (searched(each.problem("pass", budget, static, seconds), asked.seconds), each) for each in passes(
                pass_of, budget, static, vertices=graph.vertices, chunks=[chunks]).passes),
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
        rows.append({"chunks": chunks, "resident": steps.choice.resident, "loads": loads, "room": ROOM,
                     "serial": serial, "planned": found.makespan, "bound": found.makespan_bound, "measured": span,
                     "gain": serial / span, "over_largest": span / max(lanes.values()), "lanes": lanes,
                     "planned_over_measured": found.makespan / span, "within": peak <= budget})
        print(json.dumps(rows[-1]), flush=True)
    return rows


# -- accuracy -----------------------------------------------------------------------------------------------------


def planetoid(folder: Path, name: str, dtype: Any = np.float64) -> tuple[Graph, Tensor, Tensor]:
    """A graph with features over their row's sum; labels of the vertices to train on; which ones are tested."""
    graph = load_graph(folder / f"{name}.npz")
    assert graph.features is not None and graph.labels is not None
    features = graph.features.astype(dtype)
    graph = replace(graph, features=features / np.maximum(features.sum(1, keepdims=True), 1), source=graph.source,
                    labels=graph.labels.astype(np.int64))
    assert graph.labels is not None
    labels = torch.from_numpy(graph.labels)
    train = torch.full_like(labels, -1)
    train[:20 * (int(labels.max()) + 1)] = labels[:20 * (int(labels.max()) + 1)]
    tested = (labels >= 0).nonzero()[:, 0][-1000:]
    return graph, train, tested


def gcn_run(graph: Graph, train: Tensor, chunks: int, dropout: float = 0.5) -> tuple[GraphNetwork, Any, int]:
    """A GCN as in Kipf and Welling's paper on ``graph``, to be streamed."""
    assert graph.features is not None and graph.labels is not None
    network = network_of("gcn", graph.features.shape[1], 16, int(graph.labels.max()) + 1, dropout)
    parameters = network.initial(0, torch.from_numpy(graph.features).dtype)
    static = static_bytes(parameters)
    steps = Pass(layer_sizes(network, parameters), grids_of(network, graph, chunks), Choice(chunks, fused=True),
                 graph.features.itemsize)
    budget = round(steps.least_memory * 1.1) + static
    schedule = baseline("stream", steps.problem("pass", budget, static, plain), 1)
    made = streamed(network, parameters, replace(graph, labels=train.numpy()), steps, schedule, budget=budget)
    return network, made, budget


def accuracy(folder: Path, names: Sequence[str], epochs: int, dropout: float) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        graph, train, tested = planetoid(folder, name)
        labels = torch.from_numpy(graph.labels)
        network, made, budget = gcn_run(graph, train, 3, dropout)
        whole = network.initial(0, torch.float64)
        other = torch.optim.Adam([{"params": list(own.values()), "weight_decay": decay}
                                  for own, decay in zip(whole, (5e-4, 0.0), strict=True)], lr=0.01)
        apart = 0.0
        with made as run:
            optimizer = run.adam(0.01, (5e-4,))
            for epoch in range(epochs):
                loss = run.run()
                expected, _ = whole_loss(network, whole, graph, train, run.seeds(epoch))
                apart = max(apart, abs(loss - float(expected)) / float(expected))
                optimizer.step()
                other.step()
            run.run(training=False)
            right = (run.outputs.argmax(1) == labels)[tested].double().mean()
            peak = run.account.peak
        rows.append({"graph": name, "epochs": epochs, "dropout": dropout, "accuracy": float(right),
                     "loss": loss, "largest_apart": apart, "chunks": 3, "within": peak <= budget})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def pyg(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """CPU seconds of an epoch, fp32, one thread: median of some."""
    if not names:
        return []
    from torch_geometric.nn import GCNConv  # type: ignore[import-not-found, import-untyped, unused-ignore]

    torch.set_num_threads(1)
    rows = []
    for name in names:
        graph, train, _ = planetoid(folder, name, np.float32)
        x = torch.from_numpy(graph.features)
        edge_index = torch.stack([torch.from_numpy(graph.source), torch.from_numpy(graph.target)]).long()
        classes = int(train.max()) + 1
        layers = torch.nn.ModuleList([GCNConv(x.shape[1], 16, cached=True), GCNConv(16, classes, cached=True)])
        theirs = torch.optim.Adam(layers.parameters(), lr=0.01)

        def epoch(x: Tensor = x, edge_index: Tensor = edge_index, layers: Any = layers, train: Tensor = train,
                  theirs: Any = theirs) -> None:
            theirs.zero_grad()
            hidden = layers[0](torch.nn.functional.dropout(x, 0.5), edge_index).relu()
            y = layers[1](torch.nn.functional.dropout(hidden, 0.5), edge_index)
            torch.nn.functional.cross_entropy(y, train, ignore_index=-1).backward()  # type: ignore[no-untyped-call]
            theirs.step()
        row: dict[str, Any] = {"graph": name, "pyg": lap(epoch)}
        for chunks in (1, 3):
            _, made, _ = gcn_run(graph, train, chunks)
            with made as run:
                optimizer = run.adam()

                def step(run: Any = run, optimizer: Any = optimizer) -> None:
                    run.run()
                    optimizer.step()
                row[f"chunks_{chunks}"] = lap(step)
        rows.append({**row, "ratio": row["chunks_3"] / row["pyg"]})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def lap(run: Callable[[], None], repeats: int = 7) -> float:
    laps = []
    for _ in range(repeats + 1):
        began = time.process_time()
        run()
        laps.append(time.process_time() - began)
    return statistics.median(laps[1:])


# -- stages -------------------------------------------------------------------------------------------------------


def stages(folder: Path, scale: float) -> list[dict[str, Any]]:
    graphs = []
    for name in ("cora", "citeseer", "pubmed"):
        if (folder / f"{name}.npz").is_file():
            graph = load_graph(folder / f"{name}.npz")
            if graph.features is None:  # pubmed's are 500 wide, of 3 classes
                draw = np.random.default_rng(0)
                graph = replace(graph, features=draw.random((graph.vertices, 500), dtype=np.float32),
                                labels=draw.integers(0, 3, graph.vertices))
            graphs.append(replace(graph, name=name))
    graphs.append(replace(drawn_graph(round(20_000 * scale), round(200_000 * scale), skewed=True, features=64,
                                      classes=CLASSES), name="power-law"))
    graphs.append(replace(drawn_graph(round(2_000 * scale), round(1_000_000 * scale), features=64, classes=CLASSES),
                          name="dense random"))
    rows = []
    for graph in graphs:
        for kind in KINDS:
            found = weft.profile_graph_network(kind, graph, repeats=3, device="cpu")
            plain_, fused = found.seconds(fused=False), found.seconds(fused=True)
            rows.append({"graph": graph.name, "kind": kind, "seconds": plain_, "most": max(plain_, key=lambda stage:
                         plain_[stage]), "fused": sum(plain_.values()) / sum(fused.values()) if fused[FUSED] else None,
                         "edges_alone": sum(plain_[s] for s in ("scatter", "apply_edge", "gather")) / fused[FUSED]
                         if fused[FUSED] else None,
                         "compute_bound": [f"{one.layer} {one.stage}" for one in found.stages
                                           if one.bound == "compute"], "ridge": found.flops / found.bandwidth})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def with_others(rows: Any, before: Any) -> Any:
    """``rows`` of some graphs, with those ``before`` of others."""
    known = {row["graph"]: row for row in (*before, *rows)}
    return [known[name] for name in sorted(known)]


PARTS = ("budgets", "limited", "overlap", "accuracy", "pyg", "stages")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    options, record = begun(__doc__, arguments, "graph_network.json", parts=list(PARTS), scale=1.0,
                            graphs=("cora", "citeseer"), epochs=200, chunks=(4, 6), loads=(1.0, 0.7), repeats=3,
                            seconds=20.0, dropout=0.5, data=ROOT.parent / "shared" / "data" / "planetoid", within="")
    if options.within:
        print(json.dumps(within(options.within, options.scale)))
        return 0
    data = options.data
    there = [name for name in options.graphs if (data / f"{name}.npz").is_file()]
    made: Mapping[str, Callable[[], Any]] = {
        "budgets": lambda: budgets(options.scale), "limited": lambda: limited(options.scale),
        "overlap": lambda: overlap(options),
        "accuracy": lambda: accuracy(data, there, options.epochs, options.dropout),
        "pyg": lambda: pyg(data, there), "stages": lambda: stages(data, options.scale)}
    found = {name: part for name, part in (json.loads(options.output.read_text()) if options.output.exists() else {}
                                           ).items() if name in PARTS}
    for part in options.parts:
        rows = made[part]()
        found[part] = with_others(rows, found.get(part, ())) if part in ("accuracy", "pyg") else rows
        record.write(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
