"""Weft against every known schedule on a generated suite: is it ever worse, how often better, and by how much?

    python experiments/never_worse.py [--count 540] [--effort 0.3] [--seed 0] [--processes 2]

Combinations of shape (V, M, NN, K, a V with two chunks a device, a loop), stages (uniform, embedding first, heavy
head, mixed layers), transfers (none, lags, exclusive links), backward (full, split) and cap (tight to unlimited)
in a shuffled order; devices (2 to 8), micro-batches (4 to 16) and numbers are drawn from the seed. A baseline counts
where the judge passes it, memory included. Weft's search starts from these baselines, so "never worse" checks the
engine, and the gain says what the search adds. Writes never_worse/suite.json and never_worse/gain.png.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import altair as alt
import vl_convert

from solver.baselines import BASELINES, NotApplicable, baseline
from solver.files import write_atomically
from solver.problem import Block, BlockKind, Dependency, Device, Link, Problem
from solver.schedule import RELATIVE_TOLERANCE
from solver.search import solve
from solver.timing import DeadlockError
from solver.validate import InvalidSchedule, validate, violations
from weft.comparison import SEARCHES
from weft.figures.style import FONT, INK, MUTED

HOME = Path(__file__).with_suffix("")
SHAPES = ("V", "M", "NN", "K", "V2", "loop2")
STAGES = ("uniform", "embedding", "head", "mixed")
TRANSFERS = ("none", "lags", "links")
BACKWARDS = ("full", "split")
#: The cap as a share of the way from one micro-batch at a time to one for each device in flight; None: unlimited.
CAPS = (0.0, 0.35, 0.7, 1.0, None)
#: The device of each stage in model order, None for a stage on all devices.
Places: TypeAlias = Sequence[int | None]


@dataclass(frozen=True)
class Instance:
    """What one problem of the suite is drawn from."""

    number: int
    shape: str
    stages: str
    transfers: str
    backward: str
    cap: float | None
    seed: int

    @property
    def family(self) -> dict[str, str]:
        """What the results are grouped by."""
        return {"shape": self.shape, "stages": self.stages, "transfers": self.transfers, "backward": self.backward,
                "cap": "unlimited" if self.cap is None else f"{self.cap:g}"}


@dataclass
class _Builder:
    """The blocks of one micro-batch; durations in ticks, memory in units (a stage's activations take about 6)."""

    drawn: Instance
    draw: random.Random
    devices: int
    blocks: list[Block] = field(default_factory=list)
    links: dict[tuple[int, int], Link] = field(default_factory=dict)
    costs: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    transfer: int = 0

    def forwards(self, path: Places, after: tuple[str, ...] = (), tower: str = "", chunks: int = 1) -> str:
        """Forwards along ``path``; the name of the last."""
        where: int | None = None
        for s, device in enumerate(path):
            name = f"{tower}{s}"
            if device is None:
                after = (self._everywhere(f"E{name}", BlockKind.FORWARD, 30, after),)
            else:
                forward, _, memory = self.costs[name] = self._cost(s == 0, s == len(path) - 1, chunks)
                after = (self._add(f"F{name}", BlockKind.FORWARD, device, forward, memory, after, where),)
            where = device
        return after[0]

    def backwards(self, path: Places, last: str, tower: str = "") -> None:
        """Gradients back along ``path``, the first after ``last``."""
        where: int | None = None
        for s, device in reversed([*enumerate(path)]):
            name = f"{tower}{s}"
            if device is None:
                last = self._everywhere(f"D{name}", BlockKind.BACKWARD, 60, (last,))
            else:
                last = self._gradient(name, device, last, where)
            where = device

    def _cost(self, first: bool, last: bool, chunks: int) -> tuple[int, int, int]:
        """Forward and backward duration and activations of a stage."""
        forward, ratio, memory = 100.0, 2.0, 6
        if self.drawn.stages == "embedding" and first:
            forward, memory = forward * self.draw.uniform(1.2, 1.8), 8
        elif self.drawn.stages == "head" and last:
            forward *= self.draw.uniform(1.3, 2.0)
        elif self.drawn.stages == "mixed":
            forward, ratio, memory = self.draw.uniform(60, 140), self.draw.uniform(1.7, 2.4), self.draw.randint(4, 8)
        return round(forward / chunks), round(ratio * forward / chunks), memory

    def _gradient(self, name: str, device: int, last: str, where: int | None) -> str:
        """The stage's full backward, or its input gradient with the weight gradient behind it."""
        _, duration, memory = self.costs[name]
        if self.drawn.backward == "full":
            return self._add(f"B{name}", BlockKind.BACKWARD, device, duration, -memory, (last,), where)
        half = duration // 2
        self._add(f"I{name}", BlockKind.INPUT_GRAD, device, duration - half, -(memory // 3), (last,), where)
        self._add(f"W{name}", BlockKind.WEIGHT_GRAD, device, half, memory // 3 - memory, (f"I{name}",), device)
        return f"I{name}"

    def _everywhere(self, name: str, kind: BlockKind, duration: int, after: tuple[str, ...]) -> str:
        self.blocks.append(Block(name, kind, tuple(range(self.devices)), duration, (0,), (),
                                 tuple(Dependency(block) for block in after)))
        return name

    def _add(self, name: str, kind: BlockKind, device: int, duration: int, memory: int, after: tuple[str, ...],
             where: int | None) -> str:
        """A block on one device; a transfer lies before it if what it waits for ran on one other device, ``where``."""
        lag, link = 0, None
        if where not in (None, device) and self.transfer:
            lag = round(self.transfer * self.draw.uniform(0.7, 1.3))
            if self.drawn.transfers == "links":
                assert where is not None
                link = self.links.setdefault((where, device), Link(f"{where} to {device}", where, device)).name
        self.blocks.append(Block(name, kind, (device,), duration, (memory,), (),
                                 tuple(Dependency(block, lag, link) for block in after)))
        return name


def problem(drawn: Instance) -> tuple[Problem, int]:
    """The problem and its number of micro-batches."""
    draw = random.Random(drawn.seed)
    devices, micro_batches = draw.randint(2, 8), draw.randint(4, 16)
    if drawn.shape == "K":
        devices += devices % 2
    if drawn.shape == "loop2" and draw.random() < 0.5:  # as interleaved 1F1B wants them, a multiple of the devices
        micro_batches = devices * max(1 if devices >= 4 else 2, micro_batches // devices)
    build = _Builder(drawn, draw, devices)
    build.transfer = {"none": 0, "lags": draw.randint(5, 40), "links": draw.randint(20, 80)}[drawn.transfers]
    _fill(build)
    one = max(sum(max(block.memory_on(d), 0) for block in build.blocks) for d in range(devices))
    memory = None if drawn.cap is None else round(one * (1 + (devices - 1) * drawn.cap))
    name = (f"#{drawn.number}: {drawn.shape} on {devices}, {drawn.stages} stages, transfers: {drawn.transfers}, "
            f"{drawn.backward} backward, {'no cap' if memory is None else f'cap {memory}'}, N = {micro_batches}")
    gpus = tuple(Device(f"gpu{d}", memory) for d in range(devices))
    return Problem(name, gpus, tuple(build.blocks), tuple(build.links.values()), "tick", "unit"), micro_batches


def _fill(build: _Builder) -> None:
    p = build.devices
    if build.drawn.shape == "K":  # two towers that join on all devices
        towers: dict[str, Places] = {"a": range(p // 2), "b": range(p // 2, p)}
        ends = tuple(build.forwards(places, tower=tower) for tower, places in towers.items())
        build.forwards((None,), ends, "joined")
        build.backwards((None,), "Ejoined0", "joined")
        for tower, places in towers.items():
            build.backwards(places, "Djoined0", tower)
        return
    path: Places = {
        "V": (*range(p),),
        "M": (None, *range(p)),  # an embedding on all devices
        "NN": (None, *range(p // 2), None, *range(p // 2, p)),  # one for the encoder and one for the decoder
        "V2": (*range(p), *reversed(range(p))),
        "loop2": (*range(p), *range(p)),
    }[build.drawn.shape]
    build.backwards(path, build.forwards(path, chunks=2 if build.drawn.shape in ("V2", "loop2") else 1))


def suite(count: int, seed: int) -> list[Instance]:
    """``count`` instances through the combinations of the families, shuffled."""
    draw = random.Random(seed)
    every = [*itertools.product(SHAPES, STAGES, TRANSFERS, BACKWARDS, CAPS)]
    draw.shuffle(every)
    return [Instance(number, *drawn, seed=draw.randrange(2**32))
            for number, drawn in enumerate(itertools.islice(itertools.cycle(every), count))]


def compare(drawn: Instance, effort: float) -> dict[str, Any]:
    """One instance: weft's makespan and those of all baselines that fit."""
    began = time.perf_counter()
    case, micro_batches = problem(drawn)
    rivals: dict[str, float] = {}
    misfits: list[str] = []
    broken: dict[str, str] = {}
    for name in BASELINES:
        try:
            schedule = baseline(name, case, micro_batches)
        except NotApplicable:
            continue
        except (DeadlockError, InvalidSchedule) as error:
            broken[name] = str(error)
            continue
        if violations(schedule, limit=1):
            misfits.append(name)
        else:
            rivals[name] = schedule.makespan
    baselines_took = time.perf_counter() - began
    row: dict[str, Any] = {"name": case.name, **drawn.family, "seed": drawn.seed, "rivals": rivals,
                           "do_not_fit": misfits, "broken_baselines": broken}
    try:
        own = solve(case, micro_batches, time_limit=30.0, effort=effort)
        validate(own)
    except Exception as error:  # whatever goes wrong belongs in the tally, and the suite goes on
        return {**row, "weft": None, "error": f"{type(error).__name__}: {error}"}
    return {**row, "weft": own.makespan, "bound": own.makespan_bound, "proven": own.gap == 0,
            "found_by": own.solver["name"], "seconds": round(time.perf_counter() - began, 2),
            "baseline_seconds": round(baselines_took, 2)}


def judge(row: dict[str, Any]) -> dict[str, Any]:
    """``row`` with weft's gain over the best of all baselines and over the best fixed schedule that fit.

    A gain is the share of the rival's makespan that weft saves; negative where the rival is better.
    """
    def best(rivals: dict[str, float]) -> tuple[str | None, float | None]:
        if not rivals:
            return None, None
        name = min(rivals, key=lambda rival: rivals[rival])
        if row["weft"] is None:
            return name, None
        gain = 1 - row["weft"] / rivals[name]
        return name, 0.0 if abs(gain) <= RELATIVE_TOLERANCE else gain

    over_all = best(row["rivals"])
    over_fixed = best({name: makespan for name, makespan in row["rivals"].items() if name not in SEARCHES})
    return {**row, "best_baseline": over_all[0], "gain": over_all[1], "best_fixed": over_fixed[0],
            "gain_over_fixed": over_fixed[1]}


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts and gains of ``rows``, all together and per family."""
    families = {label: {value: _counts([row for row in rows if row[label] == value])
                        for value in dict.fromkeys(row[label] for row in rows)}
                for label in ("shape", "stages", "transfers", "backward", "cap")}
    unequal = [row for row in rows if row["stages"] != "uniform"]
    worse = [row["name"] for row in rows if (row["gain"] or 0) < 0]
    open_ties = sorted(((row["weft"] / row["bound"] - 1, row["name"]) for row in rows
                        if row["gain"] == 0 and not row["proven"]), reverse=True)
    return {"all": _counts(rows), "unequal_stages": _counts(unequal), **families, "worse": worse,
            "failed": [{"name": row["name"], "error": row["error"]} for row in rows if row["weft"] is None],
            "broken_baselines": {name: sum(name in row["broken_baselines"] for row in rows) for name in BASELINES
                                 if any(name in row["broken_baselines"] for row in rows)},
            "widest_open_ties": open_ties[:5],
            "largest_gains": sorted(((row["gain"] or 0, row["name"]) for row in rows), reverse=True)[:5],
            "slowest": max((row.get("seconds", 0), row["name"]) for row in rows)}


def _counts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    counts: dict[str, Any] = {"problems": len(rows), "proven_optimal": sum(row.get("proven", False) for row in rows)}
    for label, key in (("all_baselines", "gain"), ("fixed_schedules", "gain_over_fixed")):
        gains = sorted(row[key] for row in rows if row[key] is not None)
        if not gains:
            counts[label] = {"with_a_rival": 0}
            continue
        counts[label] = {
            "with_a_rival": len(gains), "worse": sum(gain < 0 for gain in gains),
            "tied": sum(gain == 0 for gain in gains), "better": sum(gain > 0 for gain in gains),
            "tied_and_proven": sum(row[key] == 0 and row.get("proven", False) for row in rows),
            "share_better": round(sum(gain > 0 for gain in gains) / len(gains), 4),
            "median_gain": round(statistics.median(gains), 5), "mean_gain": round(statistics.fmean(gains), 5),
            "ninth_decile": round(gains[int(0.9 * (len(gains) - 1))], 5), "largest": round(gains[-1], 5)}
    return counts


# -- the picture -------------------------------------------------------------------------------------------------

_BINS = ("worse", "tied, optimal", "tied, open", "0–1", "1–2", "2–3", "3–4", "4–5", "5–7.5", "7.5–10", "10–15", "15–20",
         "20–30", "over 30")
_EDGES = (0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)
_CLASSES = {"unequal stages": "#0072B2", "uniform stages": "#9ccbe8"}


def picture(rows: list[dict[str, Any]]) -> alt.VConcatChart:
    """Two histograms of the gain over each other: over the best of all baselines, over the best fixed schedule."""
    panels = [_histogram(rows, "gain", "Over the best of all baselines that fit, searches among them"),
              _histogram(rows, "gain_over_fixed", "Over the best fixed schedule that fits")]
    counts = summarise(rows)
    better, total = counts["all"]["all_baselines"]["better"], counts["all"]["all_baselines"]["with_a_rival"]
    uneven = counts["unequal_stages"]["all_baselines"]
    heading = alt.TitleParams(
        f"Makespan that weft saves on {len(rows)} generated problems", anchor="start", fontSize=14, color=INK,
        subtitle=[f"Worse than a baseline on {len(counts['worse'])}, failed on {len(counts['failed'])}; "
                  f"strictly better than the best of all on {better} of {total}, with unequal stages on "
                  f"{uneven['better']} of {uneven['with_a_rival']}. "
                  f"{counts['all']['proven_optimal']} makespans are proven optimal."],
        subtitleColor=MUTED, subtitleFontSize=11, subtitlePadding=4, offset=10)
    chart: alt.VConcatChart = alt.vconcat(*panels, spacing=18, title=heading).configure(
        font=FONT, background="white", padding=12, view=alt.ViewConfig(stroke=None))
    return chart


def _histogram(rows: list[dict[str, Any]], key: str, title: str) -> alt.LayerChart:
    tally = {(name, label): 0 for name in _CLASSES for label in _BINS}
    for row in rows:
        if row[key] is not None:
            tally["uniform stages" if row["stages"] == "uniform" else "unequal stages", _bin(row, key)] += 1
    bars = [{"class": name, "bin": label, "problems": count, "place": i}
            for i, ((name, label), count) in enumerate(tally.items())]
    totals = [{"bin": label, "problems": sum(tally[name, label] for name in _CLASSES)} for label in _BINS]
    ink: dict[str, Any] = {"domainColor": "#888888", "tickColor": "#888888", "labelColor": INK, "titleColor": INK,
                           "labelFontSize": 10, "titleFontSize": 11, "titleFontWeight": "normal"}
    x = alt.X("bin:N", sort=list(_BINS), axis=alt.Axis(title="makespan saved (%)", labelAngle=0, **ink))
    y = alt.Y("problems:Q", axis=alt.Axis(title="problems", tickMinStep=1, gridColor="#eeeeee", **ink))
    colour = alt.Color("class:N", scale=alt.Scale(domain=list(_CLASSES), range=list(_CLASSES.values())),
                       legend=alt.Legend(title=None, orient="top-right", labelColor=INK, labelFontSize=11))
    chart = alt.Chart(alt.InlineData(values=bars)).mark_bar().encode(x=x, y=y, color=colour, order="place:Q")
    labels = alt.Chart(alt.InlineData(values=totals)).mark_text(dy=-6, fontSize=10, color=INK).encode(
        x=x, y=y, text="problems:Q")
    heading = alt.TitleParams(f"{title} ({sum(tally.values())} problems)", anchor="start", fontSize=12, color=INK)
    return alt.LayerChart(layer=[chart, labels], width=780, height=190, title=heading)


def _bin(row: dict[str, Any], key: str) -> str:
    gain: float = row[key]
    if gain == 0:
        return "tied, optimal" if row["proven"] else "tied, open"
    return "worse" if gain < 0 else _BINS[3 + sum(gain > edge for edge in _EDGES)]


def _work(task: tuple[Instance, float]) -> dict[str, Any]:
    return judge(compare(*task))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--count", default=540, type=int)
    arguments.add_argument("--effort", default=0.3, type=float, help="deterministic seconds for each problem")
    arguments.add_argument("--seed", default=0, type=int)
    arguments.add_argument("--processes", default=2, type=int)
    arguments.add_argument("--output", default=HOME, type=Path, help="the folder to write to")
    options = arguments.parse_args()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.processes) as pool:
        tasks = [(drawn, options.effort) for drawn in suite(options.count, options.seed)]
        for row in pool.map(_work, tasks):
            rows.append(row)
            if (row["gain"] or 0) < 0 or row["weft"] is None:
                print(f"{row['name']}: weft {row.get('error', row['weft'])}, best baseline {row['best_baseline']}",
                      flush=True)
            if len(rows) % 50 == 0:
                print(f"{len(rows)} of {len(tasks)}", flush=True)
    summary = summarise(rows)
    print(json.dumps(summary, indent=1))
    options.output.mkdir(parents=True, exist_ok=True)
    stated = {"effort": options.effort, "seed": options.seed, "summary": summary, "rows": rows}
    write_atomically(options.output / "suite.json", json.dumps(stated, indent=1) + "\n")
    draw(rows, options.output / "gain.png")


def draw(rows: list[dict[str, Any]], target: Path) -> None:
    """Write :func:`picture` as a PNG."""
    specification = json.dumps(picture(rows).to_dict())
    target.write_bytes(vl_convert.vegalite_to_png(specification, vl_version=alt.SCHEMA_VERSION.rpartition(".")[0],
                                                  scale=2.0))


if __name__ == "__main__":
    main()
