"""DynaPipe's setting: 16 micro-batches whose sequences have different length, on 4 devices; in which order they run.

    python -m experiments.step.lengths [--draws 3] [--seconds 60]

GPT-1.3B on 4 A100 (40 GB), costs modelled at each length (roofline), one stage a GPU and a V. The lengths are drawn as
those of instruction tuning are spread (FLAN: most samples are short, few are long): log-normal with a median of 300
tokens and a sigma of 1, in steps of 64 from 64 to 2,048; one draw a seed. For each draw: the best known schedule and
DynaPipe's cycles in the order drawn; DynaPipe's cycles with the best of the injections that it tries; weft in the order
drawn, and weft with the order searched (--reorder), both with the bound over the same placements. Writes lengths.json.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import weft
from experiments.lib.provenance import RESULTS, Record
from weft.app.lib.case import Case, case_of
from weft.app.lib.options import SearchOptions
from weft.models.spec.spec import Spec, parse_spec
from weft.solver.baselines import NotApplicable
from weft.solver.baselines.dynapipe import injections
from weft.solver.baselines.on_rounds import baseline_on_rounds, best_on_rounds
from weft.solver.choices.sequences.costs import Costs
from weft.solver.choices.sequences.node import rounds_of
from weft.solver.judge.validate import violations
from weft.solver.schedule import Schedule

DEVICES, MICRO_BATCHES = 4, 16
_MEDIAN, _SIGMA, _STEP, _MOST = 300, 1.0, 64, 2048


@dataclass(frozen=True)
class Setting:
    """A draw of lengths, and the memory of a GPU."""

    seed: int
    memory: str
    micro_batches: int = MICRO_BATCHES

    @property
    def lengths(self) -> list[int]:
        """Tokens of each micro-batch."""
        draw = random.Random(self.seed)
        drawn = (draw.lognormvariate(0, _SIGMA) * _MEDIAN for _ in range(self.micro_batches))
        return [min(_MOST, max(_STEP, round(tokens / _STEP) * _STEP)) for tokens in drawn]

    @property
    def spec(self) -> Spec:
        """The model on its GPUs with these lengths."""
        return parse_spec(f"""
name: GPT-1.3B, {self.micro_batches} lengths
model: {{family: gpt, layers: 24, hidden: 2048, heads: 32, vocabulary: 51200, sequence: {_MOST}}}
cluster: {{gpus: {DEVICES}, memory: {self.memory}, device: a100-40gb}}
training: {{lengths: {self.lengths}}}
placement: {{shapes: [chain, v], backward: [full]}}
""")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each of weft's two searches")
    parser.add_argument("--memories", nargs="+", default=["40 GiB", "16 GiB"])
    parser.add_argument("--micro-batches", type=int, default=MICRO_BATCHES)
    parser.add_argument("--output", type=Path, default=RESULTS / "lengths.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows = [_measure(Setting(seed, memory, options.micro_batches), options.seconds) for memory in options.memories
            for seed in range(options.draws)]
    _show(rows)
    better = [1 - row["weft, reordered"]["ms"] / row["DynaPipe, its order"]["ms"] for row in rows]
    gain = [1 - row["weft, reordered"]["ms"] / row["weft, as given"]["ms"] for row in rows]
    record.write({"seconds": options.seconds, "devices": DEVICES, "micro_batches": options.micro_batches, "summary": {
        "settings": len(rows), "mean share below DynaPipe's order": round(sum(better) / len(better), 4),
        "mean share gained by order": round(sum(gain) / len(gain), 4),
        "widest gap, as given": max(row["weft, as given"]["gap"] for row in rows),
        "widest gap, reordered": max(row["weft, reordered"]["gap"] for row in rows)}, "rows": rows})
    return 0


def _measure(setting: Setting, seconds: float) -> dict[str, Any]:
    case = case_of(setting.spec)
    row: dict[str, Any] = {"seed": setting.seed, "memory": setting.memory, "lengths": setting.lengths}
    row["best known, as given"] = _shown(_least(case, known=True))
    row["DynaPipe, as given"] = _shown(_least(case, known=False))
    row["DynaPipe, its order"] = _shown(_injected(case))
    for name, reorder in (("weft, as given", False), ("weft, reordered", True)):
        began = time.process_time()
        found = weft.solve(setting.spec, options=SearchOptions(time_limit=seconds, reorder=reorder))
        row[name] = {**_shown(found), "cpu_seconds": round(time.process_time() - began, 1)}
    return row


def _least(case: Case, *, known: bool) -> Schedule | None:
    """The best known schedule of all placements that fits, or the best of DynaPipe's."""
    found = []
    for placement in case.placements:
        assert placement.rounds is not None
        if known:
            found.append(best_on_rounds(placement.rounds))
        else:
            try:
                found.append(baseline_on_rounds("dynapipe", placement.rounds))
            except NotApplicable:
                continue
    return _shortest(found)


def _injected(case: Case) -> Schedule | None:
    """DynaPipe's schedule in the best order that it tries."""
    found: list[Schedule | None] = []
    for placement in case.placements:
        rounds = placement.rounds
        assert rounds is not None
        classes = rounds.run.classes[None]
        costs = Costs(rounds.wide)
        for order in injections([costs.work(None, name) for name in classes]):
            try:
                found.append(baseline_on_rounds("dynapipe", rounds_of(rounds.wide,
                                                                      {None: tuple(classes[m] for m in order)})))
            except NotApplicable:
                continue
    return _shortest(found)


def _shortest(schedules: Sequence[Schedule | None]) -> Schedule | None:
    fitting = [schedule for schedule in schedules if schedule is not None and not violations(schedule, limit=1)]
    return min(fitting, key=lambda schedule: schedule.makespan, default=None)


def _shown(found: Schedule | None) -> dict[str, Any]:
    if found is None:
        return {"ms": None}
    shown: dict[str, Any] = {"ms": round(found.makespan * 1e3, 3)}
    if "name" in found.solver and found.solver["name"] != "weft" and not found.makespan_bound:
        return {**shown, "schedule": found.solver["name"]}
    bound = min(found.makespan_bound, float(found.solver.get("bound_over_placements", found.makespan_bound)))
    return {**shown, "bound": round(bound * 1e3, 3), "gap": round(found.makespan / bound - 1, 4),
            "placement": found.solver.get("placement"),
            "order": None if found.rounds is None else list(map(str, found.rounds.run.classes[None]))}


def _show(rows: list[dict[str, Any]]) -> None:
    names = [name for name in rows[0] if name not in ("seed", "memory", "lengths")]
    table = Table(title="ms per step (gap to the bound over the placements)")
    for header in ("memory", "seed", *names):
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(row["memory"], str(row["seed"]), *(_cell(row[name]) for name in names))
    Console(width=160).print(table)


def _cell(entry: dict[str, Any]) -> str:
    if entry["ms"] is None:
        return "-"
    return f"{entry['ms']:.1f}" + (f" ({entry['gap']:.1%})" if "gap" in entry else "")


if __name__ == "__main__":
    raise SystemExit(main())
