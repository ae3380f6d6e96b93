from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import refusal, shows
from tests.support.graph_networks import network_of, odd_graph
from weft.app.graph_network.planning import graph_placements, grids_of, layer_sizes, passes, spec_passes
from weft.app.lib.options import SearchOptions
from weft.app.solving.opening import solve_source
from weft.models.graph_network.graph import drawn_graph
from weft.models.graph_network.steps import Choice, Pass
from weft.models.spec.spec import SpecError, load_spec, parse_spec
from weft.solver import Infeasible, load_schedule, violations

TEXT = """
model:
  family: graph-network
  graph: {vertices: 60, edges: 500, skewed: true}
  features: 16
  layers: [{layer: gated-gcn, width: 16}, {layer: gcn, width: 4}]
cluster: {gpus: 1, memory: 180 kB, reserve: 0 B, device: cpu, host_bandwidth: 1 GB/s}
training: {micro_batches: 1, parameter_bytes: 4}
"""


def test_a_spec_is_planned_with_a_bound() -> None:
    schedule = solve_source(parse_spec(TEXT), None, SearchOptions(time_limit=3000, effort=0.02))
    assert not violations(schedule) and schedule.makespan_bound > 0.5 * schedule.makespan
    told = schedule.solver["graph_network"]
    assert told["least_chunks_proven"] and told["chunks"] >= told["least_chunks"] > 1


def test_columns_go_to_devices() -> None:
    text = TEXT.replace("gpus: 1", "gpus: 2").replace("reserve", "bandwidth: 5 GB/s, reserve")
    planned = spec_passes(parse_spec(text))[0]
    assert set(planned.passes[0].owner) == {0, 1}


@pytest.mark.parametrize(("old", "new", "said"), [
    ("features: 16\n", "\n", "model.features is missing"),
    ("graph: {vertices: 60, edges: 500, skewed: true}", "graph: no.npz", "there is no file"),
    ("micro_batches: 1", "micro_batches: 2", "give micro_batches: 1"),
    ("layer: gcn", "layer: gin", "it must be gcn, sage-mean, sage-pool, gat or gated-gcn"),
    ("width: 4", "widht: 4", "unknown key 'widht'"),
    ("layer: gcn,", "layer: gcn, heads: 2,", "only gat has heads"),
    (", host_bandwidth: 1 GB/s", "", "give cluster.device"),
    ("features: 16", "chunks: [0]", "each must be from 1 to 64"),
    ("vertices: 60", "vertices: 0", "model.graph.vertices is 0, it must be at least 1"),
    ("edges: 500", "edgse: 500", "model.graph: unknown key 'edgse'; did you mean 'edges'"),
])
def test_what_is_wrong_with_a_spec_is_said(old: str, new: str, said: str) -> None:
    with pytest.raises(SpecError, match=said.replace("(", "\\(")):
        spec_passes(parse_spec(TEXT.replace(old, new), folder=Path()))


def test_a_budget_below_one_chunk_says_the_least() -> None:
    with pytest.raises(Infeasible, match=r"below one chunk of one column: .* at least \d+ bytes are needed"):
        spec_passes(parse_spec(TEXT.replace("180 kB", "1 kB").replace("60, edges: 500", "6, edges: 20")))


def test_few_numbers_of_chunks_are_looked_at() -> None:
    """A refusal looks at doubles; the fewest chunks are found between two of them."""
    network = network_of("gated-gcn")
    parameters, graph, asked = network.initial(), odd_graph(), list[int]()

    def pass_of(choice: Choice) -> Pass:
        asked.append(choice.chunks)
        return Pass(sizes, grids_of(network, graph, choice.chunks), choice)
    sizes = layer_sizes(network, parameters)
    least = {count: Pass(sizes, grids_of(network, graph, count), Choice(count)).least_memory for count in range(1, 13)}
    for room in (min(least.values()) - 1, *least.values()):
        asked.clear()
        looked_at = [least[count] for count in (1, 2, 4, 8, 12)]
        if room < min(looked_at):
            with pytest.raises(Infeasible, match=f"at least {min(looked_at)} bytes"):
                passes(pass_of, room, 0, vertices=12)
            assert asked == [1, 2, 4, 8, 12]
            continue
        chosen = passes(pass_of, room, 0, vertices=12).passes[0].choice.chunks
        assert least[chosen] <= room and (chosen == 1 or least[chosen - 1] > room)
        assert len(asked) == len(set(asked)) <= 5 + 2 + 3


@pytest.mark.slow
def test_files_are_solved_in_a_shell(tmp_path: Path) -> None:
    """One graph in three kinds of files, and drawn, is one problem; the schedule can be read again, and is valid."""
    drawn = drawn_graph(60, 500, skewed=True)
    edges = list(zip(drawn.source.tolist(), drawn.target.tolist(), strict=True))
    np.savez(tmp_path / "g.npz", source=drawn.source, target=drawn.target, vertices=60)
    (tmp_path / "g.txt").write_text("".join(f"{source} {target}\n" for source, target in edges))
    (tmp_path / "g.mtx").write_text("%%MatrixMarket matrix coordinate pattern general\n60 60 500\n" + "".join(
        f"{target + 1} {source + 1}\n" for source, target in edges))
    found = []
    for number, graph in enumerate(("g.npz", "g.txt", "g.mtx", "{vertices: 60, edges: 500, skewed: true}")):
        spec = tmp_path / f"{number}.yaml"
        spec.write_text(TEXT.replace("{vertices: 60, edges: 500, skewed: true}", graph).replace(
            "features: 16", "features: 16\n  chunks: [3]"))
        placed = graph_placements(load_spec(spec))
        found.append([(block.name, block.duration, block.memory) for one in placed for block in one.problem.blocks])
    assert found == found[:1] * 4
    told = shows("solve", spec, "-o", f"{tmp_path}/s.json", "--effort", "0.02", "--quiet")
    assert not violations(load_schedule(tmp_path / "s.json")) and "the fewest" in told
    spec.write_text(TEXT.replace("180 kB", "1 kB").replace("features: 16", "features: 16\n  chunks: [8]"))
    assert "with up to 8 x 8 chunks at least" in refusal("solve", spec, status=1)
