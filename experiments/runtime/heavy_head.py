"""Nothing emulated: a GPT whose head is heavy, trained by two processes, weft's plan against 1F1B.

Every layer is measured, the figures go into a spec as layers with their costs, and ``weft.solve`` chooses cut,
placement, kind of backward and order. Against it stand 1F1B with as many layers on each rank (the usual balance), and
1F1B on the best cut in two for the measured costs. All train from the same weights on the same text, a step each in
turn, so that what else the machine does falls on all alike.

Three kinds of costs are held against what was measured. *Alone*: each layer by one process, nothing else at work.
*Together*: by two processes at once (``weft profile --ranks 2``), since ranks of one host slow each other down.
*Fitted*: what ``weft fit`` makes of a first run, durations and transfers. With the costs that the first run of weft's
plan has shown all is planned again, and run again: that second run is predicted. Weft's first plan stays where another
promises no more than what two runs differ by. What counts is the median over the rounds of a plan's step time over that
of the usual 1F1B in the same round, against the ratio of the predicted step times. Few micro-batches leave room above
1F1B, many next to none. Writes ``heavy_head.json``; exits with 1 if the losses of the plans differ.

    python -m experiments.runtime.heavy_head [--rounds N] [--micro-batches 4 8]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import nn

import weft
from experiments.lib.rounds import RoundsExperiment, in_rounds, on_ranks, quartiles, ratio
from experiments.lib.small_gpt import Config, batch, layers, loss
from weft.runtime.execute.executor import Executor
from weft.runtime.interface.training import Boundary, Training
from weft.runtime.measure.fitting import fit
from weft.runtime.measure.stage_costs import StageCosts
from weft.runtime.plan.plan import load_plan, plan_of, plan_to_json
from weft.runtime.plan.timeline import Measured, Timeline
from weft.runtime.ranks.session import Session, join
from weft.runtime.train.reduction import Reduction
from weft.runtime.train.worker import Stages
from weft.solver.baselines import baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import Schedule
from weft.solver.timing import time_orders

CONFIG = Config(width=128, blocks=6, length=64, sequences=2, vocabulary=8192)
RANKS, LAYERS, MICRO_BATCHES = 2, CONFIG.blocks + 2, (4, 8)
GAIN = 0.02  # of a step: what another plan must promise before the one that has been measured is given up
LAG = 3e-4  # seconds of a transfer by gloo between two processes of a host, until one has been measured
USUAL, RECUT, WEFT = "1F1B, as many layers a rank", "1F1B, best cut in two", "weft"


class Planned(NamedTuple):
    """A schedule, and the layers of each of its stages."""

    schedule: Schedule
    cut: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Costs:
    """What each layer costs, and a transfer in seconds."""

    layers: Sequence[StageCosts]
    lag: float


def every_layer() -> Training:
    """The GPT with each layer a stage of its own, as ``weft profile --stages
    experiments.runtime.heavy_head:every_layer`` measures it."""
    return part([[i] for i in range(LAYERS)], range(LAYERS))


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


def solved(costs: Costs, micro_batches: int, seconds: float) -> Planned:
    """Weft's schedule for the measured layers."""
    entries = []
    for cost in costs.layers:
        full, split = cost.passes["full"], cost.passes["split"]
        entries.append({
            "name": f"layer {cost.stage}", "forward": f"{split['F'].time.seconds} s",
            "input_grad": f"{split['I'].time.seconds} s", "weight_grad": f"{split['W'].time.seconds} s",
            "activation_memory": f"{full['F'].memory.change} B",
            "weight_grad_memory": f"{min(full['F'].memory.change, -split['W'].memory.change)} B",
            "parameters": cost.parameter_bytes // 4, "output": f"{cost.output_bytes} B"})
    spec = {"name": "heavy head", "model": {"layers": entries},
            "cluster": {"gpus": RANKS, "memory": "8 GiB", "bandwidth": "1000 GB/s", "latency": f"{costs.lag * 1e6} us"},
            "training": {"micro_batches": micro_batches, "micro_batch_size": CONFIG.sequences}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "heavy_head.yaml"
        path.write_text(yaml.safe_dump(spec))
        schedule = weft.solve(path, time_limit=seconds)
    return Planned(schedule, [[int(name.removeprefix("layer ")) for name in names]
                              for names in schedule.solver["layers_of_stage"]])


def problem(costs: Costs, ranges: Sequence[Sequence[int]], devices: Sequence[int], split: bool) -> Problem:
    """Stage s, the layers ``ranges[s]``, on ``devices[s]``, with what its layers were measured to take."""
    mode, last = "split" if split else "full", len(ranges) - 1

    def block(letter: str, kind: BlockKind, s: int, source: int, waits: str) -> Block:
        found = [costs.layers[i].passes[mode][letter] for i in ranges[s]]
        lag = 0.0 if devices[s] == devices[source] else costs.lag
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


def on(costs: Costs, planned: Planned) -> Schedule:
    """The same stages, devices and order, on these costs."""
    graph = plan_of(planned.schedule).vocabulary.graph
    assert graph is not None
    split = any("I" in stage.blocks for stage in graph.stages)
    return retimed(planned.schedule, problem(costs, planned.cut, [stage.ranks[0] for stage in graph.stages], split))


def plans(costs: Costs, micro_batches: int, seconds: float) -> dict[str, Planned]:
    """The three; weft's from a search of so many seconds."""
    cuts = [[range(at), range(at, LAYERS)] for at in range(1, LAYERS)]
    each = [Planned(baseline("1f1b", problem(costs, cut, [0, 1], split=False), micro_batches), cut) for cut in cuts]
    chosen = solved(costs, micro_batches, seconds)
    return {USUAL: each[LAYERS // 2 - 1], RECUT: min(each, key=lambda one: one.schedule.makespan),
            WEFT: chosen._replace(schedule=on(costs, chosen))}


# -- what a run says of the costs --------------------------------------------------------------------------------------


def fitted(costs: Costs, planned: Planned, runs: Sequence[Sequence[Measured]]) -> Costs:
    """``costs`` as runs of ``planned`` have them: each layer's passes as much longer as its stage's were."""
    schedule, plan = planned.schedule, plan_of(planned.schedule)
    found = fit(schedule.problem, [Timeline.of(plan, 1.0, run) for run in runs])
    graph = plan.vocabulary.graph
    assert graph is not None
    corrected = list(costs.layers)
    for stage, numbers in zip(graph.stages, planned.cut, strict=True):
        longer = {letter: found.problem.blocks[i].duration / schedule.problem.blocks[i].duration
                  for letter, i in stage.blocks.items()}
        if "B" in longer:
            longer |= {"I": longer["B"], "W": longer["B"]}
        elif "I" in longer:
            halves = [costs.layers[i].passes["split"] for i in numbers]
            parts = [sum(half[letter].time.seconds for half in halves) for letter in "IW"]
            longer["B"] = sum(longer[letter] * part for letter, part in zip("IW", parts, strict=True)) / sum(parts)
        else:
            longer |= {"B": longer["W"], "I": longer["W"]}
        for i in numbers:
            corrected[i] = replace(corrected[i], passes={
                mode: {letter: replace(each, time=replace(each.time, seconds=each.time.seconds * longer[letter]))
                       for letter, each in passes.items()} for mode, passes in corrected[i].passes.items()})
    seen = [row.fitted for row in found.transfers if row.count]
    return Costs(corrected, statistics.median(seen) if seen else costs.lag)


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
        self.number = 0

    def step(self) -> tuple[list[Measured], float] | None:
        """Train one step: when each block ran, on all ranks, and the loss; on rank 0."""
        self.worker.begin(self.number)
        self.number += 1
        self.gradients.clear()
        laps = self.executor.run()
        self.gradients.finish()
        self.gradients.step()
        rows = self.session.gather((laps, self.worker.loss()))
        return None if rows is None else ([lap for laps, _ in rows for lap in laps], sum(part for _, part in rows))


def rank_main(folder: Path, rounds: int) -> None:
    """One rank: the plans in rounds; rank 0 prints what ran when, and the losses, by plan."""
    cuts: dict[str, list[list[int]]] = json.loads((folder / "cuts.json").read_text())
    with join(120) as session:
        runners = {name: _Runner(folder / f"{i}.plan.json", cut, session) for i, (name, cut) in enumerate(cuts.items())}
        found = in_rounds({name: runner.step for name, runner in runners.items()}, rounds)
    print(json.dumps(found))


class Trained(NamedTuple):
    """What a plan's run has shown, by round: when each block ran, and the loss."""

    runs: list[list[Measured]]
    losses: list[float]

    @property
    def seconds(self) -> list[float]:
        """From the first start to the last end."""
        return [max(lap.end for lap in run) - min(lap.start for lap in run) for run in self.runs]


def train(planned: Mapping[str, Planned], rounds: int) -> dict[str, Trained]:
    """Train by all plans, in rounds."""
    files = {f"{i}.plan.json": json.dumps(plan_to_json(plan_of(one.schedule)))
             for i, one in enumerate(planned.values())}
    cuts = {name: [list(stage) for stage in one.cut] for name, one in planned.items()}
    found = on_ranks("experiments.runtime.heavy_head", RANKS, {**files, "cuts.json": json.dumps(cuts)}, rounds, 600)[0]
    return {name: Trained([[Measured(*lap) for lap in laps] for laps, _ in each], [value for _, value in each])
            for name, each in found.items()}


# -- the table ---------------------------------------------------------------------------------------------------------


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, then for few and for many micro-batches: plan, train, fit, plan and train again."""
    measure = partial(weft.profile_stages, "experiments.runtime.heavy_head:every_layer", device="cpu",
                      repeats=options.repeats)
    alone, together = Costs(measure().stages, LAG), Costs(measure(ranks=RANKS).stages, LAG)
    cases = [_case(micro_batches, alone, together, options) for micro_batches in options.micro_batches]
    return {"config": vars(CONFIG), "ranks": RANKS, "rounds": options.rounds, "load_after": os.getloadavg()[0],
            "layers": {"alone": _layers(alone), "together": _layers(together)},
            "losses_differ_by": max(case["losses_differ_by"] for case in cases), "cases": cases}


def _case(micro_batches: int, alone: Costs, together: Costs, options: argparse.Namespace) -> dict[str, Any]:
    first = plans(together, micro_batches, options.seconds)
    run_first = train(first, options.rounds)
    own = {name: fitted(together, first[name], run_first[name].runs) for name in first}
    second = plans(own[WEFT], micro_batches, options.seconds)  # as a user would, who has run weft's plan
    if second[WEFT].schedule.makespan > (1 - GAIN) * on(own[WEFT], first[WEFT]).makespan:
        second[WEFT] = first[WEFT]
    run_second = train(second, options.rounds)
    before = {"alone": alone, "together": together}
    runs = [_run(first, run_first, {kind: dict.fromkeys(first, costs) for kind, costs in before.items()}),
            _run(second, run_second, {**{kind: dict.fromkeys(first, costs) for kind, costs in before.items()},
                                      "fitted": own})]
    losses = [each.losses for trained in (run_first, run_second) for each in trained.values()]
    return {"micro_batches": micro_batches, "transfer_s": own[WEFT].lag, "layers_fitted": _layers(own[WEFT]),
            "loss": [losses[0][0], losses[0][-1]],
            "losses_differ_by": max(abs(a - b) for row in losses for a, b in zip(row, losses[0], strict=True)),
            "runs": runs}


def _run(planned: Mapping[str, Planned], trained: Mapping[str, Trained],
         costs: Mapping[str, Mapping[str, Costs]]) -> list[dict[str, Any]]:
    """A row for each plan; ``costs`` are by kind, and by plan."""
    steps = {kind: {name: on(each[name], one).makespan for name, one in planned.items()}
             for kind, each in costs.items()}
    return [_row(name, planned, trained, steps) for name in planned]


def _layers(costs: Costs) -> list[Mapping[str, float]]:
    return [{letter: each.time.seconds for passes in cost.passes.values() for letter, each in passes.items()}
            for cost in costs.layers]


def _row(name: str, planned: Mapping[str, Planned], trained: Mapping[str, Trained],
         steps: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    seconds, usual = trained[name].seconds, trained[USUAL].seconds
    return {"plan": name, "layers_of_stage": [len(stage) for stage in planned[name].cut],
            "predicted_s": {kind: found[name] for kind, found in steps.items()},
            "predicted_ratio": {kind: found[name] / found[USUAL] for kind, found in steps.items()},
            "measured_s": statistics.median(seconds), "fastest_s": min(seconds),
            "measured_ratio": ratio(seconds, usual), "measured_ratio_quartiles": quartiles(seconds, usual),
            "planned_peak_bytes": [int(peak) for peak in planned[name].schedule.peak_memory]}


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The tables: steps in milliseconds, and their ratios to the usual 1F1B."""
    for case in result["cases"]:
        for rows, title in zip(case["runs"], ("first run", "planned again and run"), strict=True):
            kinds = list(rows[0]["predicted_s"])
            yield (f"{case['micro_batches']} micro-batches, {title:28}{'layers':>10}"
                   + "".join(f"{kind:>20}" for kind in [*kinds, "measured"]))
            for row in rows:
                cells = [*((row["predicted_s"][kind], row["predicted_ratio"][kind]) for kind in kinds),
                         (row["measured_s"], row["measured_ratio"])]
                yield (f"{row['plan']:45}{'+'.join(map(str, row['layers_of_stage'])):>10}"
                       + "".join(f"{step * 1e3:10.1f} ms{times:7.3f}" for step, times in cells))
        yield f"a transfer takes {case['transfer_s'] * 1e3:.2f} ms"
    yield f"losses differ by at most {result['losses_differ_by']:.1e}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; 1 if the plans do not train alike."""
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--micro-batches", type=int, nargs="*", default=MICRO_BATCHES)
        parser.add_argument("--repeats", type=int, default=25, help="of each measurement of a layer")
        parser.add_argument("--seconds", type=float, default=20, help="of each search")

    return RoundsExperiment("heavy_head", __doc__, 40, compare, rank_main, lines,
                            lambda result: bool(result["losses_differ_by"] > 1e-3), add_options).main(arguments)


if __name__ == "__main__":
    sys.exit(main())
