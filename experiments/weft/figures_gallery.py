"""One picture of every sort of schedule, to look at after a change to ``weft.figures``.

    python -m experiments.weft.figures_gallery [FOLDER] [--only NAME ...]

writes NAME.png, NAME.svg and NAME.html for each, and the numbers in them as gallery.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.lib.provenance import Record
from weft.figures import FORMATS, draw
from weft.solver.baselines import baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import solve

GIB = 2**30


@dataclass(frozen=True)
class Stage:
    """A stage's device(s), how much heavier than others it is, and what it keeps of a micro-batch on each device."""

    devices: tuple[int, ...]
    weight: float = 1.0
    activation: int = GIB


def pipeline(name: str, stages: Sequence[Stage], *, memory: int | None, split: bool = False,
             train: bool = True) -> Problem:
    """Stages of 10 ms forwards and 20 ms backwards (10 + 10 where ``split``), 0.4 ms between devices."""
    def after(block: str, source: Stage, target: Stage) -> tuple[Dependency, ...]:
        return (Dependency(block, 0.0 if source.devices == target.devices else 0.0004),)

    blocks = []
    for s, stage in enumerate(stages):
        keep = stage.activation if train else 0
        blocks.append(Block(f"F{s}", BlockKind.FORWARD, stage.devices, 0.010 * stage.weight, (keep,), (keep // 8,),
                            after(f"F{s - 1}", stages[s - 1], stage) if s else ()))
    for s in reversed(range(len(stages) if train else 0)):
        stage, kind = stages[s], BlockKind.INPUT_GRAD if split else BlockKind.BACKWARD
        keep, time = stage.activation, (0.010 if split else 0.020) * stage.weight
        waits = after(f"B{s + 1}", stages[s + 1], stage) if s + 1 < len(stages) else (Dependency(f"F{s}"),)
        blocks.append(Block(f"B{s}", kind, stage.devices, time, (-keep // 4 if split else -keep,), (), waits))
        if split:
            blocks.append(Block(f"W{s}", BlockKind.WEIGHT_GRAD, stage.devices, time, (keep // 4 - keep,), (),
                                (Dependency(f"B{s}"),)))
    devices = 1 + max(device for stage in stages for device in stage.devices)
    return Problem(name, tuple(Device(f"GPU {d}", memory) for d in range(devices)), tuple(blocks))


def gallery() -> dict[str, Callable[[], tuple[Schedule, Schedule | None]]]:
    """Name -> how to make a schedule and what it is compared with."""
    chain = pipeline("uneven chain", [Stage((d,), weight) for d, weight in enumerate((1.0, 0.8, 1.1, 1.3))],
                     memory=5 * GIB)
    even = pipeline("even chain", [Stage((d,)) for d in range(4)], memory=5 * GIB)
    v = pipeline("V of two chunks", [Stage((d,), 0.5, GIB // 2) for d in (0, 1, 2, 3, 3, 2, 1, 0)],
                 memory=5 * GIB, split=True)
    shared = pipeline("embedding on all GPUs",
                      [Stage((0, 1, 2, 3), 0.4, GIB // 8), *(Stage((d,)) for d in range(4))], memory=6 * GIB)
    inference = pipeline("inference", [Stage((d,)) for d in range(8)], memory=None, train=False)
    static = {"static_memory": [11 * GIB, 10 * GIB, 10 * GIB, 11 * GIB]}
    return {
        "chain": lambda: (solve(chain, 8, time_limit=5), baseline("gpipe", chain, 8)),
        "v-split": lambda: (solve(v, 12, time_limit=5).with_solver(**static),
                            baseline("1f1b", even, 12).with_solver(**static)),
        "several-devices": lambda: (solve(shared, 8, time_limit=5), None),
        "inference": lambda: (solve(inference, 16, time_limit=5), None),
        "long": lambda: (baseline("1f1b", chain, 256), baseline("gpipe", chain, 256)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw everything into a folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("gallery"))
    parser.add_argument("--only", nargs="*", help="names of pictures")
    options = parser.parse_args(arguments)
    target = options.folder
    target.mkdir(parents=True, exist_ok=True)
    record, numbers = Record(target / "gallery.json"), {}
    for name, make in gallery().items():
        if name not in (options.only or [name]):
            continue
        schedule, compared = make()
        for ending in FORMATS:
            draw(schedule, target / f"{name}{ending}", baseline=compared)
        numbers[name] = {"makespan": schedule.makespan, "bound": schedule.makespan_bound,
                         "step_bubble": schedule.bubble.step, "peak_memory": list(schedule.peak_memory),
                         "compared_makespan": None if compared is None else compared.makespan}
        print(f"{name}: {schedule.makespan:.4f} s")
    record.write(numbers)
    return 0


if __name__ == "__main__":
    main()
