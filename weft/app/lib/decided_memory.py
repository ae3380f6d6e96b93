"""The decisions of a memory plan, stage by stage: entries for a schedule, and text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from weft.solver.problem import BlockKind
from weft.text.tables import table_of
from weft.text.units import bytes_text, shown_time

if TYPE_CHECKING:
    from rich.table import Table

    from weft.solver.placement.memory.plan import MemoryPlan, Mode
    from weft.solver.schedule import Schedule


def plan_details(plan: MemoryPlan) -> dict[str, Any]:
    """The plan as plain data: seconds and bytes. ``kept``, ``recomputed`` and ``offloaded`` are of one micro-batch,
    with the operators' names (``kept`` includes the tensors that the stage receives); ``offloaded.seconds`` is one way.
    The memory classes are those of the stage's peak as counted by the plan."""
    return {"bottleneck": plan.time * 1e-9, "bound": plan.bound * 1e-9,
            "stages": [_stage(plan, s) for s in range(len(plan.stages))]}


def _stage(plan: MemoryPlan, s: int) -> dict[str, Any]:
    found, problem = plan.stages[s], plan.problem
    ops = problem.operators[found.first:found.last]
    modes = plan.modes[found.first:found.last]

    def those(mode: Mode) -> list[str]:
        return [op.name for op, its in zip(ops, modes, strict=True) if its == mode]

    return {
        "stage": s, "operators": len(ops), "first": ops[0].name, "last": ops[-1].name, "in_flight": found.in_flight,
        "kept": {"operators": those("keep"), "bytes": found.activations // found.in_flight},
        "recomputed": {"operators": those("recompute"), "seconds": found.recomputing * 1e-9,
                       "bytes": sum(op.kept for op, its in zip(ops, modes, strict=True) if its == "recompute")},
        "offloaded": {"operators": those("offload"), "bytes": found.offloaded, "seconds": found.copying * 0.5e-9},
        "memory": {"weights, gradients, optimizer": found.resident, "activations": found.activations,
                   "recompute buffer": found.recompute_buffer, "offload buffers": found.copy_buffer},
        "seconds": found.time * 1e-9}


def plan_title(plan: MemoryPlan) -> str:
    """Such as "memory decided with offload, room for 3 copies"."""
    title = "memory decided"
    if "offload" in plan.modes:
        title += f" with offload, room for {plan.problem.copy_buffers} copies"
    return title + (", a micro-batch ahead" if plan.problem.ahead else "")


def plan_lines(schedule: Schedule) -> list[str]:
    """The operators that the placement of ``schedule`` keeps, recomputes and offloads, a line a stage; none without
    decisions."""
    plan = schedule.solver.get("memory_plan")
    if not isinstance(plan, Mapping):
        return []
    unit = schedule.problem.time_unit
    lines = []
    for stage in plan["stages"]:
        name = schedule.problem.devices[stage["stage"]].name
        held = _at_peak(schedule, stage["stage"], stage["offloaded"]["bytes"])
        lines.append(f"{name:<9} {stage['first']} to {stage['last']}: {_decided(stage, unit)}; at its peak {held}")
    return lines


def plan_text(schedule: Schedule) -> str:
    """The same on one line, as counts."""
    plan = schedule.solver.get("memory_plan")
    if not isinstance(plan, Mapping):
        return ""
    stages = plan["stages"]

    def counts(what: str) -> str:
        return " + ".join(str(len(stage[what]["operators"])) for stage in stages)

    return (f"memory decided: of {' + '.join(str(stage['operators']) for stage in stages)} operators {counts('kept')} "
            f"kept, {counts('recomputed')} recomputed, {counts('offloaded')} offloaded")


def _decided(stage: Mapping[str, Any], unit: str) -> str:
    again, away = stage["recomputed"], stage["offloaded"]
    parts = [f"{len(stage['kept']['operators'])} operators kept ({bytes_text(stage['kept']['bytes'])} a micro-batch)"]
    if again["operators"]:
        parts.append(f"{len(again['operators'])} recomputed ({bytes_text(again['bytes'])}, "
                     f"{shown_time(again['seconds'], unit)} more)")
    if away["operators"]:
        parts.append(f"{len(away['operators'])} offloaded ({bytes_text(away['bytes'])}, "
                     f"{shown_time(away['seconds'], unit)} each way)")
    return ", ".join(parts)


def _at_peak(schedule: Schedule, device: int, offloaded: int) -> str:
    """The device's memory at its first peak, by class."""
    kept = copied = best = 0
    peak = ""
    for operation in schedule.device_orders[device]:
        block = schedule.problem.blocks[operation.block]
        change, workspace = int(block.memory_on(device)), int(block.workspace_on(device))
        if block.kind == BlockKind.OTHER:
            copied += max(0, change)
        elif change > 0:
            kept, copied = kept + change - offloaded, copied + offloaded
        if kept + copied + workspace > best:
            best = kept + copied + workspace
            peak = f"{bytes_text(kept)} kept" + (f", {bytes_text(copied)} to be offloaded or back" if offloaded else "")
            peak += f", {bytes_text(workspace)} workspace and buffers" if workspace else ""
        if block.kind == BlockKind.OTHER:
            copied += min(0, change)
        elif change < 0:
            kept, copied = kept + change + offloaded, copied - offloaded
    return peak


def plan_table(plan: MemoryPlan, name: str) -> Table:
    """The plan's stages: the decisions, and memory by class against the GPU's available memory."""
    table = table_of(f"{name}, {plan_title(plan)}: bottleneck {plan.time / 1e6:.2f} ms, bound "
                     f"{plan.bound / 1e6:.2f} ms; GiB of each GPU at its peak, workspaces apart, as planned", (
        "GPU", "operators", "kept", "recomputed", "offloaded", "in flight", "static", "activations",
        "recompute buffer", "offload buffers", "needed", "has", "ms"), ("operators",))
    for s, stage in enumerate(plan_details(plan)["stages"]):
        memory = stage["memory"].values()
        table.add_row(
            str(s), f"{stage['first']} .. {stage['last']} ({stage['operators']})",
            str(len(stage["kept"]["operators"])),
            _with(stage["recomputed"]["operators"], f"{stage['recomputed']['seconds'] * 1e3:.2f} ms"),
            _with(stage["offloaded"]["operators"], bytes_text(stage["offloaded"]["bytes"])),
            f"x {stage['in_flight']}", *(f"{amount / 2**30:.2f}" for amount in memory),
            f"{sum(memory) / 2**30:.2f}", f"{plan.problem.memory / 2**30:.2f}", f"{stage['seconds'] * 1e3:.2f}")
    return table


def _with(operators: Iterable[str], amount: str) -> str:
    count = len(list(operators))
    return f"{count} ({amount})" if count else "0"
