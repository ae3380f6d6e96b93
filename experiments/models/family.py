"""What switching plans brings while costs change, beside the bound and the best single plan.

Each case of ``experiments/data/families.yaml`` is a spec with phases, modelled. Seconds of a whole training: of the
family, of the bound (each part's best plan and free switches), of the best single plan. Writes ``family.json``.

``--emulated``: do plans change places where it says? Each schedule of a small family's table, that of every plan at the
costs of every part, is run by the executor on four processes whose blocks sleep, all times stretched so that a step
takes so many seconds; the shortest path over what these took says when to switch, too. Writes ``switching.json``.

    python -m experiments.models.family [--only TEXT] [--seconds 8]
    python -m experiments.models.family --emulated [--step 15]
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import weft
from experiments.lib.provenance import Record, Row, given
from experiments.lib.script import on_ranks, script
from weft.app.family.result import Family
from weft.models.spec.spec import parse_spec
from weft.runtime.plan.plan import load_plan, plan_of, save_plan
from weft.solver.switching import best_switching

RANKS, EMULATED = 4, "emulated"
CASES: Row = given("families.yaml")


def family_of(name: str, seconds: float) -> Family:
    """Its plans, with so many seconds for each solve."""
    return weft.family(parse_spec(json.dumps(CASES[name])), time_limit=seconds, cache=None, workers=1)


def row(name: str, seconds: float) -> Row:
    """One case, in seconds."""
    began = time.process_time()
    found = family_of(name, seconds)
    best = found.best_fixed
    return {"case": name, "total": round(found.total, 3), "bound": round(found.bound, 3),
            "above_bound": round(found.total / found.bound - 1, 6), "plans": len(found.plans),
            "alone_total": None if best is None else round(found.fixed[best], 3),
            "saved": None if best is None else round(1 - found.total / found.fixed[best], 5),
            "parts": [{"first": part.first, **part.values, "plan": found.plans[part.plan].title,
                       "step_time": round(part.step_time, 6)} for part in found.parts],
            "switches": [{"step": switch.step, "bytes": switch.bytes, "transfer": switch.seconds}
                         for switch in found.switches],
            "cpu_seconds": round(time.process_time() - began, 1)}


# -- emulated ----------------------------------------------------------------------------------------------------------


def switch_steps(family: Family, times: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """The first step and the plan of each part in which another one begins, by these times of a step."""
    seconds = {(switch.before, switch.after): switch.seconds for switch in family.switches}
    count = len(family.plans)
    moves = [[seconds.get((a, b), 0.0) for b in range(count)] for a in range(count)]
    path = best_switching([[(part.last - part.first) * time for time in row]
                           for part, row in zip(family.parts, times, strict=True)], moves)
    assert path is not None
    return [(part.first, plan) for i, (part, plan) in enumerate(zip(family.parts, path.plans, strict=True))
            if not i or plan != path.plans[i - 1]]


def emulate(folder: str, seconds: float) -> dict[str, float]:
    """What one rank does: every plan in ``folder``, one after another, each stretched to take so many ``seconds``;
    what it took over these."""
    from weft.runtime.ranks.session import join
    from weft.runtime.replay.run import run_emulated

    found = {}
    with join(300.0) as session:
        for path in sorted(Path(folder).glob("plan-*.json")):
            plan = load_plan(path)
            replay = run_emulated(plan, session, seconds / plan.makespan)
            if replay is not None:
                found[path.stem] = replay.timeline.makespan / seconds
    return found


def emulated(solve: float, seconds: float) -> Row:
    """All plans at all costs."""
    family = family_of(EMULATED, solve)
    with tempfile.TemporaryDirectory() as folder:
        for i, row in enumerate(family.every):
            for plan, schedule in enumerate(row):
                if schedule is not None:
                    save_plan(plan_of(schedule), Path(folder) / f"plan-{i}-{plan}.json")
        found, *_ = on_ranks(emulate, RANKS, folder, seconds, timeout=3600.0)
    times = [[time * found.get(f"plan-{i}-{plan}", 1.0) for plan, time in enumerate(part.step_times)]
             for i, part in enumerate(family.parts)]
    rows = [{"first": part.first, **part.values, "plan": family.plans[plan].title, "predicted": round(time, 6),
             "emulated": round(times[i][plan], 6), "apart": round(found[f"plan-{i}-{plan}"] - 1, 5)}
            for i, part in enumerate(family.parts) for plan, time in enumerate(part.step_times)
            if f"plan-{i}-{plan}" in found]
    return {"seconds": seconds, "largest": max(abs(row["apart"]) for row in rows), "rows": rows,
            "predicted_switches": switch_steps(family, [part.step_times for part in family.parts]),
            "emulated_switches": switch_steps(family, times)}


@script(lambda asked: "switching.json" if asked.emulated else "family.json", only="", seconds=8.0, emulated=False,
        solve=5.0, step=15.0)
def main(options: Namespace, record: Record) -> None:
    if options.emulated:
        record.write(emulated(options.solve, options.step))
        return
    record.rows((row(name, options.seconds) for name in CASES if options.only in name and name != EMULATED),
                seconds=options.seconds)
