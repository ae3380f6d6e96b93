"""``weft train SPEC.yaml``: graph networks are trained in the order of their schedule, saved, resumed, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.support import finished, refusal
from weft.solver.io.schedule_files import save_schedule

SPEC = """
model:
  family: graph-network
  graph: {{vertices: 60, edges: 300, skewed: true}}
  features: {features}
  dropout: 0.3
  chunks: [3]
  layers: [{{layer: gcn, width: 8}}, {{layer: gat, width: 4, heads: 2}}]
cluster: {{gpus: 2, device: cpu, memory: 60 kB, reserve: 0, host_bandwidth: 1 GB/s}}
training: {{micro_batches: 1, parameter_bytes: 8}}
"""


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("graph")
    spec, schedule = folder / "graph.yaml", folder / "schedule.json"
    spec.write_text(SPEC.format(features=6))
    save_schedule(weft.solve(spec, effort=0.2), schedule)
    return str(spec), str(schedule)


def trained(spec: str, schedule: str, *arguments: str) -> dict[str, Any]:
    """What two ranks say."""
    ended = finished(2, "weft", "train", spec, "--schedule", schedule, "--json", *arguments, timeout=250)
    found: dict[str, Any] = json.loads(ended[0].output)
    return found


@pytest.mark.slow
def test_two_ranks_train_within_the_budget_and_go_on_from_a_checkpoint(solved: tuple[str, str], tmp_path: Path) -> None:
    whole = trained(*solved, "--steps", "5")
    assert whole["losses"][-1] < whole["losses"][0]
    assert len(whole["report"]["peaks"]) == 2 and max(whole["report"]["peaks"]) <= whole["report"]["budget"] == 60_000
    assert 0 < whole["report"]["right"] <= whole["report"]["labelled"] == 60
    folder = str(tmp_path / "saved")
    begun = trained(*solved, "--steps", "2", "--checkpoint", folder)
    rest = trained(*solved, "--steps", "5", "--checkpoint", folder)
    assert begun["losses"] + rest["losses"] == pytest.approx(whole["losses"], rel=1e-12)


@pytest.mark.parametrize(("change", "arguments", "why"), [
    (("width: 8", "width: 16"), (), "schedule.json is a schedule of something else"),
    (("features: 6", "features: 6"), ("--gpus", "3"), "--gpus is 3, but"),
    (("features: 6", "features: 6"), ("--micro-batches", "3"), "--micro-batches is for modules"),
    (("features: 6", "features: 6"), ("--draw", "x.svg"), "--draw is for modules"),
    (("features: 6", "features: rows.npy"), (), "a drawn graph has drawn features"),
    (("graph: {vertices: 60, edges: 300, skewed: true}", "graph: plain.txt"), (), "plain.txt has no labels"),
])
def test_what_cannot_be_trained_is_one_sentence(solved: tuple[str, str], tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch, change: tuple[str, str],
                                                arguments: tuple[str, ...], why: str) -> None:
    import numpy as np

    (tmp_path / "plain.txt").write_text("0 1\n1 0\n")
    np.save(tmp_path / "rows.npy", np.zeros((2, 6)))
    text = SPEC.format(features="rows.npy" if "plain" in change[1] else 6).replace(*change)
    (tmp_path / "graph.yaml").write_text(text)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert why in refusal("train", tmp_path / "graph.yaml", "--schedule", solved[1], *arguments)


def test_a_launcher_needs_a_schedule(solved: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert "give --schedule FILE" in refusal("train", solved[0])


def test_features_may_lie_in_a_mapped_file(tmp_path: Path) -> None:
    import numpy as np

    from weft.app.graph_network.planning import spec_network
    from weft.models.spec.spec import load_spec

    (tmp_path / "edges.txt").write_text("0 1\n1 2\n")
    np.save(tmp_path / "rows.npy", np.arange(18.0).reshape(3, 6))
    (tmp_path / "graph.yaml").write_text(SPEC.format(features="rows.npy").replace(
        "{vertices: 60, edges: 300, skewed: true}", "edges.txt"))
    graph, network, shapes = spec_network(load_spec(tmp_path / "graph.yaml"))
    assert isinstance(graph.features, np.memmap) and network.dropout == 0.3
    assert [shape.inputs for shape in shapes] == [6, 8]
