"""Planned time held against wall time: four ranks whose blocks sleep for their predicted durations.

The schedules of a GPT-like pipeline (published ones and the search's own) and of a placement with an embedding over all
devices run on gloo processes on this machine. What is left to differ is what an executor adds: messages, waits, the
order of things. Writes ``replay_emulated.json``.

    python -m experiments.replay_emulated
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.launch import launch_local
from runtime.plan import load_plan, plan_of, save_plan
from runtime.replay import run_emulated
from solver.baselines import baseline
from solver.files import write_atomically
from solver.problem import Block, BlockKind, Dependency, Device, Problem
from solver.schedule import Schedule
from solver.search import solve

RANKS, MICRO_BATCHES, REPEATS = 4, 8, 3
FORWARD, INPUT_GRAD, WEIGHT_GRAD, TRANSFER = 30.0, 30.0, 18.0, 3.0  # ms a rank: ZB-V's per-chunk times are halves


def pipeline(devices: Sequence[int], *, split: bool) -> Problem:
    """Equal stages, stage s on ``devices[s]``; memory for as many micro-batches as there are ranks; times in ms."""
    chunks = len(devices) // RANKS
    forward, gradient, weights = FORWARD / chunks, INPUT_GRAD / chunks, WEIGHT_GRAD / chunks

    def after(name: str, source: int, target: int) -> tuple[Dependency, ...]:
        return (Dependency(name, TRANSFER if devices[source] != devices[target] else 0),)

    blocks = [Block(f"F{s}", BlockKind.FORWARD, (d,), forward, (1,), (), after(f"F{s - 1}", s - 1, s) if s else ())
              for s, d in enumerate(devices)]
    for s in reversed(range(len(devices))):
        letter, d = "I" if split else "B", (devices[s],)
        before = after(f"{letter}{s + 1}", s + 1, s) if s < len(devices) - 1 else after(f"F{s}", s, s)
        if split:
            blocks.append(Block(f"I{s}", BlockKind.INPUT_GRAD, d, gradient, (0,), (), before))
            blocks.append(Block(f"W{s}", BlockKind.WEIGHT_GRAD, d, weights, (-1,), (), (Dependency(f"I{s}"),)))
        else:
            blocks.append(Block(f"B{s}", BlockKind.BACKWARD, d, gradient + weights, (-1,), (), before))
    return Problem("pipeline", tuple(Device(f"gpu {d}", RANKS * chunks) for d in range(RANKS)), tuple(blocks),
                   time_unit="ms", memory_unit="activations")


def shared_embedding() -> Problem:
    """A chain whose embedding and its gradient run on all devices together, beside the stages; times in ms."""
    everywhere = tuple(range(RANKS))
    blocks = [Block("embed", BlockKind.OTHER, everywhere, 8, (0,) * RANKS)]
    before = "embed"
    for s in range(RANKS):
        blocks.append(Block(f"F{s}", BlockKind.FORWARD, (s,), FORWARD, (1,), (), (Dependency(before, TRANSFER),)))
        before = f"F{s}"
    for s in reversed(range(RANKS)):
        blocks.append(Block(f"B{s}", BlockKind.BACKWARD, (s,), INPUT_GRAD + WEIGHT_GRAD, (-1,), (),
                            (Dependency(before, TRANSFER),)))
        before = f"B{s}"
    blocks.append(Block("embed gradient", BlockKind.OTHER, everywhere, 8, (0,) * RANKS, (), (Dependency(before),)))
    return Problem("shared embedding", tuple(Device(f"gpu {d}", RANKS + 1) for d in range(RANKS)), tuple(blocks),
                   time_unit="ms", memory_unit="activations")


def schedules() -> dict[str, Schedule]:
    """What runs, by name."""
    chain, v = list(range(RANKS)), [*range(RANKS), *reversed(range(RANKS))]
    full, split, folded = pipeline(chain, split=False), pipeline(chain, split=True), pipeline(v, split=True)
    return {
        "GPipe": baseline("gpipe", full, MICRO_BATCHES),
        "1F1B": baseline("1f1b", full, MICRO_BATCHES),
        "interleaved 1F1B": baseline("interleaved", pipeline(chain * 2, split=False), MICRO_BATCHES),
        "ZB-H1": baseline("zb-h1", split, MICRO_BATCHES),
        "ZB-V": baseline("zb-v", folded, MICRO_BATCHES),
        "weft, chain": solve(split, MICRO_BATCHES, time_limit=10),
        "weft, V": solve(folded, MICRO_BATCHES, time_limit=10),
        "weft, embedding on all": solve(shared_embedding(), MICRO_BATCHES, time_limit=10),
    }


def rank_main(folder: Path) -> None:
    """One rank of all runs; rank 0 prints the measured makespans in seconds, by plan file."""
    from runtime.session import join

    found: dict[str, list[float]] = {}
    with join(60) as session:
        for path in sorted(folder.glob("*.plan.json")):
            plan = load_plan(path)
            for _ in range(REPEATS):
                result = run_emulated(plan, session, 1e-3)
                if result is not None:
                    found.setdefault(path.name, []).append(result.timeline.makespan)
    if found:
        print(json.dumps(found))


def run(folder: Path) -> list[dict[str, Any]]:
    """Plan, emulate, compare; the median of the repeats counts."""
    planned = schedules()
    for i, schedule in enumerate(planned.values()):
        save_plan(plan_of(schedule), folder / f"{i}.plan.json")
    ended = launch_local(RANKS, [sys.executable, "-m", "experiments.replay_emulated", str(folder)], timeout=300)
    if any(end.code for end in ended):
        raise SystemExit("\n".join(end.errors for end in ended if end.code))
    measured = json.loads(ended[0].output)
    rows = []
    for i, (name, schedule) in enumerate(planned.items()):
        seconds = sorted(measured[f"{i}.plan.json"])
        rows.append({"schedule": name, "predicted_s": schedule.makespan * 1e-3, "measured_s": seconds,
                     "ratio": seconds[len(seconds) // 2] / (schedule.makespan * 1e-3)})
    return rows


def main() -> int:
    """Run the experiment, print its table, write its numbers."""
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rows = run(Path(folder))
    print(f"{'schedule':24}{'predicted ms':>14}{'measured ms':>14}{'ratio':>8}")
    for row in rows:
        median = row["measured_s"][len(row["measured_s"]) // 2]
        print(f"{row['schedule']:24}{row['predicted_s'] * 1e3:14.1f}{median * 1e3:14.1f}{row['ratio']:8.3f}")
    result = {"ranks": RANKS, "micro_batches": MICRO_BATCHES, "cores": os.cpu_count(),
              "load_before": os.getloadavg()[0], "python": platform.python_version(), "rows": rows}
    write_atomically(Path(__file__).with_suffix(".json"), json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
