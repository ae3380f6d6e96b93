"""Nothing emulated: a GPT whose head is heavy, trained by two processes, weft's plan against 1F1B.

Every layer is measured (:func:`runtime.measure_stages.measure_stages`), the figures go into a spec as layers with their
costs, and ``weft.solve`` chooses cut, placement, kind of backward and order. Against it stand 1F1B with as many layers
on each rank (the usual balance), and 1F1B on the best cut in two for the measured costs. All three train from the same
weights on the same text, a step each in turn, so that what else the machine does falls on all alike. What counts is the
median over the rounds of a plan's step time over 1F1B's in the same round, held against the ratio of the predicted
step times. Writes ``heavy_head.json``; exits with 1 if the losses of the plans differ.

    python -m experiments.heavy_head [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

import weft
from experiments.small_gpt import Config, batch, layers, loss
from runtime.executor import Executor
from runtime.launch import launch_local
from runtime.measure_stages import measure_stages
from runtime.plan import load_plan, plan_of, save_plan
from runtime.reduction import Reduction
from runtime.session import Session, join
from runtime.stage_costs import StageCosts
from runtime.stages import Stages
from runtime.training import Boundary, Training
from solver.baselines import baseline
from solver.files import write_atomically
from solver.problem import Block, BlockKind, Dependency, Device, Problem
from solver.schedule import Schedule
from solver.timing import time_orders

CONFIG = Config(width=128, blocks=6, length=64, sequences=2, vocabulary=8192)
RANKS, MICRO_BATCHES, LAYERS = 2, 8, CONFIG.blocks + 2
LATENCY, BANDWIDTH = 2e-4, 2e9  # seconds, bytes/s: gloo between two processes of a host
USUAL, RECUT, WEFT = "1F1B, as many layers a rank", "1F1B, best cut in two", "weft"


def part(ranges: Sequence[Sequence[int]], mine: Sequence[int]) -> Training:
    """The stages ``mine`` of the GPT cut into ``ranges`` of layers."""
    everything = layers(CONFIG, torch.float32)
    stages = {s: nn.Sequential(*(everything[i] for i in ranges[s])) for s in mine}
    boundary = Boundary((CONFIG.sequences, CONFIG.length, CONFIG.width))
    parameters = [parameter for stage in stages.values() for parameter in stage.parameters()]
    return Training(stages, [boundary] * (len(ranges) - 1), lambda step, m: batch(CONFIG, step, m)[0],
                    lambda step, m: batch(CONFIG, step, m)[1], loss,
                    optimizer=torch.optim.SGD(parameters, lr=0.05, momentum=0.9))


# -- planning ----------------------------------------------------------------------------------------------------------


def solved(costs: Sequence[StageCosts]) -> tuple[Schedule, list[list[int]]]:
    """Weft's schedule for the measured layers, and the layers of each of its stages."""
    entries = []
    for cost in costs:
        full, split = cost.passes["full"], cost.passes["split"]
        entries.append({
            "name": f"layer {cost.stage}", "forward": f"{split['F'].time.seconds} s",
            "input_grad": f"{split['I'].time.seconds} s", "weight_grad": f"{split['W'].time.seconds} s",
            "activation_memory": f"{full['F'].memory.change} B",
            "weight_grad_memory": f"{min(full['F'].memory.change, -split['W'].memory.change)} B",
            "parameters": cost.parameter_bytes // 4, "output": f"{cost.output_bytes} B"})
    spec = {"name": "heavy head", "model": {"layers": entries},
            "cluster": {"gpus": RANKS, "memory": "8 GiB", "bandwidth": f"{BANDWIDTH / 1e9} GB/s",
                        "latency": f"{LATENCY * 1e6} us"},
            "training": {"micro_batches": MICRO_BATCHES, "micro_batch_size": CONFIG.sequences}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "heavy_head.yaml"
        path.write_text(yaml.safe_dump(spec))
        schedule = weft.solve(path, time_limit=20)
    return schedule, [[int(name.removeprefix("layer ")) for name in names]
                      for names in schedule.solver["layers_of_stage"]]


def problem(costs: Sequence[StageCosts], ranges: Sequence[Sequence[int]], devices: Sequence[int], split: bool
            ) -> Problem:
    """Stage s, the layers ``ranges[s]``, on ``devices[s]``, with what its layers were measured to take."""
    mode, last = "split" if split else "full", len(ranges) - 1

    def block(letter: str, kind: BlockKind, s: int, source: int, waits: str) -> Block:
        found = [costs[i].passes[mode][letter] for i in ranges[s]]
        lag = 0.0 if devices[s] == devices[source] else LATENCY + costs[0].output_bytes / BANDWIDTH
        return Block(f"{letter}{s}", kind, (devices[s],), sum(run.time.seconds for run in found),
                     (sum(run.memory.change for run in found),), (), (Dependency(waits, lag),) if waits else ())

    blocks = [block("F", BlockKind.FORWARD, s, max(0, s - 1), f"F{s - 1}" if s else "") for s in range(last + 1)]
    for s in reversed(range(last + 1)):
        letter, kind = ("I", BlockKind.INPUT_GRAD) if split else ("B", BlockKind.BACKWARD)
        blocks.append(block(letter, kind, s, min(s + 1, last), f"{letter}{s + 1}" if s < last else f"F{s}"))
        if split:
            blocks.append(block("W", BlockKind.WEIGHT_GRAD, s, s, f"I{s}"))
    return Problem("heavy head", tuple(Device(f"rank {r}") for r in range(RANKS)), tuple(blocks), memory_unit="B")


def retimed(schedule: Schedule, to: Problem) -> Schedule:
    """The same order of stages and passes on ``to``."""
    kinds = {(b.kind, s): i for s, letters in enumerate(_stages(to)) for b, i in letters}
    names = {i: (b.kind, s) for s, letters in enumerate(_stages(schedule.problem)) for b, i in letters}
    orders = [[(kinds[names[o.block]], o.micro_batch) for o in row] for row in schedule.device_orders]
    count = schedule.micro_batches
    return Schedule(to, count, time_orders(to, count, orders), 0.0)


def _stages(of: Problem) -> list[list[tuple[Block, int]]]:
    graph = plan_of(baseline("greedy", of, 1)).vocabulary.graph
    assert graph is not None
    return [[(of.blocks[i], i) for i in stage.blocks.values()] for stage in graph.stages]


def plans(costs: Sequence[StageCosts]) -> dict[str, tuple[Schedule, Sequence[Sequence[int]]]]:
    """The three, with the layers of each stage."""
    found: dict[str, tuple[Schedule, Sequence[Sequence[int]]]] = {}
    cuts = [[range(at), range(at, LAYERS)] for at in range(1, LAYERS)]
    each = [(baseline("1f1b", problem(costs, ranges, [0, 1], split=False), MICRO_BATCHES), ranges) for ranges in cuts]
    found[USUAL] = each[LAYERS // 2 - 1]
    found[RECUT] = min(each, key=lambda one: one[0].makespan)
    schedule, chosen = solved(costs)
    graph = plan_of(schedule).vocabulary.graph
    assert graph is not None
    found[WEFT] = retimed(schedule, problem(
        costs, chosen, [stage.ranks[0] for stage in graph.stages],
        any(block.kind is BlockKind.WEIGHT_GRAD and any(other.kind is BlockKind.INPUT_GRAD
            for other in schedule.problem.blocks) for block in schedule.problem.blocks))), chosen
    return found


# -- the ranks ---------------------------------------------------------------------------------------------------------


class _Runner:
    """One plan on this rank."""

    def __init__(self, path: Path, ranges: Sequence[Sequence[int]], session: Session) -> None:
        plan = load_plan(path)
        assert plan.stage_ranks is not None
        self.training = part(ranges, [s for s, rank in enumerate(plan.stage_ranks) if rank == session.rank])
        self.worker = Stages(plan, session, self.training)
        self.gradients, self.session = Reduction(plan, session, self.training), session
        self.executor = Executor(self.gradients.plan, session, self.worker, reduce=self.gradients.start)

    def step(self, number: int) -> tuple[float, float] | None:
        """Train one step: seconds from its first block's start to its last one's end, and its loss; on rank 0."""
        self.worker.begin(number)
        self.gradients.clear()
        laps = self.executor.run()
        self.gradients.finish()
        self.gradients.step()
        rows = self.session.gather((min(lap.start for lap in laps), max(lap.end for lap in laps), self.worker.loss()))
        if rows is None:
            return None
        return max(end for _, end, _ in rows) - min(start for start, _, _ in rows), sum(part for _, _, part in rows)


def rank_main(folder: Path, rounds: int) -> None:
    """One rank: the plans take turns; rank 0 prints seconds and losses by plan."""
    cuts = json.loads((folder / "cuts.json").read_text())
    found: list[list[tuple[float, float]]] = [[] for _ in cuts]
    with join(120) as session:
        runners = [_Runner(folder / f"{i}.plan.json", ranges, session) for i, ranges in enumerate(cuts)]
        for number in range(rounds + 1):
            for i, runner in enumerate(runners):
                result = runner.step(number)
                found[i] += [] if result is None else [result]
    if session.rank == 0:
        print(json.dumps(found))


# -- the table ---------------------------------------------------------------------------------------------------------


def compare(rounds: int) -> dict[str, Any]:
    """Measure, plan, train, compare."""
    load = os.getloadavg()[0]
    costs = measure_stages(part([[i] for i in range(LAYERS)], range(LAYERS)), device=torch.device("cpu"), repeats=25)
    planned = plans(costs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i, (schedule, _) in enumerate(planned.values()):
            save_plan(plan_of(schedule), folder / f"{i}.plan.json")
        (folder / "cuts.json").write_text(json.dumps([[list(stage) for stage in cut] for _, cut in planned.values()]))
        ended = launch_local(RANKS, [sys.executable, "-m", "experiments.heavy_head", "--rank", name, "--rounds",
                                     str(rounds)], timeout=600)
    if any(end.code for end in ended):
        raise SystemExit("\n".join(end.errors for end in ended))
    found: list[list[tuple[float, float]]] = json.loads(ended[0].output)
    seconds = {plan: [time for time, _ in each[1:]] for plan, each in zip(planned, found, strict=True)}  # 0 warms up
    losses = {plan: [value for _, value in each] for plan, each in zip(planned, found, strict=True)}
    return {"config": vars(CONFIG), "ranks": RANKS, "micro_batches": MICRO_BATCHES, "rounds": rounds,
            "cores": os.cpu_count(), "load": [load, os.getloadavg()[0]], "torch": torch.__version__,
            "python": platform.python_version(), "layers": [_layer(cost) for cost in costs],
            "losses_differ_by": max(abs(a - b) for plan in losses for a, b in zip(losses[plan], losses[USUAL],
                                                                                  strict=True)),
            "loss": [losses[WEFT][0], losses[WEFT][-1]],
            "plans": [_row(plan, schedule, cut, seconds, planned[USUAL][0])
                      for plan, (schedule, cut) in planned.items()]}


def _layer(cost: StageCosts) -> Mapping[str, float]:
    return {letter: run.time.seconds for passes in cost.passes.values() for letter, run in passes.items()}


def _row(plan: str, schedule: Schedule, cut: Sequence[Sequence[int]], seconds: Mapping[str, Sequence[float]],
         usual: Schedule) -> dict[str, Any]:
    ratios = [a / b for a, b in zip(seconds[plan], seconds[USUAL], strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {"plan": plan, "layers_of_stage": [len(stage) for stage in cut], "predicted_s": schedule.makespan,
            "measured_s": statistics.median(seconds[plan]), "fastest_s": min(seconds[plan]),
            "predicted_ratio": schedule.makespan / usual.makespan, "measured_ratio": statistics.median(ratios),
            "measured_ratio_quartiles": [quartiles[0], quartiles[2]],
            "ratio_of_fastest": min(seconds[plan]) / min(seconds[USUAL]),
            "planned_peak_bytes": [int(peak) for peak in schedule.peak_memory]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; 1 if the plans do not train alike."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, metavar="N")
    parser.add_argument("--rank", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        rank_main(Path(options.rank), options.rounds)
        return 0
    result = compare(options.rounds)
    print(f"{'':28}{'layers':>12}{'predicted':>12}{'measured':>12}{'predicted ratio':>17}{'measured ratio':>16}")
    for row in result["plans"]:
        print(f"{row['plan']:28}{'+'.join(map(str, row['layers_of_stage'])):>12}{row['predicted_s'] * 1e3:9.1f} ms"
              f"{row['measured_s'] * 1e3:9.1f} ms{row['predicted_ratio']:17.3f}{row['measured_ratio']:16.3f}")
    print(f"losses differ by at most {result['losses_differ_by']:.1e}")
    write_atomically(Path(__file__).with_suffix(".json"), json.dumps(result, indent=1) + "\n")
    return int(result["losses_differ_by"] > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
