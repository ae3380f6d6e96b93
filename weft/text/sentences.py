"""An explanation in words: lengths, idle time, periods, memory and the gains of changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.solver.diagnose.bubbles import CAUSES, Cause, DeviceIdle, Gap
from weft.solver.diagnose.critical_cycle import CriticalCycle
from weft.solver.diagnose.critical_path import CriticalPath
from weft.solver.diagnose.sensitivity import WhatIf
from weft.solver.feasibility.memory_conflict import InFlight
from weft.solver.names import Names
from weft.solver.problem import Number, Problem
from weft.solver.schedule import Operation, Schedule
from weft.text.counts import devices_text, listed, micro_batches_text
from weft.text.units import time_unit

#: Cause -> heading of its column.
_COLUMNS: Mapping[Cause, str] = {
    "warm_up": "warm-up", "dependency": "results", "transfer": "transfers", "device": "other devices",
    "memory": "memory", "order": "order", "cool_down": "cool-down"}

#: A chain of blocks longer than this is shown by its beginning and its end.
_MOST_NAMES = 12

#: With more devices than this only the busiest and the idlest are shown.
_MOST_ROWS, _BUSIEST = 16, 6

#: Longer lists are cut to this length.
_MOST_PARTS = 6

#: Smaller shares (of idle time, of gains) count as none.
_NOTHING = 5e-4


def capital(sentence: str) -> str:
    """``sentence`` with a capital first letter, unless it begins with a name."""
    return sentence[0].upper() + sentence[1:] if sentence.startswith("no ") else sentence


def length(schedule: Schedule, path: CriticalPath) -> list[str]:
    """The schedule's length and its causes."""
    problem = schedule.problem
    one = "no schedule of this placement" if schedule.solver.get("covered") else "no schedule"
    proof = (f"{one} is shorter (proven)" if schedule.gap == 0 else "no lower bound is known"
             if schedule.gap == float("inf") else
             f"{one} is shorter than {_time(problem, schedule.makespan_bound)} (gap {schedule.gap:.2%})")
    lines = [f"{problem.name}: {micro_batches_text(schedule)} on {devices_text(problem)} take "
             f"{_time(problem, schedule.makespan)}; {proof}."]
    work: dict[str, float] = {}
    for step in path.steps:
        if step.kind == "operation":
            name = _place(problem, problem.blocks[step.operation.block].devices)
            work[name] = work.get(name, 0.0) + step.length
    runs = [step for step in path.steps if step.kind == "operation"]
    moves = [step for step in path.steps if step.kind == "transfer"]
    slack = sum(step.length for step in path.steps if step.kind == "wait")
    total = path.length or 1.0
    shares = ", ".join(f"{name} {share / total:.0%}" for name, share in sorted(work.items(), key=lambda e: -e[1])[:4])
    sentence = (f"Critical path: {len(runs)} operation{'s' if len(runs) != 1 else ''} one after another"
                + (f" with {len(moves)} transfers ({sum(m.length for m in moves) / total:.0%} of the time)" if moves
                   else "") + f" fill all of that time ({shares}{' ...' if len(work) > 4 else ''}).")
    if slack > total * _NOTHING:
        sentence = sentence.replace("fill all of that time", f"and {_time(problem, slack)} in which nothing holds them "
                                                             "fill all of that time")
    lines.append(sentence)
    forced: dict[int, int] = {}
    for step in runs:
        if step.reason == "memory" and step.device is not None:
            forced[step.device] = forced.get(step.device, 0) + 1
    if forced:
        lines.append("On it, " + listed([f"{count} operation{'s wait' if count != 1 else ' waits'} until an earlier "
                                          f"one gives back memory of {problem.devices[device].name}"
                                          for device, count in forced.items()]) + ".")
    return lines


def idle(schedule: Schedule, devices: Sequence[DeviceIdle]) -> list[str]:
    """The location of idle time and its causes."""
    problem, makespan = schedule.problem, schedule.makespan
    whole = makespan * len(devices)
    if not whole:
        return []
    total = sum(entry.total for entry in devices)
    causes = {cause: sum(entry.by_cause[cause] for entry in devices) for cause in CAUSES}
    told = sorted((cause for cause in CAUSES if causes[cause] > whole * _NOTHING), key=lambda c: -causes[c])
    if not told:
        return ["No device is ever idle."]
    words: Mapping[Cause, str] = {
        "warm_up": "the pipeline to fill", "dependency": "other blocks' results", "transfer": "transfers",
        "device": "the other devices of a block", "memory": "memory to be given back",
        "order": "nothing but the order", "cool_down": "the rest to end after their last block"}
    which = "Devices" if not problem.has_lanes else "Devices (without lanes)"
    lines = [f"{which} are idle {total / whole:.1%} of the time, waiting for "
             + listed([f"{words[cause]} ({causes[cause] / whole:.1%})" for cause in told]) + "."]
    rows = [["", "busy", *(_COLUMNS[cause] for cause in told)]]
    shown = sorted(devices, key=lambda entry: (-entry.busy, entry.device))
    if len(shown) > _MOST_ROWS:
        lines.append(f"The {_BUSIEST} busiest devices and the {_MOST_ROWS - _BUSIEST} idlest of {len(devices)}:")
        shown = [*shown[:_BUSIEST], *shown[_BUSIEST - _MOST_ROWS:]]
    else:
        shown = list(devices)
    for entry in shown:
        rows.append([problem.devices[entry.device].name, f"{entry.busy / makespan:.1%}",
                     *(f"{entry.by_cause[cause] / makespan:.1%}" for cause in told)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines += ["  " + "  ".join(text.ljust(w) if not i else text.rjust(w)
                               for i, (text, w) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]
    for cause, tell in (("memory", _memory_wait), ("order", _order_wait)):
        worst = max(devices, key=lambda entry: entry.by_cause[cause])  # type: ignore[index]
        gaps = [gap for gap in worst.gaps if gap.cause == cause]
        if cause in told and gaps:
            lines.append(tell(schedule, worst, max(gaps, key=lambda gap: gap.length)))
    return lines


def _memory_wait(schedule: Schedule, entry: DeviceIdle, gap: Gap) -> str:
    problem, names = schedule.problem, Names(schedule)
    devices = () if gap.ready is None else problem.blocks[gap.ready.block].devices
    if problem.has_lanes:
        pools = {problem.pool_of[device] for device in devices}
        devices = tuple(d for d, pool in enumerate(problem.pool_of) if pool in pools)
    giver = next((operation for operation in schedule.operations if operation.start >= gap.start
                  and operation != gap.ready
                  and any(problem.blocks[operation.block].memory_on(device) < 0 for device in devices)), None)
    until = "" if giver is None else f" before {_operation(names, giver)} has given some back"
    return (f"{problem.devices[entry.device].name} waits {_time(problem, entry.by_cause['memory'])} for memory: at "
            f"{_time(problem, gap.start)}, for one, {_operation(names, gap.ready)} is ready but does not fit{until}.")


def _order_wait(schedule: Schedule, entry: DeviceIdle, gap: Gap) -> str:
    problem, names = schedule.problem, Names(schedule)
    end = " (and no order is shorter)" if schedule.gap == 0 else ""
    return (f"{problem.devices[entry.device].name} waits {_time(problem, entry.by_cause['order'])} while other work is "
            f"ready and fits: at {_time(problem, gap.start)}, for one, {_operation(names, gap.ready)} could run, but "
            f"this order keeps the device free for {_operation(names, gap.next)}{end}.")


def period(schedule: Schedule, cycle: CriticalCycle | None, held: Sequence[InFlight]) -> list[str]:
    """The causes of the period."""
    problem, named = schedule.problem, Names(schedule)
    if cycle is None:
        best = period_of(schedule)
        return ["Too little of this schedule repeats to have a steady state"
                + ("." if best is None else f"; the best one found takes {_time(problem, best)} per {named.period}.")]
    start = f"Period: {_time(problem, cycle.period)} per {named.period}. "
    if cycle.device is not None:
        return [f"{start}{problem.devices[cycle.device].name} is busy 100 % of each period: nothing but less work "
                "there shortens it."]
    if all(turn.reason == "link" for turn in cycle.waits):
        return [start + "A link is busy 100 % of each period: nothing but faster or fewer transfers on it shorten it."]
    names = [named.block(turn.source) for turn in cycle.waits]
    names = [name for i, name in enumerate(names) if name != names[i - 1]]  # a transfer is named by its producer
    if len(names) > _MOST_NAMES:
        names = [*names[:_MOST_NAMES // 2], f"... ({len(names) - _MOST_NAMES} more)", *names[-_MOST_NAMES // 2:]]
    chain = " -> ".join([*names, names[0]])
    apart = f" over {cycle.height} periods" if cycle.height != 1 else " in one period"
    lines = [f"{start}It is set by the cycle {chain}: {_time(problem, cycle.weight)}{apart}"
             + (f" of {cycle.micro_batches} {'micro-batches' if named.period == 'micro-batch' else 'rounds'} each"
                if cycle.micro_batches > 1 else "") + "."]
    by_memory = list(dict.fromkeys(turn.device for turn in cycle.waits if turn.reason == "memory"))
    by_order = list(dict.fromkeys(turn.device for turn in cycle.waits if turn.reason == "device"))
    limits = [f"{problem.devices[d].name}'s memory"
              + (f", which holds {held[d].most} micro-batch{'es' if held[d].most != 1 else ''} at once"
                 if held[d].most else "")
              for d in by_memory if d is not None]
    orders = [problem.devices[d].name for d in by_order if d is not None]
    if limits:
        lines.append(f"What closes the cycle is {listed(limits)}: more memory there, or shorter blocks or transfers "
                     "on the cycle, shorten it.")
    elif orders:
        lines.append(f"It runs through the order of work on {listed(orders)}: shorter blocks or transfers on the "
                     "cycle shorten it.")
    else:
        lines.append("Each micro-batch waits for the one before it: shorter blocks or transfers on the cycle shorten "
                     "it.")
    return lines


def flight(problem: Problem, held: Sequence[InFlight], wanted: int) -> str:
    """Whether the given number of micro-batches fits in flight at once."""
    short = [entry for entry in held if entry.most is not None and entry.most < wanted]
    if not short:
        return f"All devices' memory holds {wanted} micro-batches at once."
    alike: dict[str, list[str]] = {}
    for entry in short:
        device = problem.devices[entry.device]
        needed = entry.needed(wanted)
        alike.setdefault(f"{entry.most}, {wanted} would need {_memory(problem, needed)}, "
                         f"{_memory(problem, needed - (device.memory or 0))} more than it has", []).append(device.name)
    return f"{wanted} micro-batches do not fit at once: " + "; ".join(
        f"the memory of {listed(_some(names))} holds {what}" if len(names) == 1 else
        f"the memory of each of {listed(_some(names))} holds {what}" for what, names in alike.items()) + "."


def gains(schedule: Schedule, found: WhatIf) -> list[str]:
    """The gain of each change, against the same schedule after a further search of the same effort."""
    problem, base = schedule.problem, found.unchanged
    lines = [f"What if (against {_time(problem, base.makespan)}"
             + (", which the same search makes of this schedule as it is" if base.makespan < schedule.makespan else "")
             + "; every figure is a valid schedule, in parentheses a lower bound for any):"]
    rows = []
    for figure in found.figures:
        best = figure.schedule
        share = best.makespan / base.makespan - 1 if base.makespan else 0.0
        if share >= -_NOTHING:
            continue
        periods = period_of(base), figure.period
        told = [None if value is None else _time(problem, value) for value in periods]
        step = "" if None in told or told[0] == told[1] else f"period {told[0]} -> {told[1]}"
        rows.append([figure.change.title, _time(problem, best.makespan), f"{share:+.1%}".replace("-", "−"),
                     f"({_time(problem, best.makespan_bound)})",
                     "re-solved" if figure.resolved else "same order", step])
    fewer = len(rows) - _MOST_ROWS
    rows = rows[:_MOST_ROWS]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(6)]
    lines += ["  " + "  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    if fewer > 0:
        lines.append(f"  {fewer} more give less")
    nothing = [figure.change.title for figure in found.figures
               if figure.schedule.makespan >= base.makespan * (1 - _NOTHING)]
    if nothing:
        lines.append("  no gain found: " + listed(_some(nothing)))
    if found.untried:
        lines.append(f"  not tried: {len(found.untried)} more")
    return lines


def period_of(schedule: Schedule) -> float | None:
    """Time per micro-batch in the schedule's steady state, or in the best repetend its search found."""
    if schedule.period is not None:
        return schedule.period
    found = schedule.solver.get("repetend_period")
    return float(found) if isinstance(found, (int, float)) else None


# -- words ---------------------------------------------------------------------------------------------------------


def _time(problem: Problem, value: float) -> str:
    return time_unit(problem, 10 * abs(value)).show(value, 5)


def _memory(problem: Problem, value: Number) -> str:
    if problem.memory_unit == "B" and abs(value) >= 2**20:
        return f"{value / 2**30:.3f} GiB"
    return f"{value:g} {problem.memory_unit}"


def _operation(names: Names, operation: Operation | None) -> str:
    return "nothing" if operation is None else names.operation(operation)


def _place(problem: Problem, devices: Sequence[int]) -> str:
    if len(devices) > 1 and len(devices) == len(problem.devices):
        return "all devices together"
    return "+".join(problem.devices[device].name for device in sorted(devices))


def _some(parts: Sequence[str]) -> list[str]:
    """``parts``, or the first of them and the number of the others."""
    return [*parts] if len(parts) <= _MOST_PARTS else [*parts[:_MOST_PARTS - 1], f"{len(parts) - _MOST_PARTS + 1} more"]
