"""Plans on gloo ranks: outputs and gradients are those of one device, on 2 and on 4 processes."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed as dist

from tests.support.programs import attention, convolutions, experts, mlp, numbers, random_plan, transformer
from tests.support.ranks import finished
from weft.app.lib.options import SearchOptions
from weft.app.plans.checking import run_dense
from weft.app.plans.run import PlanOnRank
from weft.app.plans.solving import PlanMachine, solve_plan
from weft.models.transform.plan import TransformPlan


def plans(ranks: int) -> dict[str, TransformPlan]:
    """Published ones, and three random ones of each model."""
    block, trained, gates = transformer(), mlp(update=True), experts()
    heads, hidden = "*.q *.k *.v *.attend *.out", "*.up *.act *.down"
    everything = "up bias act down residual loss"
    found = {
        "tensor parallel": TransformPlan(block).split(heads, "h", ranks).split(hidden, "f", ranks).assign("*",
                                                                                                          range(ranks)),
        "sequence parallel": TransformPlan(block).split(heads, "h", ranks).split(hidden, "f", ranks)
        .split("*.ln? *.add?", "s", ranks).assign("*", range(ranks)),
        "sharded optimizer": TransformPlan(trained).split(everything, "b", ranks).split("update(w1)", "m", ranks)
        .split("update(w2) update(b1)", "f", ranks).assign("*", range(ranks)),
        "co-shard": TransformPlan(block).split(hidden, "f", ranks).co_shard(hidden, "f", 4).assign("*", range(ranks)),
        "pipeline": TransformPlan(block).pipeline(["embed *.ln1 *.q *.k *.v *.attend *.out *.add1",
                                                   "*.ln2 *.up *.act *.down *.add2 head entropy loss"], [0, 1], "b", 4),
        "searched": solve_plan(TransformPlan(trained).pipeline(["up bias act", "down residual loss"], [0, 1], "b", 4,
                                                               schedule="open"),
                               PlanMachine({"*": 1.0}), SearchOptions(600.0, 0.0)).plan,
        "experts": TransformPlan(gates).split("scores gates dispatch combine loss", "g", 2).split("up act down", "e", 2)
        .assign("*", range(2))}
    for model in (mlp, transformer, attention, convolutions, experts):
        draw = random.Random(model.__name__)
        found.update({f"{model.__name__} {i}": random_plan(model(), draw, ranks) for i in range(3)})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_plans_on_gloo_ranks_compute_what_one_device_does(ranks: int, tmp_path: Path) -> None:
    finished(ranks, __name__, str(tmp_path))
    of_ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(ranks)]
    for name, plan in plans(ranks).items():
        program = plan.planned.program
        given = numbers(program)
        dense = run_dense(program, given)
        for output in program.outputs:
            whole = torch.zeros(dense[output].shape, dtype=torch.float64)
            for term in program.terms(output):
                if term not in program.producer:
                    whole += torch.tensor(given[term])
                pieces = {(span, value): tensor for made in of_ranks for key, span, value, tensor in made[name]
                          if key == term}
                for (span, _), tensor in pieces.items():
                    whole[tuple(slice(*ends) for ends in span)] += tensor
            largest = max(1.0, float(np.abs(dense[output]).max()))
            assert float((whole - torch.tensor(dense[output])).abs().max()) < 1e-10 * largest, (name, output)


def on_a_rank(folder: Path) -> None:
    """Run every plan; keep this rank's pieces of all outputs."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    report = {}
    for name, plan in plans(ranks).items():
        done = plan.preserve()
        given = {key: torch.tensor(array) for key, array in numbers(done.planned.program).items()}
        report[name] = [(term, piece.span, piece.value, piece.data.clone())
                        for term, pieces in PlanOnRank(done).run(given).items() for piece in pieces]
    torch.save(report, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    on_a_rank(Path(sys.argv[1]))
