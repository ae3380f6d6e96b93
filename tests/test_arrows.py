"""Imports point down only: no circle between files or rooms, and every room imports what it is said to.

All imports count, also those inside functions; those for type checkers alone count between the four parts and at the
front door.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

import networkx as nx
import pytest

from tests.support.imports import WEFT as SOURCES
from tests.support.imports import imported

TOP = ("solver", "models", "runtime", "weft")

#: What a room may import, beside itself and what the rooms that it names may. A file that stands in no room is one.
GROUND = {"control", "io", "model_facts", "names", "offload", "pipeline", "pools", "problem", "spelling",
          "late", "public_names", "schedule", "ticks", "timing", "values"}
SOLVER: Mapping[str, set[str]] = {
    "control": set(),
    "public_names": set(),
    "late": set(),
    "model_facts": set(),
    "spelling": set(),
    "values": set(),
    "problem": {"model_facts", "late", "values"},
    "pools": {"problem"},
    "schedule": {"problem", "pools", "model_facts", "values"},
    "names": {"problem", "schedule"},
    "judge": {"control", "problem", "schedule"},
    "timing": {"control", "problem", "pools", "schedule"},
    "ticks": {"problem", "pools", "values"},
    "pipeline": {"problem"},
    "offload": {"problem"},
    "io": {"control", "problem", "schedule", "model_facts", "spelling", "values"},
    "cpsat": {"control", "late"},
    "variants": {"control", "problem", "schedule", "timing"},
    "relations": {"control", "late", "problem", "pools", "schedule", "ticks", "timing"},
    "feasibility": {"relations", "cpsat", *GROUND},
    "baselines": {"orders", "relations", "cpsat", "feasibility", "judge", *GROUND},
    "bounds": {"relations", "cpsat", *GROUND},
    "orders": {"relations", "cpsat", "judge", *GROUND},
    "period": {"orders", "baselines", "bounds", "feasibility", "relations", "cpsat", "judge", *GROUND},
    "step": {"orders", "period", "baselines", "bounds", "feasibility", "relations", "cpsat", "judge", *GROUND},
    "latency": {"period", "relations", "cpsat", *GROUND},
    "portfolio": {"step", "feasibility", "cpsat", "control", "problem", "schedule"},
    "choices": {"portfolio", "orders", "step", "period", "baselines", "bounds", "feasibility", "relations", "cpsat",
                "judge", *GROUND},
    "diagnose": {"step", "period", "bounds", "feasibility", "relations", "cpsat", "judge", *GROUND},
    "placement": {"portfolio", "step", "period", "baselines", "bounds", "feasibility", "relations", "cpsat", "judge",
                  *GROUND},
}
#: What the four parts may import of each other.
PARTS: Mapping[str, set[str]] = {
    "solver": set(),
    "models": {"solver"},
    "runtime": {"solver"},
    "weft": {"runtime", "models", "solver"},
}
#: The rooms of the front door, and those of them that each may import.
FRONT: Mapping[str, set[str]] = {
    "cli": {"app", "figures", "text"}, "app": {"figures", "text"}, "figures": {"text"}, "text": set()}
#: Imported when they are used, never when a file of the solver, or the command line, is imported.
HEAVY = {"torch", "altair", "vl_convert", "ortools", "networkx"}


def part_of(name: str) -> str:
    """``weft.solver.step.search`` is of ``solver``, ``weft.cli.main`` of ``weft``."""
    steps = name.split(".")
    return steps[1] if len(steps) > 1 and steps[1] in TOP[:3] else "weft"


def room_of(name: str) -> str:
    """The first-level room: ``solver.step``, ``models.zoo``, ``weft.cli``; a file that stands in none is its own."""
    part = part_of(name)
    inside = name.split(".")[1 if part == "weft" else 2:]
    return ".".join((part, *inside[:1]))


def circles(arrows: nx.DiGraph[str]) -> list[list[str]]:
    return [sorted(circle) for circle in nx.strongly_connected_components(arrows)
            if len(circle) > 1]


def test_no_circle_between_files() -> None:
    assert not circles(SOURCES.graph)


@pytest.mark.parametrize("part", TOP)
def test_no_circle_between_first_level_rooms(part: str) -> None:
    rooms: nx.DiGraph[str] = nx.DiGraph()
    for source, target in SOURCES.graph.edges:
        # The part's own file exports names of its rooms: it is above all of them, whoever imports it.
        if part_of(source) == part_of(target) == part and part != room_of(source) != room_of(target) != part:
            rooms.add_edge(room_of(source), room_of(target))
    assert not circles(rooms)


def test_the_rooms_of_the_solver_import_what_they_may() -> None:
    found = {f"{source} -> {target}" for source, target in SOURCES.graph.edges
             if part_of(source) == part_of(target) == "solver" and room_of(source) != "solver"
             and (room := room_of(source)[len("solver."):]) != (other := room_of(target)[len("solver."):])
             and other not in SOLVER[room]}
    assert not found


def test_the_four_parts_import_what_they_may() -> None:
    found = {f"{name} -> {other}" for name, tree in SOURCES.trees.items() for other in imported(tree, types_too=True)
             if other.startswith("weft.") and part_of(name) != part_of(other)
             and part_of(other) not in PARTS[part_of(name)]}
    assert not found


def test_the_judge_imports_nothing_of_what_it_judges() -> None:
    allowed = ("weft.solver.judge.", "weft.solver.problem", "weft.solver.schedule", "weft.solver.control.clock",
               "weft.solver.problem.block", "weft.solver.problem", "weft.solver.problem.rounds")
    found = {f"{name} -> {other}" for name, tree in SOURCES.trees.items() if name.startswith("weft.solver.judge")
             for other in imported(tree) if other.startswith("weft") and not other.startswith(allowed)}
    assert not found


def test_what_runs_as_a_program_begins_at_its_end() -> None:
    """What stood below would not be there yet."""
    found = [f"{name}:{statement.lineno}" for name, tree in SOURCES.trees.items() for statement in tree.body[:-1]
             if isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test)]
    assert not found


@pytest.mark.parametrize("room", ["weft.solver", "weft.cli"])
def test_heavy_packages_are_imported_on_use(room: str) -> None:
    found = {f"{name} -> {other}" for name, tree in SOURCES.trees.items() if f"{name}.".startswith(f"{room}.")
             for other in imported(tree, at_module_level=True) if other.partition(".")[0] in HEAVY}
    assert not found


def front_room(name: str) -> str:
    """The room of the front door that ``name`` is of, or nothing."""
    top, _, inside = name.partition(".")
    room = inside.partition(".")[0]
    return room if top == "weft" and room in FRONT else ""


@pytest.mark.parametrize("part", TOP[:3])
def test_nothing_below_uses_the_front_door(part: str) -> None:
    assert not {f"{name} -> {other}" for name, tree in SOURCES.trees.items() if part_of(name) == part
                for other in imported(tree, types_too=True) if front_room(other)}


def test_the_rooms_of_the_front_door_import_only_those_below_them() -> None:
    found = {f"{name} -> {other}" for name, tree in SOURCES.trees.items() if front_room(name)
             for other in imported(tree, types_too=True)
             if other.rpartition(".")[0] == "weft" or other == "weft"
             or front_room(other) not in {"", front_room(name), *FRONT[front_room(name)]}}
    assert not found


def test_only_the_command_line_prints() -> None:
    """And ``ranks.py``, a program of its own, whose errors its parent reads."""
    assert not {name for name, tree in SOURCES.trees.items() if front_room(name) in FRONT["cli"]
                and not name.endswith(".ranks") for node in ast.walk(tree)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"}
