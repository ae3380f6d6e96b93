"""PyTorch's own schedules are read, and its own runtime takes ours and trains with them as one process does.

Run as a program (``python -m tests.end_to_end.test_torch_runtime FOLDER``), this file is one rank of what its last test
launches.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.support import finished, for_all, in_order, pipelines
from tests.support.builders import chain, loop, pipeline, v, waves
from weft.runtime.export.torch_csv import TorchVersion, save_torch_csv, torch_csv
from weft.runtime.export.torch_import import parse_table, read_table, schedule_of_table
from weft.solver import Problem, Schedule, baseline, solve, violations
from weft.solver.pipeline import Pipeline

WIDTH, BATCH = 5, 2


def test_pytorchs_own_schedules_come_in() -> None:
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    found = {}
    for name, chunks in (("GPipe", 1), ("Interleaved1F1B", 2), ("InterleavedZeroBubble", 2), ("ZBVZeroBubble", 2),
                         ("DualPipeV", 2)):
        rows = visualizer.get_schedule_ops(name, 2, 4, num_stages_per_rank=chunks)
        text = "".join(",".join("" if action is None else str(action) for action in row) + "\n" for row in rows)
        schedule = schedule_of_table(parse_table(text, name))
        assert violations(schedule) == []
        found[name] = Pipeline.of(schedule.problem).shape
    # Its backwards run last in, first out: no fault that keeps anyone from running it.
    rows = visualizer.get_schedule_ops("LoopedBFS", 2, 4, num_stages_per_rank=2)
    text = "".join(",".join(str(action) for action in row if action is not None) + "\n" for row in rows)
    looped = schedule_of_table(parse_table(text))
    assert violations(looped) != [] == violations(looped, in_turn=False)
    assert torch_csv(looped) == text
    assert found == {"GPipe": "chain", "Interleaved1F1B": "loop", "InterleavedZeroBubble": "loop",
                     "ZBVZeroBubble": "v", "DualPipeV": "v"}


@for_all(problem=pipelines(), micro_batches=st.integers(1, 4), data=st.data(), tries=40)
def test_pytorchs_own_checks_pass(problem: Problem, micro_batches: int, data: st.DataObject) -> None:
    """Its validation of a schedule, and its dry run of one with messages (which does not know reductions)."""
    schedules: Any = pytest.importorskip("torch.distributed.pipelining.schedules")
    if TorchVersion.of(pytest.importorskip("torch").__version__) < (2, 13):
        pytest.skip("the private functions asked here are known from 2.13 on")
    schedule = data.draw(in_order(problem, micro_batches))
    stages = [stage.device for stage in Pipeline.of(problem).stages]

    def read(text: str) -> dict[int, list[Any]]:
        return {rank: [schedules._Action.from_str(cell) for cell in line.split(",")]
                for rank, line in enumerate(text.splitlines())}

    found = schedules._validate_schedule(read(torch_csv(schedule)), len(problem.devices), len(stages), micro_batches)
    assert [found[stage] for stage in range(len(stages))] == stages
    messages = read(torch_csv(schedule, communication=True, torch="2.9"))
    schedules._simulate_comms_compute(messages, lambda stage: stages[stage], len(stages))


def trained(ranks: int) -> dict[str, Schedule]:
    """Chain, V, loop, and placements that no schedule of PyTorch's has; some are solved by search."""
    if ranks == 3:
        return {
            "zb-h1": baseline("zb-h1", pipeline(chain(3), split=(1, 1), first_input_grad=False, lag=0.5), 5),
            "zb-v": baseline("zb-v", pipeline(v(3), split=(1, 1)), 6),
            "zig-zag": solve(pipeline([2, 0, 1, 0, 2], forward=2, split=(3, 1), memory=6), 4, effort=0.5),
        }
    if ranks == 4:
        return {
            "1f1b": baseline("1f1b", pipeline(chain(4)), 6),
            "interleaved": baseline("interleaved", pipeline(loop(4)), 8),
            "interleaved, zero bubble": baseline("interleaved-zb", pipeline(loop(4), split=(1, 1)), 8),
            "zb-h1": baseline("zb-h1", pipeline(chain(4), split=(1, 1)), 6),
            "zb-v": baseline("zb-v", pipeline(v(4), split=(1, 1)), 8),
            "solved": solve(pipeline(v(4), forward=2, split=(3, 1), memory=6), 6, effort=0.5),
        }
    uneven = pipeline([0, 1, 1, 0], split=(1, 1), first_input_grad=False, memory=4)
    uneven = replace(uneven, blocks=tuple(replace(block, duration=1 + (3 * i) % 5)
                                          for i, block in enumerate(uneven.blocks)))
    return {
        "1f1b": baseline("1f1b", pipeline(chain(2)), 4),
        "zb-h1": baseline("zb-h1", pipeline(chain(2), split=(1, 1), first_input_grad=False), 4),
        "zb-v": baseline("zb-v", pipeline(v(2), split=(1, 1)), 4),
        "interleaved": baseline("interleaved", pipeline(loop(2)), 4),
        "interleaved, zero bubble": baseline("interleaved-zb", pipeline(loop(2), split=(1, 1)), 4),
        "waves": baseline("hanayo", pipeline(waves(2, 2)), 4),
        "last in, first out": schedule_of_table(parse_table("0F0,0F1,0F2,0B2,0B1,0B0\n1F0,1F1,1F2,1B2,1B1,1B0\n")),
        "three on one": baseline("greedy", pipeline([1, 0, 1, 1], split=(1, 1)), 4),
        "solved": solve(uneven, 4, effort=0.5),
        "solved, one a rank": solve(pipeline(chain(2), forward=2, split=(3, 1), memory=2), 5, effort=0.5),
    }


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_pytorchs_runtime_trains_as_one_process_does(ranks: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not (2, 13) <= TorchVersion.of(torch.__version__) < (2, 16):
        pytest.skip(f"PyTorch {torch.__version__}: its private runtime is known from 2.13 to 2.15")
    schedules = trained(ranks)
    for name, schedule in schedules.items():
        for communication in (False, True):
            save_torch_csv(schedule, tmp_path / f"{name}{communication}.csv", communication=communication,
                           torch=torch.__version__)
    ended = finished(ranks, __name__, str(tmp_path))
    for end in ended:
        found = json.loads(end.output)
        assert found.keys() == {f"{name}{flavour}" for name in schedules for flavour in (False, True)}
        assert max(found.values()) < 1e-13, found


def train(folder: Path) -> dict[str, float]:
    """Per file, the largest difference of this rank's gradients (and, on the last stage's, losses) from those of one
    process that runs the whole batch."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, schedules

    dist.init_process_group("gloo")
    rank, worst = dist.get_rank(), {}
    for path in sorted(folder.glob("*.csv")):
        table = read_table(path)
        count, n = len(table.ranks), table.micro_batches
        torch.manual_seed(0)
        modules = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).double()
                   for _ in range(count)]
        whole = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).double()
                 for _ in range(count)]
        for one, other in zip(modules, whole, strict=True):
            other.load_state_dict(one.state_dict())
        x, y = (torch.randn(BATCH * n, WIDTH, dtype=torch.float64) for _ in range(2))
        loss = nn.MSELoss()
        expected = [loss(nn.Sequential(*whole)(a), b) for a, b in zip(x.chunk(n), y.chunk(n), strict=True)]
        torch.autograd.backward(torch.stack(expected).mean())
        mine = [s for s, owner in enumerate(table.ranks) if owner == rank]
        stages = [PipelineStage(modules[s], s, count, torch.device("cpu")) for s in mine]
        runtime_class: Any = schedules._PipelineScheduleRuntime
        runtime = runtime_class(stages, n_microbatches=n, loss_fn=loss)
        runtime._load_csv(str(path), format="compute_comms" if table.has_communication else "compute_only")
        for _ in range(2):  # the second step reuses what the first has set up
            losses: list[torch.Tensor] = []
            for module in modules:
                module.zero_grad()
            runtime.step(*([x] if 0 in mine else []), **({"target": y, "losses": losses} if count - 1 in mine else {}))
        differences = [float((a.grad - b.grad).abs().max()) for s in mine
                       for a, b in zip(modules[s].parameters(), whole[s].parameters(), strict=True)
                       if a.grad is not None and b.grad is not None]
        assert len(differences) == 4 * len(mine), path
        differences += [abs(float(a) - float(b)) for a, b in zip(losses, expected, strict=False)]
        assert len(losses) == (n if count - 1 in mine else 0)
        worst[path.stem] = max(differences)
    dist.destroy_process_group()
    return worst


if __name__ == "__main__":
    print(json.dumps(train(Path(sys.argv[1]))))
