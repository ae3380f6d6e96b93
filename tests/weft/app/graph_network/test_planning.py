from pathlib import Path

import pytest

from weft.app.graph_network.planning import spec_passes
from weft.app.lib.options import SearchOptions
from weft.app.opening import solve_source
from weft.models.spec.spec import SpecError, parse_spec
from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.judge.validate import violations

TEXT = """
model:
  family: graph-network
  graph: {vertices: 300, edges: 3000, skewed: true}
  features: 16
  layers: [{layer: gated-gcn, width: 16}, {layer: gcn, width: 4}]
cluster: {gpus: 1, memory: 500 kB, reserve: 0 B, device: cpu, host_bandwidth: 1 GB/s}
training: {micro_batches: 1, parameter_bytes: 4}
"""


def test_a_spec_is_planned_with_a_bound() -> None:
    schedule = solve_source(parse_spec(TEXT), None, SearchOptions(time_limit=60, effort=1))
    assert not violations(schedule) and schedule.makespan_bound > 0.5 * schedule.makespan
    told = schedule.solver["graph_network"]
    assert told["least_chunks_proven"] and told["chunks"] >= told["least_chunks"] > 1


def test_columns_go_to_devices() -> None:
    text = TEXT.replace("gpus: 1", "gpus: 2").replace("reserve", "bandwidth: 5 GB/s, reserve")
    planned = spec_passes(parse_spec(text))[0]
    assert set(planned.passes[0].owner) == {0, 1}


@pytest.mark.parametrize(("old", "new", "said"), [
    ("features: 16\n", "\n", "model.features is missing"),
    ("graph: {vertices: 300, edges: 3000, skewed: true}", "graph: no.npz", "there is no file"),
    ("micro_batches: 1", "micro_batches: 2", "give micro_batches: 1"),
    ("layer: gcn", "layer: gin", "it must be gcn, sage-mean, sage-pool, gat or gated-gcn"),
    ("width: 4", "widht: 4", "unknown key 'widht'"),
    ("layer: gcn,", "layer: gcn, heads: 2,", "only gat has heads"),
    (", host_bandwidth: 1 GB/s", "", "give cluster.device"),
    ("features: 16", "chunks: [0]", "each must be from 1 to 64"),
])
def test_what_is_wrong_with_a_spec_is_said(old: str, new: str, said: str) -> None:
    with pytest.raises(SpecError, match=said.replace("(", "\\(")):
        spec_passes(parse_spec(TEXT.replace(old, new), folder=Path()))


def test_a_budget_below_one_chunk_says_the_least() -> None:
    with pytest.raises(Infeasible, match=r"below one chunk of one column: .* at least \d+ bytes are needed"):
        spec_passes(parse_spec(TEXT.replace("500 kB", "20 kB")))
