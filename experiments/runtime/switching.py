"""Do plans of a family change places where it says? Every plan at every part's costs, emulated on four ranks.

A training whose sequences grow: ``weft.family`` says which plan runs when. Each schedule of its table, that of every
plan at the costs of every part, is run by the executor on four processes whose blocks sleep, all times stretched so
that a step takes so many seconds; the shortest path over what these took says when to switch, too. Writes
``switching.json``.

    python -m experiments.runtime.switching
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import weft
from experiments.lib.provenance import begun
from weft.app.family.result import Family
from weft.models.spec.spec import parse_spec
from weft.runtime.plan.plan import load_plan, plan_of, save_plan
from weft.runtime.ranks.launch import launch_local
from weft.solver.switching import best_switching

RANKS = 4
SPEC = """
model: {family: gpt, layers: 8, hidden: 1024, heads: 16, vocabulary: 51200, sequence: 512}
cluster: {gpus: 4, device: a100, memory: 12 GiB}
training: {micro_batches: 4}
placement: {shapes: [chain, v], backward: [full]}
phases:
  steps: 20000
  sequence: [[0, 512], [5000, 4096], [10000, 512], [15000, 4096]]
  micro_batches: [[0, 4], [5000, 16], [10000, 16], [15000, 4]]
"""


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


def emulate(folder: Path, seconds: float) -> None:
    """What one rank does: every plan in ``folder``, one after another, each stretched to take so many ``seconds``."""
    from weft.runtime.ranks.session import join
    from weft.runtime.replay.run import run_emulated

    with join(300.0) as session:
        found = {}
        for path in sorted(folder.glob("plan-*.json")):
            plan = load_plan(path)
            replay = run_emulated(plan, session, seconds / plan.makespan)
            if replay is not None:
                found[path.stem] = replay.timeline.makespan / seconds
        if session.rank == 0:
            (folder / "found.json").write_text(json.dumps(found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve, emulate, print and write."""
    options, record = begun(__doc__, arguments, "switching.json", solve=5.0, seconds=15.0, rank=Path)
    if options.rank is not None:
        emulate(options.rank, options.seconds)
        return 0
    family = weft.family(parse_spec(SPEC), time_limit=options.solve, cache=None, workers=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i, row in enumerate(family.every):
            for plan, schedule in enumerate(row):
                if schedule is not None:
                    save_plan(plan_of(schedule), folder / f"plan-{i}-{plan}.json")
        ended = launch_local(RANKS, [sys.executable, "-m", __spec__.name, "--rank", name, "--seconds",
                                     str(options.seconds)], timeout=3600.0)
        if any(end.code for end in ended):
            raise SystemExit(ended[0].errors[-500:])
        found: dict[str, float] = json.loads((folder / "found.json").read_text())
    emulated = [[time * found.get(f"plan-{i}-{plan}", 1.0) for plan, time in enumerate(part.step_times)]
                for i, part in enumerate(family.parts)]
    rows: list[dict[str, Any]] = [
        {"first": part.first, **part.values, "plan": family.plans[plan].title, "predicted": round(time, 6),
         "emulated": round(emulated[i][plan], 6), "apart": round(found[f"plan-{i}-{plan}"] - 1, 5)}
        for i, part in enumerate(family.parts) for plan, time in enumerate(part.step_times)
        if f"plan-{i}-{plan}" in found]
    record.write({
        "seconds": options.seconds, "largest": max(abs(row["apart"]) for row in rows), "rows": rows,
        "predicted_switches": switch_steps(family, [part.step_times for part in family.parts]),
        "emulated_switches": switch_steps(family, emulated)})
    print(options.output.read_text())
    return 0


if __name__ == "__main__":
    main()
