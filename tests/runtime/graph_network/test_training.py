"""Columns on two and three ranks over gloo, against the whole graph at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import finished
from weft.runtime.graph_network.layers import LAYERS

Cell = tuple[str, dict[str, Any]]
#: Of 2 and 3 ranks.
QUICK: dict[int, list[Cell]] = {2: [("gated-gcn", {"chunks": 3})],
                                3: [("gat", {"chunks": 4, "resident": 2, "selective": True})]}


def ran(ranks: int, cells: list[Cell], folder: Path) -> None:
    finished(ranks, "tests.support.graph_ranks", str(folder), json.dumps(cells))
    for rank in range(ranks):
        for cell, found in zip(cells, json.loads((folder / f"{rank}.json").read_text()), strict=True):
            worst = {what: found[what] for what in ("outputs", "loss", "gradients")}
            assert max(worst.values()) <= 1e-12, (rank, cell, worst)
            assert found["parameters"] <= 1e-9 and found["within"], (rank, cell, found)  # Adam divides by small roots
            assert found["columns"] or cell[1]["chunks"] < ranks


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_columns_on_ranks_train_as_the_whole_graph_does(ranks: int, tmp_path: Path) -> None:
    ran(ranks, QUICK[ranks], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_layer_and_number_of_chunks_on_ranks(ranks: int, tmp_path: Path) -> None:
    """Each layer with each number of chunks on two ranks or on three, each of both on either; the same ranks run all
    of them."""
    ran(ranks, [(kind, {"chunks": chunks, "resident": chunks // 3, "fused": chunks % 4 < 2, "selective": chunks > 4})
                for place, kind in enumerate(LAYERS) for chunks in range(1 + (place + ranks) % 2, 9, 2)], tmp_path)
