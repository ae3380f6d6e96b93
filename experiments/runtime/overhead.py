"""What the executor itself costs: a step of tiny stages by 1F1B, ours against PyTorch's own pipelining runtimes.

Two ranks run the same 1F1B schedule of the same two layers, which take next to no time, over gloo: through the
executor; through ``torch.distributed.pipelining``'s runtime for any schedule, which loads it from the CSV that
``weft export`` writes; and through its ``Schedule1F1B``, which has this one schedule written out in Python. They take
turns in one run, a burst of steps each, and what counts is the median over the rounds of the ratio within a round.
Also the executor with its messages through shared memory, and what a step costs without messages and waits: a loop over
the same forwards and backwards in one process. Writes ``overhead.json``; exits with 1 if the executor takes more CPU
time than either runtime (seconds depend on what else the machine does).

    python -m experiments.runtime.overhead [--rounds N]
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, schedules

from experiments.lib.provenance import begun
from weft.runtime.execute.executor import Executor
from weft.runtime.export.torch_csv import torch_csv
from weft.runtime.interface.training import Boundary, Training
from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.plan.program import Recv, Send
from weft.runtime.ranks.launch import launch_local
from weft.runtime.ranks.session import Session, join
from weft.runtime.train.stage import StageRunner
from weft.runtime.train.worker import StageWorker
from weft.solver.baselines import baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import Schedule

RANKS, MICRO_BATCHES, ROWS, WIDTH, STEPS = 2, 16, 2, 8, 20
OURS, THEIRS, WRITTEN_OUT = "weft", "PyTorch, schedule from CSV", "PyTorch, Schedule1F1B"
SHARED = "weft, through shared memory"
ALONE = "one process, no messages"
Found = TypeVar("Found")


def one_f_one_b() -> Schedule:
    """The schedule that all run."""
    blocks = [Block(f"F{s}", BlockKind.FORWARD, (s,), 1, (1,), (), (Dependency(f"F{s - 1}"),) if s else ())
              for s in range(RANKS)]
    blocks += [Block(f"B{s}", BlockKind.BACKWARD, (s,), 2, (-1,), (),
                     (Dependency(f"B{s + 1}" if s < RANKS - 1 else f"F{s}"),)) for s in reversed(range(RANKS))]
    problem = Problem("tiny", tuple(Device(f"rank {r}") for r in range(RANKS)), tuple(blocks))
    return baseline("1f1b", problem, MICRO_BATCHES)


def module(stage: int) -> nn.Module:
    """A layer that takes next to no time."""
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def by_executor(plan: Plan, session: Session, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step through ours."""
    xs, ys = x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES)
    part = Training({session.rank: module(session.rank)}, [Boundary((ROWS, WIDTH))], lambda step, m: xs[m],
                    targets=lambda step, m: ys[m], loss=nn.functional.mse_loss)
    worker = StageWorker(plan, session, part)
    executor = Executor(plan, session, worker)
    executor.run()

    def step() -> None:
        worker.begin(0)
        executor.run(together=False)

    return step


def by_pytorch(folder: Path | None, rank: int, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step through PyTorch's: of the schedule in ``folder``'s CSV, or its own 1F1B."""
    stage: Any = PipelineStage(module(rank), rank, RANKS, torch.device("cpu"))
    runtime: Any
    if folder is None:
        runtime = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    else:
        maker: Any = schedules._PipelineScheduleRuntime
        runtime = maker([stage], MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
        runtime._load_csv(str(folder / "schedule.csv"), format="compute_comms")

    def step() -> None:
        if rank == 0:
            runtime.step(x)
        else:
            runtime.step(target=y)

    step()  # it learns its shapes
    return step


def without_messages(rank: int, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A rank's forwards and backwards, with nobody else: what no executor can save."""
    xs, ys, layer = x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), module(rank)
    last = rank == RANKS - 1
    gradient = torch.ones(()) if last else torch.randn(ROWS, WIDTH)
    function = (lambda a, b: nn.functional.mse_loss(layer(a), b)) if last else lambda a, b: layer(a)
    runner = StageRunner(layer, function=function, constant=(1,) if last else (0, 1))

    def step() -> None:
        for m in range(MICRO_BATCHES):
            runner.forward(m, xs[m], ys[m])
            runner.backward(m, gradient)

    return step


def burst(session: Session, step: Callable[[], None], steps: int = STEPS) -> tuple[float, float]:
    """Seconds and CPU seconds a step, of ``steps``."""
    session.barrier("before a burst")
    begun, worked = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    worked = time.process_time() - worked
    session.barrier("to end a turn")
    return (time.perf_counter() - begun) / steps, worked / steps


def rank_main(folder: Path, rounds: int) -> None:
    """One rank: all methods in rounds; prints seconds a step and CPU seconds a step, by round."""
    with join(120) as session:
        torch.manual_seed(9)
        x, y = (torch.randn(MICRO_BATCHES * ROWS, WIDTH) for _ in range(2))
        steps = {OURS: by_executor(plan_of(one_f_one_b()), session, x, y),
                 SHARED: by_executor(plan_of(one_f_one_b()), replace(session, transport="shared"), x, y),
                 THEIRS: by_pytorch(folder, session.rank, x, y),
                 WRITTEN_OUT: by_pytorch(None, session.rank, x, y), ALONE: without_messages(session.rank, x, y)}
        found = in_rounds({name: partial(burst, session, step) for name, step in steps.items()}, rounds)
    print(json.dumps(found))


def in_rounds(ways: Mapping[str, Callable[[], Found]], rounds: int) -> dict[str, list[Found]]:
    """What each of ``ways`` gave in each of ``rounds`` rounds; one more round before is for warming up. What else the
    machine does then affects all ways alike."""
    found: dict[str, list[Found]] = {name: [] for name in ways}
    for number in range(-1, rounds):
        for name, way in ways.items():
            result = way()
            if number >= 0:
                found[name].append(result)
    return found


def ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """The median over the rounds of one over the other."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


def compare(rounds: int) -> dict[str, Any]:
    """All methods on two processes of this machine."""
    schedule = one_f_one_b()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "schedule.csv").write_text(torch_csv(schedule, communication=True, torch=torch.__version__))
        ended = launch_local(RANKS, [sys.executable, "-m", "experiments.runtime.overhead", "--rank", folder,
                                     "--rounds", str(rounds)], timeout=280)
    if any(end.code for end in ended):
        raise SystemExit("\n".join(end.errors for end in ended))
    ranks: list[dict[str, list[tuple[float, float]]]] = [json.loads(end.output) for end in ended]
    row = plan_of(schedule).program.ranks[0]
    messages = sum(isinstance(instruction, Send | Recv) for instruction in row)
    wall = {name: [seconds for seconds, _ in each] for name, each in ranks[0].items()}
    worked = {name: [sum(work for _, work in rounds) for rounds in zip(*(rank[name] for rank in ranks), strict=True)]
              for name in ranks[0]}
    methods = [{"method": name, "microseconds_a_step": 1e6 * statistics.median(wall[name]),
                "cpu_microseconds_an_instruction_beyond_compute": 1e6 * statistics.median(
                    a - b for a, b in zip(worked[name], worked[ALONE], strict=True)) / (RANKS * len(row)),
                "ratio_to_weft": ratio(wall[name], wall[OURS]),
                "cpu_ratio_to_weft": ratio(worked[name], worked[OURS])}
               for name in wall]
    return {"ranks": RANKS, "micro_batches": MICRO_BATCHES, "rounds": rounds,
            "steps_a_round": STEPS, "instructions_a_rank": len(row), "of_them_messages": messages, "methods": methods}


def is_slower(result: dict[str, Any]) -> bool:
    """Whether the executor takes more CPU time than either of PyTorch's, over the same transport."""
    return any(row["cpu_ratio_to_weft"] < 1 for row in result["methods"] if row["method"] in (THEIRS, WRITTEN_OUT))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, write; 1 if the executor is slower."""
    options, record = begun(__doc__, arguments, "overhead.json", rounds=15, rank=Path)
    if options.rank is not None:
        rank_main(options.rank, options.rounds)
        return 0
    result = compare(options.rounds)
    print(json.dumps(result, indent=1))
    record.write(result)
    return int(is_slower(result))


if __name__ == "__main__":
    sys.exit(main())
