"""Planned time held against wall time: four ranks whose blocks sleep for their predicted durations.

Published schedules and the search's own run on gloo processes on this machine: pipelines, chunks in a V, a loop and
waves, full and split backwards, tight memory, uneven stages, blocks on several devices (an embedding on all; the M, NN
and K shapes of the Tessel evaluation), graphs with skips and branches, links that carry one transfer at a time, GPUs
with lanes for their network and their copies, two jobs of which one has micro-batches that differ, and inference. What
is left to differ is what an executor adds: messages, waits, the order of things. Writes ``replay_emulated.json``; exits
with 1 if a median is more than 3 % off. Where that is allowed, the ranks run in real time (SCHED_FIFO): they sleep
nearly always, but on a machine that does other things too a rank that should wake up would have to wait for a core, as
no GPU does.

    python -m experiments.runtime.replay_emulated [--repeats N] [--only TEXT]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from experiments.lib.stage_graphs import case, varied
from weft.models.zoo.tessel_shapes import shape
from weft.runtime.plan.plan import load_plan, plan_of, save_plan
from weft.runtime.ranks.launch import launch_local
from weft.runtime.replay.run import run_emulated
from weft.solver.baselines import baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import solve
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.rounds import Rounds
from weft.solver.wide.run import Run

RANKS, MICRO_BATCHES, REPEATS = 4, 8, 7
FORWARD, INPUT_GRAD, WEIGHT_GRAD, TRANSFER = 30.0, 30.0, 18.0, 3.0  # ms a rank: ZB-V's per-chunk times are halves
STEP = 30.0  # ms that one step of a shape's integers takes
SCALE = 3.0  # all of that takes so many times as long: the executor's own milliseconds should not be what is compared
WITHIN = 0.03


def pipeline(devices: Sequence[int], *, split: bool, memory: int = RANKS) -> Problem:
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
    return Problem("pipeline", tuple(Device(f"gpu {d}", memory * chunks) for d in range(RANKS)), tuple(blocks),
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


def heavy_head(problem: Problem) -> Problem:
    """``problem`` with the last stage half as long again, and the first one a quarter shorter."""
    last = f"{max(int(block.name[1:]) for block in problem.blocks)}"
    factors = {last: 1.5, "0": 0.75}
    return replace(problem, blocks=tuple(replace(block, duration=block.duration * factors.get(block.name[1:], 1.0))
                                         for block in problem.blocks))


def on_links(problem: Problem, transfer: float) -> Problem:
    """``problem`` with transfers of that many ms, one at a time on each link."""
    where = {block.name: block.devices[0] for block in problem.blocks}
    blocks = tuple(replace(block, after=tuple(
        Dependency(d.block, transfer, f"{where[d.block]} to {where[block.name]}") if d.lag else d for d in block.after))
        for block in problem.blocks)
    pairs = sorted({(where[d.block], where[block.name]) for block in blocks for d in block.after if d.link is not None})
    return replace(problem, blocks=blocks, links=tuple(Link(f"{a} to {b}", a, b) for a, b in pairs))


def with_lanes(*, copies: bool, memory: int, collective: bool = False) -> Problem:
    """A chain whose GPUs have engines: what goes from one to the next is a block on the network lanes of both. With
    ``copies``, what a forward keeps goes to the host and back on a third engine. With ``collective``, all network lanes
    sum something behind every micro-batch. Times in ms."""
    engines = 3 if copies else 2
    devices: list[Device] = []
    for r in range(RANKS):
        names = (f"gpu {r} network", f"gpu {r} copies")[:engines - 1]
        devices += [Device(f"gpu {r}", memory), *(Device(name, lane_of=f"gpu {r}") for name in names)]
    networks = tuple(engines * r + 1 for r in range(RANKS))
    blocks: list[Block] = []

    def add(name: str, kind: BlockKind, where: tuple[int, ...], duration: float, memory: int, *after: str) -> None:
        blocks.append(Block(name, kind, where, duration, (memory,) + (0,) * (len(where) - 1),
                            after=tuple(map(Dependency, after))))

    for r in range(RANKS):
        if r:
            add(f"to F{r}", BlockKind.OTHER, (networks[r - 1], networks[r]), 10, 0, f"F{r - 1}")
        add(f"F{r}", BlockKind.FORWARD, (engines * r,), FORWARD, 1, *[f"to F{r}"] * (r > 0))
        if copies:
            add(f"O{r}", BlockKind.OTHER, (engines * r + 2,), 20, -1, f"F{r}")
            add(f"L{r}", BlockKind.OTHER, (engines * r + 2,), 20, 1, f"O{r}")
    for r in reversed(range(RANKS)):
        before = f"to B{r}" if r < RANKS - 1 else f"F{r}"
        add(f"B{r}", BlockKind.BACKWARD, (engines * r,), INPUT_GRAD + WEIGHT_GRAD, -1, before, *[f"L{r}"] * copies)
        if r:
            add(f"to B{r - 1}", BlockKind.OTHER, (networks[r], networks[r - 1]), 10, 0, f"B{r}")
    if collective:
        add("sum", BlockKind.OTHER, networks, 12, 0, "B0")
    return Problem("lanes", tuple(devices), tuple(blocks), time_unit="ms", memory_unit="activations")


def two_jobs() -> Schedule:
    """A chain through the ranks for micro-batches that are short or long, and one the other way for another job."""
    def block(job: str, letter: str, rank: int, before: int | None, duration: float | dict[str, float]) -> WideBlock:
        after = () if before is None else (WideDependency(f"{letter}{before}", TRANSFER),)
        return WideBlock(f"{letter}{rank}", BlockKind.FORWARD, (rank,), duration, after=after, job=job)

    lengths: dict[str, float] = {"short": 15.0, "long": 45.0}
    blocks = [block("chat", "C", r, r - 1 if r else None, lengths) for r in range(RANKS)]
    blocks += [block("search", "S", r, r + 1 if r < RANKS - 1 else None, 20.0) for r in reversed(range(RANKS))]
    problem = WideProblem("two jobs", tuple(Device(f"gpu {r}") for r in range(RANKS)), tuple(blocks), time_unit="ms")
    rounds = Rounds(problem, Run.of(problem, {"chat": ["short", "long"] * 4, "search": 4}))
    return replace(baseline("greedy", rounds.problem, rounds.run.rounds), rounds=rounds)


def in_ms(problem: Problem) -> Problem:
    """A problem of small integers with :data:`STEP` ms for each, and a transfer to every device that is new."""
    devices = {block.name: set(block.devices) for block in problem.blocks}
    blocks = tuple(replace(block, duration=block.duration * STEP, after=tuple(
        replace(d, lag=0.0 if set(block.devices) <= devices[d.block] else TRANSFER) for d in block.after))
        for block in problem.blocks)
    return replace(problem, blocks=blocks, time_unit="ms")


def schedules() -> dict[str, Callable[[], Schedule]]:
    """How to make what runs, by name."""
    chain, v = list(range(RANKS)), [*range(RANKS), *reversed(range(RANKS))]
    full, split, folded = pipeline(chain, split=False), pipeline(chain, split=True), pipeline(v, split=True)
    tight = pipeline(v, split=True, memory=2)
    shapes = {name: in_ms(shape(name, RANKS, memory)) for name, memory in (("m", 4), ("nn", 6), ("k", 4))}
    graphs = {f"{name}, {mode}": in_ms(varied(case(name, RANKS), mode).problem)
              for name, mode in (("branches", "full"), ("branches", "split"), ("skip", "split"), ("X", "full"))}

    def best(problem: Problem) -> Schedule:
        return solve(problem, MICRO_BATCHES, time_limit=2)

    return {
        "GPipe": partial(baseline, "gpipe", full, MICRO_BATCHES),
        "1F1B": partial(baseline, "1f1b", full, MICRO_BATCHES),
        "1F1B, heavy head": partial(baseline, "1f1b", heavy_head(full), MICRO_BATCHES),
        "interleaved 1F1B": partial(baseline, "interleaved", pipeline(chain * 2, split=False), MICRO_BATCHES),
        "Hanayo, two waves": partial(baseline, "hanayo", pipeline(v * 2, split=False), MICRO_BATCHES),
        "ZB-H1": partial(baseline, "zb-h1", split, MICRO_BATCHES),
        "ZB-H2": partial(baseline, "zb-h2", split, MICRO_BATCHES),
        "ZB-V": partial(baseline, "zb-v", folded, MICRO_BATCHES),
        "V-Half": partial(baseline, "v-half", folded, MICRO_BATCHES),
        "V-Min": partial(baseline, "v-min", folded, MICRO_BATCHES),
        "DualPipeV": partial(baseline, "dualpipe-v", folded, MICRO_BATCHES),
        "building blocks, half the memory": partial(baseline, "v-block", tight, MICRO_BATCHES),
        "weft, chain": partial(best, split),
        "weft, chain, memory for 2": partial(best, pipeline(chain, split=True, memory=2)),
        "weft, chain, heavy head": partial(best, heavy_head(split)),
        "weft, chain, busy links": partial(best, on_links(split, 15.0)),
        "weft, V": partial(best, folded),
        "weft, V, half the memory": partial(best, tight),
        "weft, V, full backward": partial(best, pipeline(v, split=False)),
        "weft, embedding on all": partial(best, shared_embedding()),
        **{f"weft, {name.upper()} shape": partial(best, problem) for name, problem in shapes.items()},
        "weft, K shape, inference": partial(best, in_ms(shape("k", RANKS, None))),
        **{f"weft, {name}": partial(best, problem) for name, problem in graphs.items()},
        "lanes, network": partial(baseline, "greedy", with_lanes(copies=False, memory=4), MICRO_BATCHES),
        "lanes, network and collective": partial(
            baseline, "greedy", with_lanes(copies=False, memory=4, collective=True), MICRO_BATCHES),
        "lanes, network and copies": partial(baseline, "greedy", with_lanes(copies=True, memory=4), MICRO_BATCHES),
        "lanes, copies, memory for 2": partial(baseline, "greedy", with_lanes(copies=True, memory=2), MICRO_BATCHES),
        "weft, lanes, network and collective": partial(best, with_lanes(copies=False, memory=4, collective=True)),
        "weft, lanes, copies, memory for 3": partial(best, with_lanes(copies=True, memory=3)),
        "two jobs, short and long": two_jobs,
    }


def rank_main(folder: Path, repeats: int) -> None:
    """One rank of all runs; rank 0 prints the measured makespans in seconds, by plan file. All plans run once before
    any runs again, so that whatever else the machine does for a while does not fall on one of them."""
    from weft.runtime.ranks.session import join

    plans = {path.name: load_plan(path) for path in sorted(folder.glob("*.plan.json"))}
    found: dict[str, list[float]] = {}
    real_time = in_real_time()
    with join(60) as session:
        for _ in range(repeats):
            for name, plan in plans.items():
                result = run_emulated(plan, session, SCALE * 1e-3)
                if result is not None:
                    found.setdefault(name, []).append(result.timeline.makespan)
    if found:
        print(json.dumps({"real time": real_time, "seconds": found}))


def in_real_time() -> bool:
    """Let this process, and the threads it starts from now on, go before others; whether that was allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except (AttributeError, PermissionError):
        return False
    return True


def run(folder: Path, repeats: int, only: str = "") -> tuple[list[dict[str, Any]], bool]:
    """Plan, emulate, compare; the median of the repeats counts. Also whether the ranks ran in real time."""
    planned = {name: make() for name, make in schedules().items() if only in name}
    for i, schedule in enumerate(planned.values()):
        save_plan(plan_of(schedule), folder / f"{i}.plan.json")
    ended = launch_local(RANKS, [sys.executable, "-m", "experiments.runtime.replay_emulated", "--rank", str(folder),
                                 "--repeats", str(repeats)], timeout=1200)
    if any(end.code for end in ended):
        raise SystemExit("\n".join(end.errors for end in ended if end.code))
    measured = json.loads(ended[0].output)
    rows = []
    for i, (name, schedule) in enumerate(planned.items()):
        seconds, predicted = measured["seconds"][f"{i}.plan.json"], schedule.makespan * SCALE * 1e-3
        median = statistics.median(seconds)
        rows.append({"schedule": name, "predicted_s": predicted, "measured_s": median, "ratio": median / predicted,
                     "lowest": min(seconds) / predicted, "highest": max(seconds) / predicted})
    return rows, measured["real time"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment, print its table, write its numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N")
    parser.add_argument("--only", default="", help="schedules whose name contains this")
    parser.add_argument("--output", type=Path, default=RESULTS / "replay_emulated.json")
    parser.add_argument("--rank", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        rank_main(Path(options.rank), options.repeats)
        return 0
    record = Record(options.output)
    with tempfile.TemporaryDirectory() as folder:
        rows, real_time = run(Path(folder), options.repeats, options.only)
    print(f"{'schedule':34}{'predicted ms':>13}{'measured ms':>13}{'ratio':>8}{'lowest':>8}{'highest':>8}")
    for row in rows:
        print(f"{row['schedule']:34}{row['predicted_s'] * 1e3:13.1f}{row['measured_s'] * 1e3:13.1f}{row['ratio']:8.3f}"
              f"{row['lowest']:8.3f}{row['highest']:8.3f}")
    off = [row["schedule"] for row in rows if abs(row["ratio"] - 1) > WITHIN]
    print(f"{len(rows) - len(off)} of {len(rows)} within {WITHIN:.0%}" + (": not " + "; ".join(off) if off else ""))
    record.write({"ranks": RANKS, "micro_batches": MICRO_BATCHES, "repeats": options.repeats, "scale": SCALE,
                  "real_time": real_time, "load_after": os.getloadavg()[0], "rows": rows})
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
