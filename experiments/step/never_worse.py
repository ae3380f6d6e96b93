"""Weft against every known schedule on a generated suite: is it ever worse, how often better, and by how much?

    python -m experiments.step.never_worse [--count 540] [--effort 1] [--seed 0] [--processes 2]

The problems are those of :mod:`experiments.lib.generated`. A baseline counts where the judge passes it, memory
included. Weft's search starts from these baselines, so "never worse" checks the engine, and the gain says what the
search adds. Writes never_worse/suite.json and never_worse/gain.png.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from experiments.lib.generated import Instance, problem, suite
from experiments.lib.provenance import RESULTS, Record
from weft.app.lib.known import SEARCHES
from weft.figures.style import FONT, INK, MUTED
from weft.solver.baselines import BASELINES, NotApplicable, baseline
from weft.solver.control.parallel import mapped
from weft.solver.judge.validate import InvalidSchedule, validate, violations
from weft.solver.schedule import RELATIVE_TOLERANCE
from weft.solver.step.search import solve
from weft.solver.timing import DeadlockError

HOME = RESULTS / "never_worse"


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
        own = solve(case, micro_batches, time_limit=600.0, effort=effort)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve the suite, print, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", default=540, type=int)
    parser.add_argument("--effort", default=1.0, type=float, help="deterministic seconds for each problem")
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--processes", default=2, type=int)
    parser.add_argument("--output", default=HOME / "suite.json", type=Path, help="the picture is beside it")
    options = parser.parse_args(arguments)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    record = Record(options.output)
    rows: list[dict[str, Any]] = []
    tasks = [(drawn, options.effort) for drawn in suite(options.count, options.seed)]
    for row in mapped(_work, tasks, options.processes):
        rows.append(row)
        if (row["gain"] or 0) < 0 or row["weft"] is None:
            print(f"{row['name']}: weft {row.get('error', row['weft'])}, best baseline {row['best_baseline']}",
                  flush=True)
        if len(rows) % 50 == 0:
            print(f"{len(rows)} of {len(tasks)}", flush=True)
    summary = summarise(rows)
    print(json.dumps(summary, indent=1))
    record.write({"effort": options.effort, "seed": options.seed, "summary": summary, "rows": rows})
    draw(rows, options.output.with_name("gain.png"))
    return 0


def draw(rows: list[dict[str, Any]], target: Path) -> None:
    """Write :func:`picture` as a PNG."""
    specification = json.dumps(picture(rows).to_dict())
    target.write_bytes(vl_convert.vegalite_to_png(specification, vl_version=alt.SCHEMA_VERSION.rpartition(".")[0],
                                                  scale=2.0))


if __name__ == "__main__":
    main()
