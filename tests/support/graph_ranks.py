"""What ranks of the tests of graph networks run: ``python -m tests.support.graph_ranks FOLDER CELLS`` under ranks.

``CELLS`` is JSON: kinds of layers with choices of chunks. Each rank runs a cell's passes and steps of Adam and writes
how far outputs, losses, gradients and parameters are from those of the whole graph at once to ``FOLDER/<rank>.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.graph_networks import dense_pass, network_of, odd_graph, planned_pass
from weft.app.graph_network.run import streamed
from weft.models.graph_network.steps import Choice
from weft.runtime.ranks.session import Session, join

STEPS = 2


def apart(mine: Tensor, other: Tensor) -> float:
    """The largest difference, absolute or relative, whichever is less."""
    return float(((mine - other).abs() / other.abs().clamp(min=1)).max()) if mine.numel() else 0.0


def trained(session: Session, kind: str, choice: Choice) -> dict[str, Any]:
    """One cell: the worst differences by what they are of, and whether the budget held."""
    graph, network = odd_graph(), network_of(kind, dropout=0.3)
    parameters, whole = (network.initial(0, torch.float64) for _ in range(2))
    steps, schedule, budget = planned_pass(network, parameters, graph, choice, slack=1.2, known="greedy")  # in no time
    other = torch.optim.Adam([value for own in whole for value in own.values()], lr=0.01)
    worst = dict.fromkeys(("outputs", "loss", "gradients", "parameters"), 0.0)
    with streamed(network, parameters, graph, steps, schedule, session, budget=budget) as run:
        optimizer = run.adam(0.01)
        for number in range(STEPS):
            loss = run.run()
            run.share_outputs()
            y, expected = dense_pass(network, whole, graph, run.seeds(number))
            pairs = [(value, other_own[name]) for own, other_own in zip(parameters, whole, strict=True)
                     for name, value in own.items()]
            worst["outputs"] = max(worst["outputs"], apart(run.outputs, y))
            worst["loss"] = max(worst["loss"], apart(torch.tensor(loss, dtype=torch.float64), expected))
            worst["gradients"] = max(worst["gradients"], *(apart(mine.grad, its.grad) for mine, its in pairs
                                                           if mine.grad is not None and its.grad is not None))
            optimizer.step()
            other.step()
            worst["parameters"] = max(worst["parameters"], *(apart(mine.detach(), its.detach()) for mine, its in pairs))
        return {**worst, "within": run.account.peak <= budget, "columns": steps.owner.count(session.rank)}


def main(folder: Path, cells: list[tuple[str, dict[str, Any]]]) -> None:
    with join(900.0) as session:
        found = [trained(session, kind, Choice(**choice, ranks=session.world)) for kind, choice in cells]
        (folder / f"{session.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
