"""The report of a search over assignments: the best schedule, and the result of every option."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.solver.choices.partial import Partial
from weft.solver.choices.tree import Tree
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.problem import Options, Problem
from weft.solver.problem.block import holds, options_text
from weft.solver.schedule import Schedule


def result_of(tree: Tree, problem: Problem) -> Schedule:
    """The best schedule of ``problem``. Raises :class:`~weft.solver.feasibility.infeasible.Infeasible` if no assignment
    has one, its subclass ``NoneFound`` if that is open."""
    leader = tree.leader
    if leader is None or leader.search is None or leader.search.best is None:
        raise _none(tree, problem)
    best = leader.search.result()
    faults = "; ".join(f"{leaf.of.node.key}: {type(leaf.fault).__name__}: {leaf.fault}" for leaf in tree.leaves.values()
                       if leaf.search is not None and leaf.fault is not None)
    best = replace(best.with_value_bound(min(tree.bound, best.value)), choices=dict(leader.of.node.options),
                   rounds=None if leader.of.rounds.is_plain else leader.of.rounds)
    tree.history.record(tree.budget.elapsed, best.value, best.value_bound)
    return best.with_solver(history=tree.history.to_json(), assignments=problem.assignment_count,
                            searched=len(tree.leaves), options=options_of(tree, problem),
                            **({"stopped": faults} if faults else {}))


def options_of(tree: Tree, problem: Problem) -> list[Mapping[str, Any]]:
    """For each option: the bound on the best schedule with it (``bound``; ``None``: it has none), and the best found
    (``makespan``, or another objective; ``None``: none was found)."""
    assert tree.leader is not None
    parts = tree.parts
    rows: list[Mapping[str, Any]] = []
    for choice, options in problem.choices.items():
        for option in options:
            taken = {choice: option}
            bound = max(tree.least, _alone(tree, taken),
                        min((bound for of, bound in parts if holds(taken, of)), default=math.inf))
            value = min((leaf.value for leaf in tree.leaves.values() if holds(taken, leaf.of.node.options)),
                        default=math.inf)
            rows.append({"choice": choice, "option": option, "taken": tree.leader.of.node.options[choice] == option,
                         "bound": _finite(min(bound, value)), "makespan": _finite(value)})
    return rows


def _alone(tree: Tree, taken: Options) -> float:
    """The bound on all problems with these options; the common bound if time is over."""
    found = tree.least
    if isinstance(tree.root, Partial) and not tree.budget.spent:
        with tree.budget.limited():
            found = max(found, tree.root.at(taken).bound)
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _none(tree: Tree, problem: Problem) -> Exception:
    """Why there is no schedule."""
    leaves = list(tree.leaves.values())
    open_leaf = next((leaf for leaf in leaves if leaf.search is not None and math.isfinite(leaf.bound)), None)
    if math.isfinite(tree.least) and (open_leaf is not None or any(math.isfinite(bound) for _, bound in tree.parts)):
        if open_leaf is not None and open_leaf.search is not None:
            open_leaf.search.require_value(open_leaf.of.rounds.counted)
        return NoneFound(f"{problem.name}: no schedule that fits the devices' memory was found within the limit, and "
                         "it is not proven that there is none; give it more time or memory")
    refused = next((leaf for leaf in leaves if leaf.refusal is not None), None)
    if refused is None or refused.refusal is None:
        fault = next((leaf.fault for leaf in leaves if leaf.fault is not None), None)
        return fault or Infeasible(f"{problem.name}: no assignment of the choices has a schedule")
    if not problem.choices:
        return refused.refusal
    taken = options_text(refused.of.node.options)
    return Infeasible(f"no assignment of the choices fits the devices' memory; under {taken}: {refused.refusal}",
                      refused.refusal.shortages, refused.refusal.most_micro_batches,
                      most_exact=refused.refusal.most_exact)
