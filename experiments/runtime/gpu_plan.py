"""One GPU checks a plan for four: a GPT in bf16 is measured, planned, and each rank of the plan run alone on it.

With ``--preset 1.3b`` (or ``2.7b``) on a GPU: the stages of the GPT are timed and their memory counted there; 1F1B and
the best schedule, with full or split backwards, under 1F1B's memory are planned from that; then every rank of both
plans runs by itself, with fp32 master weights and Adam, and what the ranks took is put together into a step. Told are
planned against measured time and peak memory of each (held to 5 % on a GPU), tokens per second, and the executor's own
time in a step. At last all four ranks train together on the one device over shared memory, to show that they do.
Transfers between the ranks take no time here, in the plan and in what is predicted. ``--preset tiny`` is the same in
small, on any machine. Writes ``gpu_plan.json``, an entry for each preset and optimizer.

    python -m experiments.runtime.gpu_plan [--preset 1.3b 2.7b tiny] [--optimizer adam adama]
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import platform
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.lib.provenance import Record, Row
from experiments.lib.script import script
from experiments.lib.small_gpt import Config, batch, cut, layer, loss
from weft.runtime.interface.optim import AdamA
from weft.runtime.interface.precision import MasterWeights
from weft.runtime.interface.training import Boundary, Training
from weft.runtime.measure.measure_stages import measure_stages
from weft.runtime.measure.stage_costs import StageCosts, measured_problem, static_bytes
from weft.runtime.plan.plan import Plan, plan_of, save_plan
from weft.runtime.ranks.launch import launch_local
from weft.runtime.replay.replay import Prediction, replay_single_rank
from weft.solver.baselines import baseline
from weft.solver.schedule import Schedule
from weft.solver.step.search import Infeasible, solve

RANKS = 4
PRESETS = {
    "tiny": Config(width=64, heads=4, blocks=6, length=64, sequences=4),
    "1.3b": Config(width=2048, heads=16, blocks=24, length=1024, sequences=4, vocabulary=50304),
    "2.7b": Config(width=2560, heads=32, blocks=32, length=1024, sequences=4, vocabulary=50304),
}
DTYPE = torch.bfloat16
#: Values as large as a bf16 weight that are held beside it and one gradient: the fp32 master is two, the fp32 gradient
#: one more than a bf16 one, two fp32 moments are four.
COPIES = {"adam": 7, "adama": 5}  # AdamA: no gradient (-1) of either kind (-1)
TOLERANCE = 0.05


def _where() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _module(config: Config, numbers: range) -> nn.Module:
    with _where():
        return nn.Sequential(*(layer(config, i).to(DTYPE) for i in numbers))


class _OneAtATime(Mapping[int, nn.Module]):
    """All stages, each built when it is asked for: the model as a whole is never in memory."""

    def __init__(self, config: Config) -> None:
        self._config, self._ranges = config, cut(config, RANKS)

    def __getitem__(self, stage: int) -> nn.Module:
        return _module(self._config, self._ranges[stage])

    def __iter__(self) -> Iterator[int]:
        return iter(range(RANKS))

    def __len__(self) -> int:
        return RANKS


def _training(config: Config, stages: Mapping[int, nn.Module], **options: Any) -> Training:
    boundary = Boundary((config.sequences, config.length, config.width), DTYPE)
    return Training(stages, [boundary] * (RANKS - 1), lambda step, m: batch(config, step, m)[0],
                    lambda step, m: batch(config, step, m)[1], loss, **options)


def stages(plan: Plan, rank: int) -> Training:
    """What a replay of one of this experiment's plans runs."""
    config = PRESETS[plan.solver["preset"]]
    module = _module(config, cut(config, RANKS)[rank])
    masters = MasterWeights(module.parameters())
    weights = masters.parameters()
    optimizer: torch.optim.Optimizer
    if plan.solver["optimizer"] == "adama":
        optimizer = AdamA(weights, lr=1e-4)
    else:
        optimizer = torch.optim.Adam(weights, lr=1e-4, fused=True)  # no copies of all weights while it steps
    return _training(config, {rank: module}, steps=2, masters=masters, optimizer=optimizer)


# -- planned -----------------------------------------------------------------------------------------------------------


def plans(costs: Sequence[StageCosts], preset: str, optimizer: str, micro_batches: int,
          time_limit: float) -> dict[str, Schedule]:
    """1F1B, and the best schedule, with full or split backwards, in the memory that 1F1B takes where most is taken."""
    copies = COPIES[optimizer]
    static = [static_bytes(costs, s, optimizer_copies=copies, micro_batches=micro_batches) for s in range(RANKS)]
    says = {"static_memory": static, "preset": preset, "optimizer": optimizer}
    known = baseline("1f1b", measured_problem(costs, backward="full", optimizer_copies=copies), micro_batches)
    cap = max(int(held + peak) for held, peak in zip(static, known.peak_memory, strict=True))
    found = []
    for backward in ("full", "split"):
        problem = measured_problem(costs, backward=backward, optimizer_copies=copies, memory=cap)
        with contextlib.suppress(Infeasible):  # a split backward may hold more between its halves than there is
            schedule = solve(problem, micro_batches, time_limit=time_limit / 2)
            found.append(schedule.with_solver(**says, backward=backward))
    best = min(found, key=lambda schedule: schedule.makespan)  # 1F1B is one of them
    return {"1F1B": known.with_solver(**says), "weft": best}


# -- measured ----------------------------------------------------------------------------------------------------------


def checked(name: str, schedule: Schedule, folder: Path, config: Config, repeats: int) -> Row:
    """All ranks of ``schedule`` alone: what they took against what was planned."""
    path = folder / f"{name}.plan.json"
    save_plan(plan_of(schedule), path)
    found: Prediction = replay_single_rank(path, stages="experiments.runtime.gpu_plan:stages", repeats=repeats)
    assert found.step is not None and found.planned is not None
    print(f"{name}: {found}", flush=True)
    tokens = schedule.micro_batches * config.sequences * config.length
    update = max(row.update for row in found.rows)
    return {
        "planned_s": found.planned, "measured_s": found.step, "time_ratio": found.step / found.planned,
        "peak_ratios": [row.peak / row.planned_peak for row in found.rows if row.planned_peak],
        "update_s": update, "tokens_per_s": tokens / (found.step + update),
        "own_s_per_step": [row.own for row in found.rows],
        "own_share": max(row.own / row.busy for row in found.rows),
        "backward": schedule.solver.get("backward", "full"), **found.to_json()}


def together(path: Path) -> Row:
    """All ranks at once on this machine's one device, over shared memory."""
    ended = launch_local(RANKS, [sys.executable, "-m", "weft", "replay", str(path), "--stages",
                                 "experiments.runtime.gpu_plan:stages", "--transport", "shared", "--timeout", "300"],
                         timeout=900)
    return {"codes": [end.code for end in ended], "said": ended[0].output.splitlines(),
            "errors": [end.errors.splitlines()[-1] for end in ended if end.code and end.errors]}


def run(preset: str, optimizer: str, micro_batches: int, repeats: int, time_limit: float, shared: bool) -> Row:
    """The whole experiment."""
    config, device = PRESETS[preset], _where()
    costs = measure_stages(_training(config, _OneAtATime(config)), device=device, repeats=max(repeats, 3))
    gc.collect()
    parameters = sum(cost.parameter_bytes for cost in costs) // DTYPE.itemsize
    print(f"{preset}: {parameters / 1e9:.3f} billion parameters, {RANKS} ranks, {micro_batches} micro-batches of "
          f"{config.sequences} x {config.length} tokens, on {device}", flush=True)
    found: Row = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, schedule in plans(costs, preset, optimizer, micro_batches, time_limit).items():
            found[name] = checked(name, schedule, Path(folder), config, repeats)
        if shared:
            found["together"] = together(Path(folder) / "1F1B.plan.json")
    rows = [found["1F1B"], found["weft"]]
    within = all(abs(ratio - 1) <= TOLERANCE for row in rows for ratio in (row["time_ratio"], *row["peak_ratios"]))
    return {"on_gpu": device.type == "cuda",
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
            "preset": preset, "parameters": parameters, "optimizer": optimizer, "micro_batches": micro_batches,
            "tolerance": TOLERANCE, "within_tolerance": within, **found}


@script("gpu_plan.json", preset=("1.3b" if torch.cuda.is_available() else "tiny",), optimizer=("adam",),
        micro_batches=8, repeats=5, time_limit=20.0, no_shared=False)
def main(options: Namespace, record: Record) -> bool:
    results: dict[str, Row] = {}
    for preset, optimizer in itertools.product(options.preset, options.optimizer):
        results[f"{preset} {optimizer}"] = run(preset, optimizer, options.micro_batches, options.repeats,
                                               options.time_limit, not options.no_shared)
        record.write(results)
    return any((found["on_gpu"] and not found["within_tolerance"])
               or (not options.no_shared and any(found["together"]["codes"])) for found in results.values())
