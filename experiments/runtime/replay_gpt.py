"""A small GPT trained by planned pipelines equals the same GPT trained by one process: losses and every gradient.

Measures the layers' times, plans pipelines with them on 2 and 4 ranks (published schedules and the search's own), runs
every plan on gloo processes in fp64 and fp32, and compares each batch's loss and every parameter's gradient with a
single process that takes the whole batch at once. Writes ``replay_gpt.json``; exits with 1 if an error is too large.

    python -m experiments.runtime.replay_gpt [--folder FOLDER] [--ranks 2,4] [--dtypes fp64,fp32] [--only TEXT]

``--folder`` keeps the schedules, plans and measured timelines (``weft draw SCHEDULE --measured TIMELINE``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.lib.provenance import RESULTS, Record
from experiments.lib.small_gpt import Config, batch, cut, layers, loss, training
from weft.runtime.plan.plan import load_plan, plan_of, save_plan
from weft.runtime.plan.timeline import save_timeline
from weft.runtime.ranks.launch import launch_local
from weft.runtime.ranks.session import join
from weft.runtime.replay.run import run_training
from weft.runtime.train.stage import StageRunner
from weft.solver.baselines import baseline
from weft.solver.io.schedule_files import save_schedule
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import solve

CONFIG = Config()
MICRO_BATCHES, STEPS = 8, 12
TRANSFER = 0.3e-3  # seconds from one rank to the next: gloo on one machine
DTYPES = {"fp64": torch.float64, "fp32": torch.float32}
#: The largest difference of any gradient, loss or weight from single-process training. In fp32 a sum over another
#: order of some hundred terms of size 1 is off by some 1e-6, and twelve updates carry that on.
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-4}


# -- planning ----------------------------------------------------------------------------------------------------------


def measured_layers(dtype: torch.dtype) -> list[dict[str, float]]:
    """Per layer, the median seconds of F, B, I and W on one core; the loss counts as part of the last."""
    torch.set_num_threads(1)
    text, target = batch(CONFIG, 0, 0)
    found, x = [], text
    everything = layers(CONFIG, dtype)
    for i, layer in enumerate(everything):
        last = i == len(everything) - 1
        times: dict[str, list[float]] = {letter: [] for letter in "FBIW"}
        for _ in range(15):
            for split in (False, True):
                runner = StageRunner(layer, split=split, constant=() if i else (0,), function=(
                    lambda x, layer=layer: loss(layer(x), target)) if last else None)
                begun = time.perf_counter()
                y, = runner.forward(0, x)
                times["F"].append(time.perf_counter() - begun)
                gradient = torch.ones_like(y)
                begun = time.perf_counter()
                (runner.input_grad if split else runner.backward)(0, gradient)
                times["I" if split else "B"].append(time.perf_counter() - begun)
                if split:
                    begun = time.perf_counter()
                    runner.weight_grad(0)
                    times["W"].append(time.perf_counter() - begun)
                runner.close()
        found.append({letter: statistics.median(values) for letter, values in times.items()})
        with torch.no_grad():
            x = layer(x)
    return found


def pipeline(times: Sequence[dict[str, float]], devices: Sequence[int], *, split: bool) -> Problem:
    """Stage s on ``devices[s]``. A stage's activations count one a layer; a device holds what 1F1B needs, which is the
    share of one device for as many micro-batches as there are devices."""
    ranges = cut(CONFIG, len(devices))
    count, last = max(devices) + 1, len(devices) - 1
    capacity = max(sum(len(r) for r, d in zip(ranges, devices, strict=True) if d == device) for device in range(count))
    cost = [{letter: sum(times[i][letter] for i in r) for letter in "FBIW"} for r in ranges]

    def after(name: str, source: int, target: int) -> tuple[Dependency, ...]:
        return (Dependency(name, TRANSFER if devices[source] != devices[target] else 0),)

    blocks = [Block(f"F{s}", BlockKind.FORWARD, (d,), cost[s]["F"], (len(ranges[s]),), (),
                    after(f"F{s - 1}", s - 1, s) if s else ()) for s, d in enumerate(devices)]
    for s in reversed(range(len(devices))):
        letter, d = "I" if split else "B", (devices[s],)
        before = after(f"{letter}{s + 1}", s + 1, s) if s < last else after(f"F{s}", s, s)
        if split:
            blocks.append(Block(f"I{s}", BlockKind.INPUT_GRAD, d, cost[s]["I"], (0,), (), before))
            blocks.append(Block(f"W{s}", BlockKind.WEIGHT_GRAD, d, cost[s]["W"], (-len(ranges[s]),), (),
                                (Dependency(f"I{s}"),)))
        else:
            blocks.append(Block(f"B{s}", BlockKind.BACKWARD, d, cost[s]["B"], (-len(ranges[s]),), (), before))
    return Problem(f"small GPT, {len(devices)} stages on {count} ranks",
                   tuple(Device(f"rank {d}", capacity * count) for d in range(count)), tuple(blocks),
                   memory_unit="layer activations")


def schedules(times: Sequence[dict[str, float]], ranks: int) -> dict[str, Callable[[], Schedule]]:
    """How to make published schedules, and the search's for a chain and for a V, both with split backwards."""
    chain, v = list(range(ranks)), [*range(ranks), *reversed(range(ranks))]
    full, split = pipeline(times, chain, split=False), pipeline(times, chain, split=True)
    folded = pipeline(times, v, split=True)
    return {
        "GPipe": partial(baseline, "gpipe", full, MICRO_BATCHES),
        "1F1B": partial(baseline, "1f1b", full, MICRO_BATCHES),
        "ZB-H1": partial(baseline, "zb-h1", split, MICRO_BATCHES),
        "ZB-V": partial(baseline, "zb-v", folded, MICRO_BATCHES),
        "weft": partial(solve, split, MICRO_BATCHES, time_limit=10),
        "weft V": partial(solve, folded, MICRO_BATCHES, time_limit=10),
    }


# -- training ----------------------------------------------------------------------------------------------------------


def trained_alone(dtype: torch.dtype) -> dict[str, Any]:
    """Each batch's loss and gradients, and the last weights, by layer, of one process that takes whole batches."""
    everything = layers(CONFIG, dtype)
    whole = nn.Sequential(*everything)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    losses, gradients = [], []
    for step in range(STEPS):
        parts = [batch(CONFIG, step, m) for m in range(MICRO_BATCHES)]
        text, target = (torch.cat([part[i] for part in parts]) for i in (0, 1))
        whole.zero_grad()
        value = loss(whole(text), target)
        torch.autograd.backward(value)
        gradients.append(_by_layer(enumerate(everything), lambda parameter: parameter.grad))
        optimizer.step()
        losses.append(value.item())
    return {"losses": losses, "gradients": gradients, "weights": _by_layer(enumerate(everything), lambda p: p)}


def _by_layer(numbered: Any, get: Callable[[nn.Parameter], Tensor | None]) -> dict[str, Tensor]:
    result = {}
    for i, layer in numbered:
        for name, parameter in layer.named_parameters():
            value = get(parameter)
            assert value is not None, f"layer {i}, {name} has no gradient"
            result[f"{i}.{name}"] = value.detach().clone()
    return result


def rank_main(folder: Path, ranks: int) -> None:
    """One rank of all runs on ``ranks`` ranks; rank 0 writes what it found."""
    runs = []
    with join(120) as session:
        for dtype_name in (name for name in DTYPES if (folder / f"{name}.pt").exists()):
            dtype, alone = DTYPES[dtype_name], torch.load(folder / f"{dtype_name}.pt")
            for path in sorted(folder.glob(f"{ranks}-*.plan.json")):
                plan = load_plan(path)
                assert plan.stage_ranks is not None
                part = training(plan, session.rank, CONFIG, dtype, STEPS)
                ranges = cut(CONFIG, len(plan.stage_ranks))
                mine = [(i, layer) for s, stage in part.stages.items()
                        for i, layer in zip(ranges[s], stage.children(), strict=True)]
                errors: list[float] = []

                def compare(step: int, mine: Any = mine, errors: list[float] = errors, alone: Any = alone) -> None:
                    errors.append(_difference(_by_layer(mine, lambda p: p.grad), alone["gradients"][step]))

                part.after_backward = compare
                result = run_training(plan, session, part)
                weights = _difference(_by_layer(mine, lambda p: p), alone["weights"])
                gathered = session.gather((max(errors), weights))
                if result is None or gathered is None:
                    continue
                assert result.comparison is not None
                runs.append({
                    "ranks": ranks, "schedule": path.name.removesuffix(".plan.json").partition("-")[2],
                    "dtype": dtype_name, "gradient_error": max(error for error, _ in gathered),
                    "weight_error": max(error for _, error in gathered),
                    "loss_error": max(abs(a - b) for a, b in zip(result.losses, alone["losses"], strict=True)),
                    "losses": result.losses, "predicted_s": result.comparison.predicted,
                    "measured_s": result.comparison.measured, "ratio": result.comparison.ratio})
                save_timeline(result.timeline, path.with_name(path.name.replace(".plan", f".{dtype_name}.timeline")))
    if runs:
        print(json.dumps(runs))


def _difference(mine: dict[str, Tensor], alone: dict[str, Tensor]) -> float:
    return max(float((value - alone[name]).abs().max()) for name, value in mine.items())


# -- the whole ---------------------------------------------------------------------------------------------------------


def run(folder: Path, counts: Sequence[int], dtypes: Sequence[str], only: str) -> list[dict[str, Any]]:
    """Measure, plan, train and compare; files go to ``folder``."""
    for name in dtypes:
        torch.save(trained_alone(DTYPES[name]), folder / f"{name}.pt")
    times = measured_layers(torch.float64)
    runs: list[dict[str, Any]] = []
    for ranks in counts:
        made = {name: make() for name, make in schedules(times, ranks).items() if only in name}
        for name, schedule in made.items():
            save_schedule(schedule, folder / f"{ranks}-{name}.json")
            save_plan(plan_of(schedule), folder / f"{ranks}-{name}.plan.json")
        ended = launch_local(ranks, [sys.executable, "-m", "experiments.runtime.replay_gpt", "--rank-of", str(ranks),
                                     "--folder", str(folder)], timeout=900)
        if any(end.code for end in ended):
            raise SystemExit("\n".join(end.errors for end in ended if end.code))
        runs += json.loads(ended[0].output)
        for row in runs[-len(made) * len(dtypes):]:
            print(f"{row['ranks']} ranks  {row['schedule']:7} {row['dtype']}  gradients {row['gradient_error']:.1e}  "
                  f"weights {row['weight_error']:.1e}  losses {row['loss_error']:.1e}  "
                  f"{row['losses'][0]:.4f} -> {row['losses'][-1]:.4f}  measured/predicted {row['ratio']:.2f}")
    return runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment and write its numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="keep schedules, plans and timelines there")
    parser.add_argument("--ranks", default="2,4", help="how many ranks: 2, 4 or both")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="some of the precisions")
    parser.add_argument("--only", default="", help="schedules whose name contains this")
    parser.add_argument("--output", type=Path, default=RESULTS / "replay_gpt.json")
    parser.add_argument("--rank-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank_of:
        rank_main(options.folder, options.rank_of)
        return 0
    record = Record(options.output)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        runs = run(folder, [int(count) for count in options.ranks.split(",")], options.dtypes.split(","), options.only)
    good = all(row[error] <= TOLERANCE[row["dtype"]] for row in runs
               for error in ("gradient_error", "weight_error", "loss_error"))
    record.write({"equal": good, "tolerance": TOLERANCE, "micro_batches": MICRO_BATCHES, "steps": STEPS,
                  "config": vars(CONFIG), "runs": runs})
    print("equal to single-process training" if good else "NOT equal to single-process training", TOLERANCE)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
