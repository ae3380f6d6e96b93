"""What AdamA buys and what it costs: memory in the plan, memory measured, and a language model trained with both.

*Planned*, on GPT-1.3B with the costs measured on V100s: the least memory per GPU with which a placement exists, and
time per step under several caps, with Adam and with AdamA. *Measured*: the executor's peak with each, all stages on one
rank. *Trained*: a small GPT on the standard library's sources, through the executor, with 3 seeds and both optimizers
at one learning rate, which rises and falls again; the loss is on text that is held out. Writes ``adama.json``; exits
with 1 if a seed's losses differ by more than 2 %, or if no cap shows a gain.

    python -m experiments.runtime.adama [--steps N] [--seeds N] [--effort SECONDS]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import weft
from experiments.lib.provenance import RESULTS, SPECS, Record
from experiments.lib.small_gpt import Config, cut, layers, loss, text
from weft.models.candidates.build import candidates
from weft.models.candidates.stage_split import NoSplit
from weft.models.candidates.stages import SHAPES
from weft.models.spec.sections import Spec
from weft.models.spec.spec import load_spec
from weft.runtime.interface.optim import AdamA
from weft.runtime.interface.training import Boundary, Training
from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.replay.run import run_training
from weft.runtime.replay.single_rank import measure_rank, single_rank
from weft.solver.baselines import baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.step.search import Infeasible

GIB = 1024**3
SPEC = SPECS / "gpt-1.3b-v100x4.yaml"
CAPS = (14, 17, 20, 24)  # GiB
PLANNED_MICRO_BATCHES, MICRO_BATCHES = 8, 4  # of the plans, and of what is trained
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adama": AdamA}
RATE, TOLERANCE = 3e-3, 0.02
CONFIG = Config(width=64, blocks=3, length=64, sequences=2)
CPU = torch.device("cpu")


# -- planned -----------------------------------------------------------------------------------------------------------


def variant(spec: Spec, optimizer: str, memory: int) -> Spec:
    """``spec`` with this optimizer, on GPUs of ``memory`` bytes."""
    assert spec.training is not None
    return spec.model_copy(update={
        "cluster": spec.cluster.model_copy(update={"memory": (memory,)}),
        "training": spec.training.model_copy(update={"optimizer": optimizer,
                                                         "micro_batches": PLANNED_MICRO_BATCHES})})


def least_memory(spec: Spec, optimizer: str) -> int:
    """The least bytes per GPU with which any placement fits: the least over shapes and kinds of backward."""
    least = None
    for shape in (shape for shape in SHAPES if shape in spec.placement.shapes):  # others need modelled costs
        for backward in spec.placement.backward:
            one = variant(spec, optimizer, 4 * GIB).model_copy(update={
                "placement": spec.placement.model_copy(update={"shapes": (shape,), "backward": (backward,)})})
            try:
                candidates(one)
            except NoSplit as refusal:
                least = refusal.least if least is None else min(least, refusal.least)
    assert least is not None
    return least


def planned(effort: float, caps: Sequence[int]) -> dict[str, Any]:
    """Least memory, and milliseconds per step under it and each of ``caps`` (``None``: nothing fits)."""
    spec = load_spec(SPEC)
    least = {name: least_memory(spec, name) for name in OPTIMIZERS}
    rows = []
    for cap in (least["adama"], *(cap * GIB for cap in caps)):
        row: dict[str, Any] = {"memory": cap}
        for name in OPTIMIZERS:
            try:
                schedule = weft.solve(variant(spec, name, cap), effort=effort, time_limit=20 * effort)
            except Infeasible as refusal:
                row[name] = {"ms": None, "why": str(refusal)}
                continue
            row[name] = {"ms": schedule.makespan * 1e3, "bound_ms": schedule.makespan_bound * 1e3,
                         "placement": schedule.solver["placement"],
                         "static": schedule.solver["static_memory"]}
        rows.append(row)
        print(f"{cap / GIB:6.2f} GiB  " + "  ".join(
            f"{name} {'nothing fits' if row[name]['ms'] is None else format(row[name]['ms'], '.1f') + ' ms'}"
            for name in OPTIMIZERS), flush=True)
    return {"least_memory": least, "micro_batches": PLANNED_MICRO_BATCHES, "rows": rows}


# -- trained -----------------------------------------------------------------------------------------------------------


def plan_on_one_rank(stages: int, micro_batches: int) -> Plan:
    """A split pipeline whose stages are all on one rank."""
    forwards = [Block(f"F{s}", BlockKind.FORWARD, (0,), 1, (1,), (), (Dependency(f"F{s - 1}"),) if s else ())
                for s in range(stages)]
    backwards = []
    before = f"F{stages - 1}"
    for s in reversed(range(stages)):
        backwards.append(Block(f"I{s}", BlockKind.INPUT_GRAD, (0,), 1, (0,), (), (Dependency(before),)))
        backwards.append(Block(f"W{s}", BlockKind.WEIGHT_GRAD, (0,), 1, (-1,), (), (Dependency(f"I{s}"),)))
        before = f"I{s}"
    # a forward of every stage fits beside the micro-batch that is on its way back
    problem = Problem("one rank", (Device("rank 0", 2 * stages),), (*forwards, *backwards))
    return plan_of(baseline("greedy", problem, micro_batches))


def sampled(config: Config, number: int, held_out: bool) -> tuple[Tensor, Tensor]:
    """Text and its next bytes, of the last tenth of the text or of the rest."""
    everything = text()
    border = len(everything) * 9 // 10
    part = everything[border:] if held_out else everything[:border]
    chance = torch.Generator().manual_seed(config.seed * 1_000_003 + number)
    starts = torch.randint(len(part) - config.length - 1, (config.sequences, 1), generator=chance)
    places = starts + torch.arange(config.length)
    return part[places], part[places + 1]


def part_of(config: Config, optimizer: str, steps: int, micro_batches: int) -> Training:
    """The small GPT in two stages on one rank."""
    made = layers(config, torch.float32)
    stages = {s: nn.Sequential(*(made[i] for i in where)) for s, where in enumerate(cut(config, 2))}
    made_by = OPTIMIZERS[optimizer](list(nn.ModuleList(stages.values()).parameters()), lr=RATE)

    def set_rate(step: int) -> None:
        """Up for a tenth of the steps, then down to 0, on straight lines."""
        for group in made_by.param_groups:
            group["lr"] = RATE * min(1.0, 10 * (step + 1) / steps, (steps - step) / (0.9 * steps))

    return Training(stages, [Boundary((config.sequences, config.length, config.width))],
                    inputs=lambda step, m: sampled(config, step * micro_batches + m, False)[0],
                    targets=lambda step, m: sampled(config, step * micro_batches + m, False)[1], loss=loss,
                    optimizer=made_by, steps=steps, after_backward=set_rate)


def trained(seed: int, optimizer: str, steps: int) -> dict[str, float]:
    """The first batch's loss, and that on held-out text after ``steps`` batches, in nats per byte."""
    config = replace(CONFIG, seed=seed)
    training = part_of(config, optimizer, steps, MICRO_BATCHES)
    plan = plan_on_one_rank(2, MICRO_BATCHES)
    begun = time.perf_counter()
    with single_rank(plan, 0, CPU) as session:
        result = run_training(plan, session, training)
    assert result is not None
    whole, total, count = nn.Sequential(*training.stages.values()), 0.0, 64
    with torch.no_grad():
        for number in range(count):
            x, target = sampled(replace(config, seed=0), number, True)
            total += float(loss(whole(x), target))
    return {"first": result.losses[0], "held_out": total / count, "seconds": time.perf_counter() - begun}


def memory(micro_batches: int) -> dict[str, int]:
    """Measured bytes: of all parameters, of the largest layer's, and the executor's peak with each optimizer."""
    config = Config(width=256, blocks=4, length=16, sequences=1)
    parameters = [sum(p.nbytes for p in layer.parameters()) for layer in layers(config, torch.float32)]
    found = {"parameters": sum(parameters), "largest_layer": max(parameters)}
    plan = plan_on_one_rank(2, micro_batches)
    for optimizer in OPTIMIZERS:
        with single_rank(plan, 0, CPU) as session:
            found[f"peak_{optimizer}"] = measure_rank(plan, session, part_of(config, optimizer, 1, micro_batches),
                                                      repeats=1).peak
    found["fallen_by"] = found["peak_adam"] - found["peak_adama"]
    return found


# -- the whole ---------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment and write its numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="batches of each training run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--effort", type=float, default=2.0, help="deterministic seconds of each search")
    parser.add_argument("--caps", type=int, nargs="*", default=CAPS, metavar="GIB")
    parser.add_argument("--output", type=Path, default=RESULTS / "adama.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    plan = planned(options.effort, options.caps)
    measured = memory(MICRO_BATCHES)
    print("measured, MiB: " + "  ".join(f"{name} {size / 2**20:.2f}" for name, size in measured.items()), flush=True)
    runs = []
    for seed in range(1, options.seeds + 1):
        run: dict[str, Any] = {"seed": seed, **{name: trained(seed, name, options.steps) for name in OPTIMIZERS}}
        run["difference"] = run["adama"]["held_out"] / run["adam"]["held_out"] - 1
        runs.append(run)
        print(f"seed {seed}: first {run['adam']['first']:.4f}, held out Adam {run['adam']['held_out']:.4f}, AdamA "
              f"{run['adama']['held_out']:.4f} ({run['difference']:+.2%})", flush=True)
    gains = [row for row in plan["rows"] if row["adama"]["ms"] is not None
             and (row["adam"]["ms"] is None or row["adama"]["ms"] < row["adam"]["ms"] * (1 - 1e-6))]
    close = all(abs(run["difference"]) <= TOLERANCE for run in runs)
    result = {"planned": plan, "measured": measured, "trained": {
        "config": vars(CONFIG), "steps": options.steps, "micro_batches": MICRO_BATCHES, "learning_rate": RATE,
        "runs": runs}, "within_tolerance": close, "caps_with_a_gain": len(gains)}
    record.write(result)
    print(f"{len(gains)} of {len(plan['rows'])} caps gain; losses " + ("within" if close else "NOT within")
          + f" {TOLERANCE:.0%}")
    return 0 if close and gains else 1


if __name__ == "__main__":
    sys.exit(main())
